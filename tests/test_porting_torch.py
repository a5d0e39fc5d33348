"""Torch in and out: modules become graphs and graphs modules, with equal outputs, weights and gradients."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from porting_models import TCN, Mobile, UNet, settled  # noqa: E402
from porting_onnx import floats  # noqa: E402
from torch import nn  # noqa: E402

import pyflux_pad as pp  # noqa: E402
from pyflux_pad import porting  # noqa: E402
from pyflux_pad.porting import ModelError  # noqa: E402

pytestmark = pytest.mark.engine("torch")


def ops(graph):
    return [node.op for node in graph.nodes]


def pads(graph, op):
    return [node.attributes["pads"].padding.pairs for node in graph.nodes if node.op == op]


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def read(function, *example, **parts):
    return porting.read_torch(settled(Lambda(function, **parts)), example)


# ------------------------------------------------------------------------------------------------------------- networks


NETWORKS = {
    "TCN": (TCN, (2, 3, 20)),
    "U-Net": (UNet, (2, 1, 12, 16)),
    "MobileNet": (Mobile, (2, 3, 33, 36)),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    """A module in evaluation mode, an input, and the graph that was read of it."""
    build, shape = NETWORKS[request.param]
    module = settled(build())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return request.param, module, x, porting.read_torch(module, (x,))


def test_network_pads(network):
    """Every F.pad and every asymmetric layer of this package ended up in the pads of a convolution."""
    name, _, _, graph = network
    assert "Pad" not in ops(graph)
    if name == "TCN":
        assert pads(graph, "Conv") == [((2, 0),), ((0, 0),), ((4, 0),), ((0, 0),), ((8, 0),), ((0, 0),)]
    elif name == "U-Net":
        assert pads(graph, "ConvTranspose")[0] == ((1, 0), (1, 0))  # padding 1 and one more at the end
    else:
        assert pads(graph, "Conv")[:2] == [((1, 1), (0, 1)), ((1, 1), (0, 1))]
        groups = [node.attributes["group"] for node in graph.nodes if node.op == "Conv"]
        assert groups == [1, 8, 1, 12, 1]


def test_network_values(network):
    _, module, x, graph = network
    with torch.no_grad():
        want = module(x)
    name = graph.inputs[0].name
    for inputs, backend in (({name: x}, None), ({name: x}, "numpy"), ({name: x.numpy()}, None),
                            ({name: x.numpy()}, "torch")):  # fmt: skip
        (got,) = graph.run(inputs, backend=backend).values()
        assert type(got) is type(inputs[name])
        torch.testing.assert_close(torch.as_tensor(got), want, rtol=1e-4, atol=1e-5)


def test_network_back_to_torch(network):
    """The same state_dict but for BatchNorm's counter, and the same gradients for every weight."""
    _, module, x, graph = network
    back = graph.to_torch()
    state, want = back.state_dict(), module.state_dict()
    assert state.keys() == {key for key in want if not key.endswith("num_batches_tracked")}
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, want[key], rtol=0, atol=0)
    trained, wanted = dict(back.named_parameters()), dict(module.named_parameters())
    assert trained.keys() == wanted.keys()
    y, target = back(x), module(x)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad(y, trained.values(), cotangent)
    theirs = torch.autograd.grad(target, wanted.values(), cotangent)
    by_name = dict(zip(wanted, theirs, strict=True))
    for key, gradient in zip(trained, ours, strict=True):
        torch.testing.assert_close(gradient, by_name[key], rtol=1e-4, atol=1e-5)


def test_network_is_exportable(network):
    _, module, x, graph = network
    program = torch.export.export(graph.to_torch(), (x,))
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-4, atol=1e-5)


def test_network_through_files(network, tmp_path):
    """torch -> graph -> ONNX -> graph -> torch, with ONNX Runtime as a witness, and the state_dict as safetensors."""
    onnxruntime = pytest.importorskip("onnxruntime")
    load_file = pytest.importorskip("safetensors.torch").load_file
    _, module, x, graph = network
    porting.write_onnx(graph, tmp_path / "model.onnx")
    again = porting.read_onnx(tmp_path / "model.onnx")
    assert (again.nodes, again.parameters) == (graph.nodes, graph.parameters)
    with torch.no_grad():
        want = module(x)
        torch.testing.assert_close(again.to_torch()(x), want, rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (theirs,) = session.run(None, {graph.inputs[0].name: x.numpy()})
    torch.testing.assert_close(torch.as_tensor(theirs), want, rtol=1e-4, atol=1e-5)
    porting.write_torch(graph, tmp_path / "model.safetensors")
    assert not [key for key in module.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)[0]
                if not key.endswith("num_batches_tracked")]  # fmt: skip
    with pytest.raises(ModelError, match=r"write_torch: .*model\.safetensors exists and is not overwritten"):
        porting.write_torch(graph, tmp_path / "model.safetensors")


# ------------------------------------------------------------------------------------------------------------ operators


def _many_layers(m, x, index):
    x = F.silu(m.conv(F.relu(F.pad(x, (1, 2, 0, 1)))))
    x = F.hardsigmoid(F.hardswish(F.mish(F.elu(m.instance(m.group(x)), 0.7))))
    x = F.gelu(F.gelu(F.leaky_relu(F.selu(F.softplus(x, beta=2)), 0.3)), approximate="tanh")
    x = m.lrn(m.prelu(m.dropout(F.relu6(F.hardtanh(x * 4 - 2))))) - F.logsigmoid(x)
    small = m.lp(m.average(m.maximum(x)))
    large = F.interpolate(small, scale_factor=2, mode="bilinear") + F.interpolate(small, scale_factor=2)
    large = F.interpolate(large, size=(7, 9), mode="bicubic", align_corners=True)
    pooled = F.adaptive_avg_pool2d(x, 1) * F.adaptive_max_pool2d(x, 1)
    mixed = F.glu(torch.cat([large, -large], 1), 1).clamp(min=-1) + pooled
    words = m.layer(m.linear(mixed.permute(0, 2, 3, 1))).softmax(-1).log_softmax(1)
    first, second = words.split([2, 3], -1)
    shuffled = F.pixel_shuffle(large, 2)
    embedded = F.normalize(m.embedding(index)).abs().sqrt().exp().log() ** 2
    product = torch.addmm(embedded, embedded, embedded) @ embedded.t()
    stacked = torch.stack([product, product.rsqrt().reciprocal()]).amax(0) - 2 + (1 - product)
    chosen = torch.where(index[:, None] == 1, stacked, torch.maximum(product, stacked.sign()))
    return first.mean((1, 2)), second[:, 1:, -1], shuffled.sum(), chosen, x.transpose(1, 2).flatten(1)[:, None].expand(
        -1, 2, -1), index, index


def test_many_operators():
    module = settled(Lambda(
        _many_layers, conv=nn.Conv2d(3, 4, (2, 3), padding="valid"), group=nn.GroupNorm(2, 4),
        instance=nn.InstanceNorm2d(4, affine=True), prelu=nn.PReLU(4), dropout=nn.Dropout2d(),
        lrn=nn.LocalResponseNorm(4), maximum=nn.MaxPool2d(3, 2, 1, ceil_mode=True), average=nn.AvgPool2d(2, 1, 1),
        lp=nn.LPPool2d(2, 2, 1), linear=nn.Linear(4, 5), layer=nn.LayerNorm(5), embedding=nn.Embedding(6, 3),
    ))  # fmt: skip
    x, index = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 1, 5])
    graph = porting.read_torch(module, (x, index))
    with torch.no_grad():
        wanted = module(x, index)
        ours = graph.to_torch()(x, index)
    for got, want in zip(ours, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    names = [value.name for value in graph.inputs]
    found = graph.run(dict(zip(names, (x.numpy(), index.numpy()), strict=True)))
    for value, want in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(found[value.name], want.numpy(), 1e-3, 1e-4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("kind", "bias"), [(nn.LSTM, True), (nn.LSTM, False), (nn.GRU, True)])
def test_recurrent_layers(kind, bias, bidirectional):
    layer = kind(3, 4, 2, bias=bias, batch_first=True, bidirectional=bidirectional)
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    module = settled(Lambda(lambda m, x: m.layer(x)[0], layer=layer))
    graph = porting.read_torch(module, (x,))
    assert ops(graph).count(kind.__name__) == 2
    torch.testing.assert_close(graph.to_torch()(x), module(x), rtol=1e-5, atol=1e-6)
    assert sum(p.numel() for p in graph.to_torch().parameters()) == sum(p.numel() for p in module.parameters())


def test_pads_are_fused_where_that_is_exact():
    x = torch.randn(1, 2, 8, 8)
    counted = read(lambda m, x: F.avg_pool2d(F.pad(x, (0, 1, 2, 0)), 3, 1, 1), x)
    assert (ops(counted), pads(counted, "AveragePool")) == (["AveragePool"], [((3, 1), (1, 2))])
    infinite = read(lambda m, x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2), x)
    assert (ops(infinite), pads(infinite, "MaxPool")) == (["MaxPool"], [((0, 1), (0, 1))])
    assert ops(read(lambda m, x: F.max_pool2d(F.pad(x, (0, 1, 0, 1)), 3, 2), x)) == ["Pad", "MaxPool"]
    reflected = read(lambda m, x: m.conv(x), x, conv=nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"))
    assert ops(reflected) == ["Pad", "Conv"]


def test_this_package_s_own_layers_are_read():
    x = torch.randn(1, 2, 9, 8)
    graph = read(lambda m, x: pp.max_pool(pp.conv(x, m.conv.weight, padding=((0, 2), (1, 0))), 2, padding="same"), x,
                 conv=nn.Conv2d(2, 3, 3))  # fmt: skip
    module = graph.to_torch()
    want = pp.max_pool(pp.conv(x, dict(module.named_parameters())["conv.weight"], padding=((0, 2), (1, 0))), 2,
                       padding="same")  # fmt: skip
    torch.testing.assert_close(module(x), want)


# --------------------------------------------------------------------------------------------------------- to_torch


def test_names_that_are_no_paths():
    """A name that is an array and a folder at once, an empty part, an attribute of modules."""
    arrays = {name: floats(place, 1) for place, name in enumerate(("a", "a.b", "c..d", "train.x", "/e:0"))}
    nodes, last = [], "x"
    for name in arrays:
        nodes.append(porting.Node(f"add {name}", "Add", (last, name), (f"{name}.out",)))
        last = f"{name}.out"
    graph = porting.Graph("names", (porting.Value("x", "float32", (2,)),), (porting.Value(last),), tuple(nodes), arrays,
                          frozenset(arrays))  # fmt: skip
    module = graph.to_torch()
    assert list(module.state_dict()) == ["/e:0", "a", "a_b", "c__d", "train_x"]
    torch.testing.assert_close(module(torch.zeros(2)), torch.tensor([10.0, 5.0]))


def test_training_changes_the_module_and_not_the_graph():
    graph = read(lambda m, x: m.linear(x), torch.randn(4, 3), linear=nn.Linear(3, 1))
    before, module = {name: array.copy() for name, array in graph.arrays.items()}, graph.to_torch()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    losses = []
    for _ in range(5):
        losses.append(F.mse_loss(module(x), y))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    for name, array in graph.arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_training_the_module_that_was_read_does_not_change_the_graph():
    linear = nn.Linear(3, 1)
    graph = read(lambda m, x: m.linear(x), torch.randn(4, 3), linear=linear)
    before = graph.arrays["linear.weight"].copy()
    with torch.no_grad():
        linear.weight.zero_()
    np.testing.assert_array_equal(graph.arrays["linear.weight"], before)


def test_modules_and_graphs_are_copied_and_pickled():
    x = torch.randn(1, 2, 5, 6)
    graph = read(lambda m, x: m.conv(F.pad(x, (0, 1, 2, 0))), x, conv=nn.Conv2d(2, 3, 3))
    module = graph.to_torch()
    twin = copy.deepcopy(module)
    assert dict(twin.named_parameters())["conv.weight"] is not dict(module.named_parameters())["conv.weight"]
    torch.testing.assert_close(twin(x), module(x))
    again = pickle.loads(pickle.dumps(graph))
    assert (again.nodes, again.parameters, again.values) == (graph.nodes, graph.parameters, graph.values)
    torch.testing.assert_close(again.to_torch()(x), module(x))


def test_another_engine_under_torch():
    conv = nn.Conv2d(2, 3, 3)
    graph = read(lambda m, x: m.conv(F.pad(x, (0, 1, 2, 0))), torch.randn(1, 2, 5, 6), conv=conv)
    x = torch.randn(1, 2, 5, 6)
    ours, numpys = graph.to_torch(), graph.to_torch(backend="numpy")
    torch.testing.assert_close(numpys(x), ours(x))
    (ours_grad,), (numpys_grad,) = (
        torch.autograd.grad(module(x).square().sum(), [dict(module.named_parameters())["conv.weight"]])
        for module in (ours, numpys))  # fmt: skip
    torch.testing.assert_close(numpys_grad, ours_grad, rtol=1e-4, atol=1e-4)


def test_wrong_number_of_inputs():
    with pytest.raises(TypeError, match=r"Lambda takes 1 inputs \(inputs_0\), got 2"):
        read(lambda m, x: x + 1, torch.ones(2)).to_torch()(torch.ones(2), torch.ones(2))


# ----------------------------------------------------------------------------------------------------------- bad input


def test_bad_modules():
    x = torch.randn(1, 2, 8, 8)
    with pytest.raises(TypeError, match=r"read_torch takes a torch\.nn\.Module, got function"):
        porting.read_torch(F.relu, (x,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="example must be a tuple of tensors"):
        porting.read_torch(nn.ReLU(), x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModelError, match=r"Dropout is in training mode, .* call module\.eval\(\) first"):
        porting.read_torch(nn.Dropout(), (x,))
    with pytest.raises(ModelError, match=r"torch\.export cannot export Lambda"):
        read(lambda m, x: x if x.sum() > 0 else -x, x)
    with pytest.raises(ModelError, match="the module must return tensors and nothing else, it returns None"):
        read(lambda m, x: (x + 1, None), x)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda m, x: torch.sort(torch.cumsum(x, 1))[0],
         r"operators that cannot be read: aten\.cumsum\.default \(node 'cumsum'\); aten\.sort\.default \(node 'sort'\)"
         r"\. Known are .*conv2d"),
        (lambda m, x: F.adaptive_avg_pool2d(x, 3), r"'adaptive_avg_pool2d' \(aten\.adaptive_avg_pool2d\.default\): "
                                                   r"windows from \(8, 8\) to \(3, 3\) have unequal sizes"),
        (lambda m, x: F.avg_pool2d(x, 2, divisor_override=3), "divisor_override=3 has no counterpart"),
        (lambda m, x: F.softplus(x, threshold=2), r"threshold=2(\.0)? bends the curve"),
        (lambda m, x: F.conv2d(x[0], torch.ones(1, 2, 3, 3)), r"got the shape \(2, 8, 8\); add a batch axis"),
        (lambda m, x: F.dropout(x, 0.5, True), "it drops at random"),
        (lambda m, x: F.max_pool2d(x, 2, return_indices=True)[1], r"result 1 \(indices, .*\) has no counterpart"),
        (lambda m, x: torch.clamp(x, torch.zeros(8)), "limits that are arrays have no counterpart"),
    ],
)  # fmt: skip
def test_bad_operators(function, match):
    with pytest.raises(ModelError, match=match):
        read(function, torch.randn(1, 2, 8, 8))
