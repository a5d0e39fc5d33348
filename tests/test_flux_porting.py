"""Live models and graphs, both ways: every layer that is read, what is refused with a report, and `Graph.to_flux`."""

import re

import flux_models
import numpy as np
import pytest

from pyflux_pad import flux, porting
from pyflux_pad.flux import FluxModel
from pyflux_pad.porting import ModelError

pytestmark = flux_models.needs_flux
torch = pytest.importorskip("torch")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ACTIVATED = [flux.Dense(3, 3, name) for name in flux.ACTIVATIONS
             if name not in ("logcosh", "rrelu", "softshrink", "softsign", "trelu", "gelu_sigmoid")]  # fmt: skip
MODELS = {
    "layers": ((2, 4, 6, 8), lambda: flux.Chain(
        flux.Conv(4, 6, (2, 3), "leakyrelu", padding=((2, 0), (0, 1)), stride=(1, 2), groups=2),
        flux.BatchNorm(6, "relu"),
        flux.SkipConnection(flux.Chain(flux.CrossCor(6, 6, (3, 2), "swish", padding=((1, 1), (1, 0))),
                                       flux.GroupNorm(3, 6))),
        flux.Upsample("bilinear", scale=2), flux.AdaptiveMeanPool((3, 4)),
        flux.ConvTranspose(6, 4, (2, 3), "elu", stride=(2, 3), padding=((1, 0), (0, 1)), output_padding=(1, 2)),
        flux.PixelShuffle(2), flux.Dropout(0.3), flux.MaxPool((2, 3), padding=((0, 1), (1, 0))),
        flux.Parallel("cat", flux.MeanPool((2, 2), stride=1, padding=((1, 0), (0, 1))), flux.Conv(1, 2, (1, 1))),
        flux.LayerNorm((6, 9), "tanh"), flux.flatten, flux.Dense(162, 5), flux.Layer("softmax"))),
    "activations": ((4, 3), lambda: flux.Chain(*ACTIVATED)),
    "one axis": ((2, 3, 12), lambda: flux.Chain(
        flux.Conv(3, 4, (3,), padding="causal", dilation=2), flux.Upsample("nearest", scale=2),
        flux.Parallel("*", flux.AdaptiveMaxPool((6,)), flux.MeanPool((4,))), flux.GlobalMeanPool())),
    "Dense of three axes": ((2, 5, 3), lambda: flux.Chain(flux.Dense(3, 4, "relu"), flux.Dense(4, 2, bias=False))),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_read(name):
    shape, build = MODELS[name]
    model = FluxModel(build())
    for number, (key, array) in enumerate(model.parameters().items()):
        array[...] = random(*array.shape, seed=number) / 2 + (1 if key.endswith("variance") else 0)
        if key.endswith("variance"):
            np.abs(array, out=array)
    x = random(*shape)
    graph = porting.read_flux(model, shape)
    assert graph.parameters == set(model.trained)
    (y,) = graph.run({"input": x}).values()
    wanted = model(x)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    module = graph.to_torch()
    t = torch.tensor(x, requires_grad=True)
    module(t).square().sum().backward()
    dx, _ = model.grad(x, 2 * wanted)
    np.testing.assert_allclose(t.grad.numpy(), dx, rtol=1e-3, atol=1e-4 * np.abs(dx).max())


def test_what_cannot_be_read_is_listed():
    model = FluxModel(flux.Chain(
        flux.Layer("x -> 2 .* x"), flux.Conv(1, 2, (2,), "softsign"), flux.BatchNorm(2, track_stats=False),
        flux.Parallel(flux.Layer("(a, b) -> a .- b"), flux.MaxPool((1,)), flux.MaxPool((1,))), flux.Dropout()))
    with pytest.raises(ModelError) as caught:
        porting.read_flux(model, (1, 1, 6))
    lines = str(caught.value).splitlines()
    assert lines[0] == "read_flux: 4 layers cannot be read:"
    for line, text in zip(lines[1:], (
        r"layers\.0 \(#.*\): no operator of the neutral record is known for it",
        r"layers\.1 \(Conv\): the activation softsign has no operator in the neutral record",
        r"layers\.2 \(BatchNorm\): without running statistics it normalises by those of the batch",
        r"layers\.3 \(Parallel\): its connection #.* is a function of Julia's; known are add, multiply, concatenate",
    ), strict=True):  # fmt: skip
        assert re.fullmatch(rf"  {text}", line), line
    with pytest.raises(ModelError, match=r"a live model is read for inputs of one shape; give input_shape"):
        porting.read_flux(model)
    with pytest.raises(ModelError, match=r"input_shape=\(1, 2\) is for live models"):
        porting.read_flux("folder", (1, 2))


def test_from_torch_and_trained():
    """A torch network becomes a live one with its values and gradients, under the names of its layers."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, (2, 3), padding=(1, 0)), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.AvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(36, 3)).eval()  # fmt: skip
    x = random(2, 2, 5, 8)
    t = torch.tensor(x, requires_grad=True)
    graph = porting.read_torch(network, (t.detach(),))
    model = graph.to_flux()
    y = network(t)
    np.testing.assert_allclose(model(x), y.detach(), rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    dx, gradients = model.grad(x, 2 * y.detach().numpy())
    np.testing.assert_allclose(dx, t.grad, rtol=1e-3, atol=1e-4)
    kernels = [gradient for gradient in gradients.values() if gradient.shape == (4, 2, 2, 3)]
    np.testing.assert_allclose(kernels[0][:, :, ::-1, ::-1], network[0].weight.grad, rtol=1e-3, atol=1e-4)
    losses = flux.fit(model, [(x, np.zeros((2, 3), np.float32))] * 20, "mse", "Adam(0.01)").losses
    assert losses[-1] < losses[0] / 2


def test_to_onnx(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = FluxModel(flux.Chain(
        flux.Conv(1, 2, (3, 2), "relu", padding=((0, 2), (1, 0))), flux.flatten, flux.Dense(48, 3)))
    porting.write_onnx(porting.read_flux(model, (2, 1, 4, 6)), tmp_path / "model.onnx")
    x = random(2, 1, 4, 6)
    (y,) = runtime.InferenceSession(tmp_path / "model.onnx").run(None, {"input": x})
    np.testing.assert_allclose(y, model(x), rtol=1e-4, atol=1e-5)
