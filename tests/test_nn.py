"""torch's layers with padding of their own: the same to the bit where torch can say it, right where it cannot."""

import copy
import inspect
import io
import itertools
import pickle

import pytest

import pyflux_pad as pp

torch = pytest.importorskip("torch")
from pyflux_pad import nn  # noqa: E402 (it imports torch)

F = torch.nn.functional
pytestmark = pytest.mark.engine("torch")

CONVS = {
    "Conv1d": [((4, 6, 3), {}), ((4, 6, 3, 2, 1, 2, 2, False), {}), ((4, 6, 3), {"padding": "same"})],
    "Conv2d": [((4, 6, 3), {}), ((4, 6, (3, 2), (2, 1), (1, 2)), {"dilation": (1, 2), "groups": 2}),
               ((4, 6, (4, 3)), {"padding": "same", "padding_mode": "circular"}), ((4, 6, 3), {"padding": "valid"}),
               ((4, 6, 3), {"padding": (2, 1), "padding_mode": "reflect", "bias": False}),
               ((4, 6, 3), {"padding": 1, "padding_mode": "replicate", "dtype": torch.float64})],
    "Conv3d": [((4, 2, (3, 1, 2)), {"padding": (1, 0, 2), "stride": (1, 2, 1)})],
    "ConvTranspose1d": [((4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1})],
    "ConvTranspose2d": [((4, 6, 3, 2, 1, 1, 2, False, (1, 2)), {}), ((4, 6, 3), {})],
    "ConvTranspose3d": [((4, 2, 2), {"stride": (1, 2, 1), "padding": (0, 1, 0)})],
}
POOLS = {
    "MaxPool": [((3,), {}), ((3, 2, 1), {}), ((3,), {"dilation": 2, "ceil_mode": True, "padding": 1}),
                ((3,), {"return_indices": True, "stride": 2})],
    "AvgPool": [((3,), {}), ((3, 2, 1, True, False), {})],
    "LPPool": [((2, 3), {}), ((1.5, 3, 2), {"ceil_mode": True}), ((float("inf"), 2), {})],
}
PADS = {
    "ConstantPad": [(2, 1.5)], "ZeroPad": [(1,)], "ReflectionPad": [(2,)], "ReplicationPad": [(3,)],
    "CircularPad": [(1,)],
}
POOL_NAMES = [f"{kind}{d}d" for kind in POOLS for d in (1, 2, 3)]
PAD_NAMES = [f"{kind}{d}d" for kind in PADS for d in (1, 2, 3)]
NAMES = [*CONVS, *POOL_NAMES, *PAD_NAMES]
EXPRESSIBLE = [
    *[(name, args, more) for name, cases in CONVS.items() for args, more in cases],
    *[(name, args, more) for name in POOL_NAMES for args, more in POOLS[name[:-2]]],
    *[(name, args, {}) for name in PAD_NAMES for args in PADS[name[:-2]]],
    ("AvgPool2d", (3,), {"divisor_override": 2}), ("MaxPool2d", ((3, 2), (2, 1), (1, 0)), {}),
    ("ZeroPad2d", ((1, 2, 3, -1),), {}), ("ReflectionPad2d", ((1, 2, 3, 0),), {}),
    ("ConstantPad3d", ((1, 2, 3, 0, 0, 4), -1.0), {}), ("CircularPad1d", ((2, 0),), {}),
]


def build(library, name, args, more, seed=0):
    torch.manual_seed(seed)
    return getattr(library, name)(*args, **more)


def data(name, size=8, channels=4, seed=0, dtype=torch.float32):
    """A positive input for a layer of this name (torch's LPPool takes no absolute value)."""
    axes = int(name[-2])
    return torch.rand(2, channels, *range(size, size + axes), generator=torch.Generator().manual_seed(seed),
                      dtype=dtype)


def equal(found, expected):
    """Compare tensors, or trees of them, to the bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def by_torch(conv, x, pairs, mode="constant"):
    """What a convolution layer should give: F.pad, then torch without padding."""
    padded = F.pad(x, pp.Padding(pairs).to_torch(), mode=mode)
    function = (F.conv1d, F.conv2d, F.conv3d)[len(pairs) - 1]
    return function(padded, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)


# ---------------------------------------------------------------- what torch can express


@pytest.mark.parametrize("name, args, more", EXPRESSIBLE, ids=lambda v: str(v).replace(" ", ""))
def test_is_torchs_layer(name, args, more):
    """Initialisation, repr, state_dict, output and gradients, batched or not."""
    ours, theirs = (build(library, name, args, more) for library in (nn, torch.nn))
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    equal(ours.state_dict(), theirs.state_dict())
    x = data(name, dtype=more.get("dtype", torch.float32))
    for batch in (x, x[0]):
        first, second = batch.clone().requires_grad_(), batch.clone().requires_grad_()
        found, expected = ours(first), theirs(second)
        equal(found, expected)
        sums = [(out[0] if isinstance(out, tuple) else out).square().sum() for out in (found, expected)]
        equal(torch.autograd.grad(sums[0], [first, *ours.parameters()]),
              torch.autograd.grad(sums[1], [second, *theirs.parameters()]))


@pytest.mark.parametrize("name", [*NAMES, "LazyConv1d", "LazyConv2d", "LazyConv3d"])
def test_signature(name):
    """torch's arguments in torch's order; what torch lacks is keyword-only."""
    ours, theirs = (inspect.signature(getattr(library, name)).parameters for library in (nn, torch.nn))
    assert list(ours.items())[:len(theirs)] == list(theirs.items())
    extra = list(ours.values())[len(theirs):]
    assert all(p.kind is p.KEYWORD_ONLY for p in extra)
    assert "backend" in {p.name for p in extra}
    assert getattr(nn, name).__name__ == name
    assert getattr(nn, name).__doc__


def departs(name, args, more):
    """An LPPool of infinite p, and the overhang of one: torch's own, which `lp_pool` does not follow."""
    return name.startswith("LPPool") and (args[0] == float("inf") or "ceil_mode" in more)


@pytest.mark.parametrize("name, args, more", [case for case in EXPRESSIBLE if not departs(*case)],
                         ids=lambda v: str(v).replace(" ", ""))
def test_own_function_agrees(name, args, more):
    """What the layer would do beyond torch is what torch does, where torch can say it."""
    theirs = build(torch.nn, name, args, more)
    ours = build(nn, name, args, {**more, "backend": "torch"})
    assert repr(ours) == repr(theirs)[:-1] + ", backend=torch)"
    x = data(name, dtype=more.get("dtype", torch.float32))
    for batch in (x, x[0]):
        torch.testing.assert_close(ours(batch), theirs(batch))


@pytest.mark.parametrize("output_size", [(15, 17), (16, 18), (2, 6, 15, 18)])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_output_size(output_size, backend):
    ours = build(nn, "ConvTranspose2d", (4, 6, 3, 2, 1), {"backend": backend})
    theirs = build(torch.nn, "ConvTranspose2d", (4, 6, 3, 2, 1), {})
    x = data("2d")
    torch.testing.assert_close(ours(x, output_size), theirs(x, output_size))


# ---------------------------------------------------------------- what it cannot


@pytest.mark.parametrize("name, kernel, pairs", [
    ("Conv1d", 3, ((0, 2),)), ("Conv2d", (3, 2), ((0, 1), (3, 2))), ("Conv2d", 3, ((-1, 2), (0, -2))),
    ("Conv3d", (2, 3, 1), ((1, 0), (0, 2), (2, 1)))])
@pytest.mark.parametrize("stride, dilation, groups", [(1, 1, 1), (2, 1, 2), (1, 2, 2)])
def test_asymmetric_convolution(name, kernel, pairs, stride, dilation, groups):
    conv = build(nn, name, (4, 6, kernel, stride, pairs, dilation, groups), {"dtype": torch.float64})
    x = data(name, dtype=torch.float64)
    torch.testing.assert_close(conv(x), by_torch(conv, x, pairs))
    torch.testing.assert_close(conv(x[0]), by_torch(conv, x, pairs)[0])
    same = build(nn, name, (4, 6, kernel, stride, pp.Padding(pairs), dilation, groups), {"dtype": torch.float64})
    equal(same(x), conv(x))
    assert conv.padding == same.padding == pairs
    assert f"padding={pairs}" in repr(conv)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("detach", [False, True])
def test_asymmetric_padding_modes(mode, detach):
    pairs = ((2, 0), (1, 3))
    conv = build(nn, "Conv2d", (4, 6, 3), {"padding": pairs, "padding_mode": mode, "detach_padding": detach,
                                           "dtype": torch.float64})
    x = data("2d", dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(conv(x), by_torch(conv, x, pairs, mode))
    assert ("detach_padding=True" in repr(conv)) == detach
    found, = torch.autograd.grad(conv(x).sum(), x)
    # Without its copies the padding might as well be zeros: the input's gradient is the same.
    expected, = torch.autograd.grad(by_torch(conv, x, pairs, "constant" if detach else mode).sum(), x)
    torch.testing.assert_close(found, expected)


def test_panorama():
    """A circular width and a zero height in one layer."""
    conv = build(nn, "Conv2d", (4, 6, 3), {"padding": 1, "padding_mode": ("zeros", "circular")})
    x = data("2d")
    torch.testing.assert_close(conv(x), by_torch(conv, F.pad(x, (1, 1, 0, 0), mode="circular"), ((1, 1), (0, 0))))
    assert "padding_mode=('zeros', 'circular')" in repr(conv)
    symmetric = build(nn, "Conv2d", (4, 6, 3), {"padding": 1, "padding_mode": "symmetric"})
    torch.testing.assert_close(symmetric(x), by_torch(symmetric, nn.SymmetricPad2d(1)(x), ((0, 0), (0, 0))))


@pytest.mark.parametrize("rule, pairs", [("same", ((0, 1), (1, 1))), ("same_lower", ((1, 0), (1, 1))),
                                         ("causal", ((2, 0), (0, 0))), ("valid", ((0, 0), (0, 0)))])
def test_rules(rule, pairs):
    """8 x 9 cells, kernel 3, stride 2: one odd cell in the height."""
    conv = build(nn, "Conv2d", (4, 6, 3, 2, rule), {})
    torch.testing.assert_close(conv(data("2d")), by_torch(conv, data("2d"), pairs))
    assert f"padding={rule}" in repr(conv)
    for pool, reference in (("MaxPool2d", pp.max_pool), ("AvgPool2d", pp.avg_pool)):
        layer = getattr(nn, pool)(3, 2, rule)
        equal(layer(data("2d")), reference(data("2d"), 3, stride=2, padding=pairs))
        assert f"padding={rule}" in repr(layer)


def test_causal():
    """No output changes with a later input, whatever stride and dilation; values are those of padding on the left."""
    conv = build(nn, "CausalConv1d", (4, 6, 3), {"dilation": 2})
    assert repr(conv) == "CausalConv1d(4, 6, kernel_size=(3,), stride=(1,), padding=causal, dilation=(2,))"
    assert isinstance(conv, torch.nn.Conv1d)
    x = data("1d", size=12)
    torch.testing.assert_close(conv(x), by_torch(conv, x, ((4, 0),)))
    later = x.clone()
    later[..., 7:] += 1
    equal(conv(later)[..., :7], conv(x)[..., :7])


@pytest.mark.parametrize("pairs", [((0, 1), (2, 1)), ((-1, 2), (0, 0)), ((3, 3), (3, 4))])
def test_asymmetric_pools(pairs):
    x = data("2d")
    flat = pp.Padding(pairs).to_torch()
    equal(nn.MaxPool2d(3, 2, pairs)(x), F.max_pool2d(F.pad(x, flat, value=-float("inf")), 3, 2))
    torch.testing.assert_close(nn.AvgPool2d(3, 2, pairs)(x), F.avg_pool2d(F.pad(x, flat), 3, 2))
    torch.testing.assert_close(nn.LPPool2d(2, 3, 2, padding=pairs)(x), F.lp_pool2d(F.pad(x, flat), 2, 3, 2))
    values, index = nn.MaxPool2d(3, 2, ((0, 1), (2, 1)), return_indices=True)(x[0])
    equal(x[0].flatten(1).gather(1, index.flatten(1)).reshape(values.shape), values)
    assert repr(nn.MaxPool2d(3, 2, pp.Padding(pairs))) == (
        f"MaxPool2d(kernel_size=3, stride=2, padding={pairs}, dilation=1, ceil_mode=False)")
    assert repr(nn.LPPool2d(2, 3, padding=pairs)).endswith(f"ceil_mode=False, padding={pairs})")


def test_pool_beyond_half_the_window():
    """torch refuses more padding than half the window; here it is a padding like any other."""
    x = data("1d")
    with pytest.raises(RuntimeError, match="half"):
        torch.nn.MaxPool1d(2, padding=2)(x)
    equal(nn.MaxPool1d(2, padding=2)(x), pp.max_pool(x, 2, padding=2))
    equal(nn.MaxPool1d(3, padding=2, dilation=2)(x), pp.max_pool(x, 3, padding=2, dilation=2))
    equal(nn.AvgPool1d(2, padding=2)(x), pp.avg_pool(x, 2, padding=2))


def test_transposed():
    x = data("2d")
    conv = build(nn, "ConvTranspose2d", (4, 6, 3, 2), {"padding": ((0, 1), (2, 1))})
    full = F.conv_transpose2d(x, conv.weight, conv.bias, 2)
    torch.testing.assert_close(conv(x), full[..., : full.shape[2] - 1, 2 : full.shape[3] - 1])
    torch.testing.assert_close(conv(x, (15, 15)), full[..., :15, 2:17])
    same = build(nn, "ConvTranspose2d", (4, 6, 3, 2), {"padding": "same", "padding_mode": "circular"})
    assert same(x).shape == (2, 6, 16, 18)
    assert repr(same).endswith("padding=same, padding_mode=circular)")
    equal(same(x), pp.conv_transpose(x, same.weight, same.bias, stride=2, padding="same", padding_mode="circular"))


def test_padding_layers():
    x = data("2d")
    for name, mode in (("ReflectionPad2d", "reflect"), ("ReplicationPad2d", "replicate"), ("CircularPad2d", "circular"),
                       ("ZeroPad2d", "constant"), ("SymmetricPad2d", "symmetric")):
        layer = getattr(nn, name)((1, 2, 0, 3))  # torch's order: left, right, top, bottom
        equal(layer(x), pp.pad(x, ((0, 3), (1, 2)), mode))
        equal(layer(x[0]), pp.pad(x, ((0, 3), (1, 2)), mode)[0])
        assert repr(layer) == repr(getattr(nn, name)(pp.Padding(((0, 3), (1, 2))))) == f"{name}((1, 2, 0, 3))"
        detached = getattr(nn, name)((1, 2, 0, 3), detach_padding=True)
        leaf = x.clone().requires_grad_()
        equal(torch.autograd.grad(detached(leaf).sum(), leaf)[0], torch.ones_like(x))
        assert repr(detached) == f"{name}((1, 2, 0, 3), detach_padding=True)"
    with pytest.raises(RuntimeError):
        nn.ReflectionPad1d(9)(data("1d"))  # as torch's
    equal(nn.ReflectionPad1d(9, backend="torch")(data("1d")), pp.pad(data("1d"), 9, "reflect"))


def test_lazy():
    torch.manual_seed(0)
    lazy = nn.LazyConv2d(6, 3, padding=((0, 1), (2, 0)), padding_mode="circular", detach_padding=True)
    assert isinstance(lazy, torch.nn.LazyConv2d)
    assert "padding=((0, 1), (2, 0))" in repr(lazy)
    found = lazy(data("2d"))
    assert type(lazy) is nn.Conv2d
    assert lazy.in_channels == 4
    assert lazy.detach_padding
    torch.testing.assert_close(found, by_torch(lazy, data("2d"), ((0, 1), (2, 0)), "circular"))
    for axes in ("1d", "2d", "3d"):
        found, expected = [], []
        for library, results in ((nn, found), (torch.nn, expected)):
            layer = build(library, f"LazyConv{axes}", (6, 3), {"padding": "same"})
            results.append(repr(layer))
            torch.manual_seed(0)  # it is initialised by its first input
            results += [layer(data(axes)), layer.state_dict(), repr(layer)]
        assert found[::3] == expected[::3]
        equal(found[1:3], expected[1:3])


def test_settings_can_change_afterwards():
    """Models set a layer's stride or padding after it was built; the next call does as it is told."""
    conv = build(nn, "Conv2d", (4, 6, 3), {"padding": 1})
    conv.padding = ((0, 1), (0, 2))
    torch.testing.assert_close(conv(data("2d")), by_torch(conv, data("2d"), conv.padding))
    conv.padding = 2
    torch.testing.assert_close(conv(data("2d")), by_torch(conv, data("2d"), ((2, 2), (2, 2))))


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d", "MaxPool2d", "AvgPool2d", "ReflectionPad2d"])
def test_backend(name):
    """On another engine, by keyword or by default, with gradients."""
    args = (4, 6, 3) if "Conv" in name else (3,) if "Pool" in name else (2,)
    x = data(name).requires_grad_()
    expected = build(torch.nn, name, args, {})(x)
    carried = build(nn, name, args, {"backend": "numpy"})
    assert repr(carried).endswith("backend=numpy)")
    torch.testing.assert_close(carried(x), expected)
    torch.testing.assert_close(torch.autograd.grad(carried(x).square().sum(), x),
                               torch.autograd.grad(expected.square().sum(), x))
    plain = build(nn, name, args, {})
    try:
        pp.set_default_backend("numpy")
        torch.testing.assert_close(plain(x), expected)
    finally:
        pp.set_default_backend(None)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("make, error, text", [
    (lambda: nn.Conv2d(3, 4, 3, padding=(1, 2, 3, 4)), pp.GeometryError, "Conv2d: padding=.*Say which"),
    (lambda: nn.Conv1d(3, 4, 3, padding=(1, 2)), pp.GeometryError, "Conv1d: padding=.*Say which"),
    (lambda: nn.Conv2d(3, 4, 3, padding=((1, 2),)), pp.GeometryError, "for 1 spatial axes, but there are 2"),
    (lambda: nn.Conv2d(3, 4, 3, padding="SAME"), pp.GeometryError, "the rules are valid, same, same_lower, causal"),
    (lambda: nn.Conv2d(3, 4, 3, padding=True), TypeError, "bool"),
    (lambda: nn.Conv2d(3, 4, 3, padding=1.0), TypeError, "must be an int"),
    (lambda: nn.Conv2d(3, 4, 3, padding_mode="wrap"), pp.GeometryError, "Conv2d: .*wrap is circular"),
    (lambda: nn.Conv2d(3, 4, 3, padding_mode=("zeros",)), pp.GeometryError, "has 1 modes"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), pp.GeometryError, "the modes are zeros, circular"),
    (lambda: nn.ConvTranspose2d(3, 4, 3, detach_padding=True), TypeError, "detach_padding"),
    (lambda: nn.Conv2d(3, 4), TypeError, "Conv2d: missing a required argument: 'kernel_size'"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "in_channels must be divisible by groups"),
    (lambda: nn.MaxPool2d(3, padding=(1, 2, 3, 4)), pp.GeometryError, "MaxPool2d: padding=.*Say which"),
    (lambda: nn.LPPool1d(2, 3, padding="full"), pp.GeometryError, "LPPool1d: padding='full' is no rule"),
    (lambda: nn.ReflectionPad2d((1, 2, 3)), pp.GeometryError, "ReflectionPad2d: Padding.from_torch needs pairs"),
    (lambda: nn.ZeroPad1d(pp.Padding(((1, 2), (3, 4)))), pp.GeometryError, "ZeroPad1d: .* for 2 spatial axes"),
    (lambda: nn.SymmetricPad2d("same"), TypeError, "SymmetricPad2d: "),
    (lambda: nn.Conv2d(4, 4, 3, padding=((0, 1), (0, 1)))(torch.ones(4, 5)), pp.GeometryError,
     r"Conv2d: input must have 4 axes \(N, C, \*spatial\), or 3 without batch, got 2"),
    (lambda: nn.Conv2d(4, 4, 3, padding="same_lower", backend="tpu")(data("2d")), ValueError, "tpu"),
    (lambda: nn.ConvTranspose2d(4, 4, 3, padding="same")(data("2d"), (3,)), pp.GeometryError,
     "output_size must have 2 or 4 entries"),
])
def test_errors(make, error, text):
    with pytest.raises(error, match=f"(?s){text}"):
        make()


# ---------------------------------------------------------------- what modules go through

LAYERS = {
    "conv": lambda: nn.Conv2d(4, 6, 3, 2, ((0, 1), (2, 0)), padding_mode="circular", detach_padding=True),
    "plain": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "rule": lambda: nn.Conv2d(4, 6, 3, 2, "same"),
    "transpose": lambda: nn.ConvTranspose2d(4, 6, 3, 2, ((0, 1), (2, 0))),
    "max": lambda: nn.MaxPool2d(3, 2, ((0, 1), (2, 0))),
    "avg": lambda: nn.AvgPool2d(3, 2, "same"),
    "lp": lambda: nn.LPPool2d(2, 3, padding=((0, 1), (1, 0))),
    "pad": lambda: nn.SymmetricPad2d((1, 2, 0, 3)),
    "detached": lambda: nn.CircularPad2d((1, 2, 0, 3), detach_padding=True),
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def saved(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@layers
@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), saved],
                         ids=("deepcopy", "copy", "pickle", "save"))
def test_copies(layer, again):
    layer = layer().eval()
    twin = again(layer)
    assert type(twin) is type(layer)
    assert repr(twin) == repr(layer)
    assert not twin.training
    equal(twin(data("2d")), layer(data("2d")))


@pytest.mark.parametrize("name", [n for n in vars(nn) if n[-2:] in ("1d", "2d", "3d") and not n.startswith("_")])
def test_classes_are_found_by_name(name):
    assert pickle.loads(pickle.dumps(getattr(nn, name))) is getattr(nn, name)


@layers
def test_export_and_compile(layer):
    layer = layer().eval()
    x = data("2d")
    exported = torch.export.export(layer, (x,))
    torch.testing.assert_close(exported.module()(x), layer(x))
    size = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: size},))
    more = torch.cat([x, x + 1])
    torch.testing.assert_close(exported.module()(more), layer(more))
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))


@layers
def test_functional_call(layer):
    layer = layer()
    weights = {name: value.detach() * 2 for name, value in layer.named_parameters()}
    twin = copy.deepcopy(layer)
    twin.load_state_dict(weights)
    equal(torch.func.functional_call(layer, weights, (data("2d"),)), twin(data("2d")))
    equal(torch.vmap(layer)(data("2d")[:, None]), layer(data("2d"))[:, None])


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_norms(norm):
    """Parametrised layers: a new subclass of ours with a computed weight."""
    torch.manual_seed(0)
    conv = getattr(torch.nn.utils.parametrizations, norm)(LAYERS["conv"]())
    assert isinstance(conv, nn.Conv2d)
    conv.eval()
    x = data("2d")
    torch.testing.assert_close(conv(x), by_torch(conv, x, ((0, 1), (2, 0)), "circular"))
    equal(copy.deepcopy(conv)(x), conv(x))
    conv(x).sum().backward()
    assert all(p.grad is not None for p in conv.parameters())


@layers
def test_dtype_and_device(layer):
    layer = layer().to(torch.float64)
    assert layer(data("2d", dtype=torch.float64)).dtype == torch.float64
    assert layer.to("meta")(data("2d", dtype=torch.float64).to("meta")).device.type == "meta"


@pytest.mark.parametrize("name", ["conv", "plain", "rule"])
def test_channels_last(name):
    layer = LAYERS[name]()
    x = data("2d")
    expected = layer(x)
    layer.to(memory_format=torch.channels_last)
    found = layer(x.to(memory_format=torch.channels_last))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected)


def test_a_subclass_has_its_own_constructor():
    class Stem(nn.Conv2d):
        def __init__(self, width):
            super().__init__(4, width, 3, padding=((0, 1), (0, 1)))

    assert list(inspect.signature(Stem).parameters) == ["width"]
    assert Stem(5)(data("2d")).shape == (2, 5, 7, 8)


def test_every_layer_is_tested():
    named = {n for n in vars(nn) if n[-2:] in ("1d", "2d", "3d") and not n.startswith("_")}
    extra = {f"{kind}{d}d" for kind, d in itertools.product(("LazyConv", "SymmetricPad"), (1, 2, 3))}
    assert named == {*NAMES, *extra, "CausalConv1d"}
