"""Training live Flux models: in Julia with every kind of loss, through torch, and what stops it."""

import os
import re
import signal

import flux_models
import numpy as np
import pytest

from pyflux_pad import flux
from pyflux_pad.flux import FluxModel, fit

pytestmark = flux_models.needs_flux
torch = pytest.importorskip("torch")


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small(seed=0):
    model = FluxModel(flux.Chain(
        flux.Conv(1, 3, (3, 2), "tanh", padding=((2, 0), (0, 1))), flux.BatchNorm(3), flux.MeanPool((2, 2)),
        flux.flatten, flux.Dense(12, 4)))  # fmt: skip
    for number, name in enumerate(model.trained):
        array = model.parameters()[name]
        array[...] = random(*array.shape, seed=100 * seed + number) / 2
    return model


class Twin(torch.nn.Module):
    """The same network in torch, from the model's own state."""

    def __init__(self, model):
        super().__init__()
        state = {name: torch.from_numpy(array) for name, array in model.state_dict().items()}
        self.conv, self.norm = torch.nn.Conv2d(1, 3, (3, 2)), torch.nn.BatchNorm2d(3)
        self.dense = torch.nn.Linear(12, 4)
        with torch.no_grad():
            self.conv.weight[...], self.conv.bias[...] = state["layers.0.weight"].flip(2, 3), state["layers.0.bias"]
            self.norm.weight[...], self.norm.bias[...] = state["layers.1.gamma"], state["layers.1.beta"]
            self.dense.weight[...], self.dense.bias[...] = state["layers.4.weight"].T, state["layers.4.bias"]

    def forward(self, x):
        x = torch.nn.functional.pad(x, (0, 1, 2, 0))
        x = torch.nn.functional.avg_pool2d(self.norm(torch.tanh(self.conv(x))), 2)
        return self.dense(x.flatten(1))


BATCHES = [(random(8, 1, 4, 5, seed=i), np.eye(4, dtype=np.float32)[np.arange(8) % 4]) for i in range(5)]


def twins_losses(model, loss, steps=10):
    twin = Twin(model)
    optimiser, losses = torch.optim.Adam(twin.parameters(), 0.01), []
    for x, target in (BATCHES * steps)[:steps]:
        value = loss(twin(torch.from_numpy(x)), torch.from_numpy(target))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return losses, twin


def mse_with_gradient(prediction, target):
    apart = prediction - target
    return (apart**2).mean(), 2 * apart / np.float32(apart.size)


LOSSES = {
    "mse": ("mse", torch.nn.functional.mse_loss),
    "logitcrossentropy": ("logitcrossentropy", torch.nn.functional.cross_entropy),
    "Julia": ("(p, t) -> sum(abs, p .- t) / 3", lambda p, t: (p - t).abs().sum() / 3),
    "torch": (lambda p, t: ((p - t) ** 4).mean(), lambda p, t: ((p - t) ** 4).mean()),
    "NumPy": (mse_with_gradient, torch.nn.functional.mse_loss),
}


@pytest.mark.parametrize("name", LOSSES)
def test_fit_follows_torch(name):
    loss, of_torch = LOSSES[name]
    model = small()
    wanted, twin = twins_losses(model, of_torch)
    data = [(x, torch.from_numpy(t)) for x, t in BATCHES] if name == "torch" else BATCHES
    steps = []
    history = fit(model, data, loss, "Adam(0.01)", epochs=2, callbacks=[steps.append])
    np.testing.assert_allclose(history.losses, wanted, rtol=2e-4)
    np.testing.assert_allclose(history.epochs, [np.mean(wanted[:5]), np.mean(wanted[5:])], rtol=2e-4)
    assert [(step.epoch, step.step) for step in steps] == [(1 + i // 5, 1 + i) for i in range(10)]
    assert [step.loss for step in steps] == history.losses.tolist()
    np.testing.assert_allclose(model.parameters()["layers.1.mean"], twin.norm.running_mean, rtol=1e-4, atol=1e-5)
    x = BATCHES[0][0]
    np.testing.assert_allclose(model(x), twin.eval()(torch.from_numpy(x)).detach(), rtol=1e-3, atol=1e-4)
    assert not model.training


def test_crossentropy_of_probabilities():
    model = FluxModel(flux.Chain(flux.flatten, flux.Dense(20, 4), flux.Layer("softmax")))
    x, target = BATCHES[0]
    wanted = -(target * np.log(model(x))).sum(1).mean()
    np.testing.assert_allclose(fit(model, [(x, target)], "crossentropy", "Descent(0.1)").losses, [wanted], rtol=1e-5)


def test_through_torch():
    model = small()
    wanted, twin = twins_losses(model, torch.nn.functional.cross_entropy)
    module = flux.FluxModule(model).train()
    optimiser, losses = torch.optim.Adam(module.parameters(), 0.01), []
    for x, target in BATCHES * 2:
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(target))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    np.testing.assert_allclose(losses, wanted, rtol=2e-4)
    np.testing.assert_allclose(module.get_buffer("layers.1.mean"), twin.norm.running_mean, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------- FluxModule


def test_module_shares_memory_in_both_directions():
    model = small()
    module = flux.FluxModule(model)
    assert set(module.state_dict()) == set(model.parameters())
    assert [name for name, _ in module.named_parameters()] == list(model.trained)
    with torch.no_grad():
        module.get_parameter("layers.4.bias").fill_(3)
    np.testing.assert_array_equal(model.parameters()["layers.4.bias"], np.full(4, 3))
    model.parameters()["layers.4.bias"][...] = 5
    assert module.get_parameter("layers.4.bias").tolist() == [5] * 4
    assert "FluxModel(" in repr(module)


def test_module_gradients():
    model = small()
    module = flux.FluxModule(model)
    x = torch.from_numpy(BATCHES[0][0]).requires_grad_()
    module(x).sum().backward()  # a cotangent of stride 0
    dx, gradients = model.grad(BATCHES[0][0], np.ones((8, 4), np.float32))
    np.testing.assert_array_equal(x.grad, dx)
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(parameter.grad, gradients[name])
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    assert not module(x.detach()).requires_grad
    turned = torch.from_numpy(random(8, 1, 5, 4)).transpose(2, 3)  # not contiguous: copied, as torch does
    np.testing.assert_array_equal(module(turned), model(turned.contiguous().numpy()))


def test_module_modes():
    module = flux.FluxModule(small())
    assert not module.training
    x = torch.from_numpy(BATCHES[0][0])
    tested = module(x).detach()
    assert (module.train()(x) - tested).abs().max() > 1e-3
    assert module.model.training
    module.eval()(x)
    assert not module.model.training


def test_module_refusals():
    model = small()
    module = flux.FluxModule(model)
    x = torch.from_numpy(BATCHES[0][0])
    with pytest.raises(TypeError, match="FluxModule takes tensors, got a ndarray; FluxModel takes NumPy arrays"):
        module(BATCHES[0][0])
    with pytest.raises(TypeError, match="the input is on meta; Julia reads memory of the CPU"):
        module(x.to("meta"))
    with pytest.raises(TypeError, match=r"layers.0 \(Conv\) has parameters of float32, given is an array of float64"):
        module(x.double())
    y = module(x).sum()
    with torch.no_grad():
        module.get_parameter("layers.4.bias").add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    (gradient,) = torch.autograd.grad(module(x).sum(), module.get_parameter("layers.4.bias"), create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        gradient.sum().backward()
    module.double()
    with pytest.raises(RuntimeError, match=r"FluxModule: layers.0.weight no longer lies in Julia's memory; \.to\(\)"):
        module(x)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("loss", ["mse", lambda p, t: ((p - t) ** 2).mean()], ids=["Julia", "torch"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite(bad, loss):
    """The state of the last step with a finite loss, statistics included, not what that step's update made of it."""
    states = []
    model = small()
    data = [(x, torch.from_numpy(t) if callable(loss) else t) for x, t in BATCHES]
    broken = data[3][0].copy()
    broken[0] = bad
    data[3] = (broken, data[3][1])
    before = model.state_dict()
    text = "at step 4 (epoch 1); the model has the state of step 3, the last with a finite loss"
    with pytest.raises(flux.LossNotFinite, match=re.escape(text)) as caught:
        fit(model, data, loss, "Adam(0.01)", callbacks=[lambda step: states.append(model.state_dict())])
    assert caught.value.history.losses.shape == (3,)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, states[1][name])  # after step 2, where step 3 began
    assert not model.training
    with pytest.raises(flux.LossNotFinite, match=r"at step 1 .* the state it began with"):
        fit(small(), [data[3]], loss, callbacks=[])
    again = small()
    with pytest.raises(flux.LossNotFinite):
        fit(again, [data[3]], loss)
    for name, array in again.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


REFUSED = {
    "non-scalar of torch": ([(BATCHES[0][0], torch.zeros(8, 4))], lambda p, t: p - t, {}, ValueError,
                            "the loss must return a scalar tensor, got a tensor of the shape (8, 4); reduce it with"),
    "number of torch": ([(BATCHES[0][0], torch.zeros(8, 4))], lambda p, t: 1.5, {}, ValueError,
                        "the loss must return a scalar tensor, got 1.5"),
    "detached": ([(BATCHES[0][0], torch.zeros(8, 4))], lambda p, t: p.detach().sum(), {}, ValueError,
                 "the loss does not depend on the prediction by torch's operations"),
    "no pair": (BATCHES, lambda p, t: ((p - t) ** 2).mean(), {}, TypeError,
                "a loss of NumPy arrays must return (loss, gradient by the prediction), got a float32"),
    "non-scalar of NumPy": (BATCHES, lambda p, t: (p, p), {}, ValueError,
                            "the loss must be a scalar, got the shape (8, 4)"),
    "gradient of another shape": (BATCHES, lambda p, t: (0.5, p[:4]), {}, ValueError,
                                  "grad_output must be float32 (8, 4), as the result; given: float32 (4, 4)"),
    "non-scalar of Julia": (BATCHES, "(p, t) -> p .- t", {}, TypeError,
                            "the loss returned 4\u00d78 Matrix{Float32}; it must"),
    "shapes": ([(BATCHES[0][0], random(8, 3))], "mse", {}, ValueError,
               "the loss compares arrays of one shape; the prediction is (8, 4), the target (8, 3)"),
    "unknown loss": (BATCHES, "mae_", {}, ValueError, "loss:1: UndefVarError: `mae_` not defined"),
    "loss of another type": (BATCHES, 3, {}, TypeError,
     "fit: loss is a int; give mse, crossentropy, logitcrossentropy"),
    "unknown rule": (BATCHES, "mse", {"optimiser": "Adamm"}, ValueError,
     "optimiser:1: UndefVarError: `Adamm` not defined"),
    "no rule": (BATCHES, "mse", {"optimiser": "1 + 1"}, ValueError,
     "optimiser: 1 + 1 is Int64, not a rule of Optimisers.jl"),
    "rule of another type": (BATCHES, "mse", {"optimiser": torch.optim.Adam}, TypeError,
     "fit: optimiser is a type; it is"),
    "no pairs of data": ([BATCHES[0][0]], "mse", {}, TypeError, "data must give pairs (input, target), got a ndarray"),
    "a generator": ((batch for batch in BATCHES), "mse", {"epochs": 2}, ValueError,
                    "data has no batches in epoch 2; a generator can be gone through once"),
    "dtype": ([(BATCHES[0][0].astype(float), BATCHES[0][1])], "mse", {}, TypeError,
              "fit: layers.0 (Conv) has parameters of float32, given is an array of float64"),
    "device": ([(torch.zeros(8, 1, 4, 5, device="meta"), BATCHES[0][1])], "mse", {}, TypeError,
     "fit: the input is on meta"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    data, loss, options, kind, text = REFUSED[name]
    model = small()
    with pytest.raises(kind, match=re.escape(text)):
        fit(model, data, loss, **options)
    assert not model.training


def test_nothing_to_train():
    with pytest.raises(ValueError, match="fit: the model has no parameters that are trained"):
        fit(FluxModel(flux.GlobalMeanPool()), BATCHES)


def test_an_interrupt_ends_between_steps():
    def interrupt(step):
        if step.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    model, other = small(), small()
    history = fit(model, BATCHES, "mse", "Adam(0.01)", epochs=4, callbacks=[interrupt])
    assert history.interrupted
    assert history.losses.shape == (3,)
    assert history.epochs.shape == (0,)
    assert signal.getsignal(signal.SIGINT) is handler
    fit(other, BATCHES[:3], "mse", "Adam(0.01)")
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])


def test_the_curve(tmp_path):
    pytest.importorskip("matplotlib")
    history = fit(small(), BATCHES, "mse")
    axes = history.plot(tmp_path / "curve.png")
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), history.losses)
    assert (tmp_path / "curve.png").stat().st_size > 1000
