"""Padding by a mode equals numpy.pad, its gradient is the transpose of that, and detached cells send none back.

The reference here is `numpy_pad`, axis by axis, and the dense matrix it makes of an identity; nothing of the package.
"""

import dataclasses
import json
from typing import Any

import cases
import numpy as np
import oracle
import pytest
from engines import ENGINES, TENSOR_ENGINES
from test_bad_input import refused
from test_golden import GOLDEN, Golden
from test_random import run

import pyflux_pad as pp
from pyflux_pad import GeometryError, Padding

NUMPY_NAMES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap",
               "symmetric": "symmetric"}
MODES = tuple(NUMPY_NAMES)
every_mode = pytest.mark.parametrize("mode", MODES)
# torch's forward mode loads torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
either = pytest.mark.parametrize("detach", [False, True], ids=("attached", "detached"))


# ---------------------------------------------------------------- the reference


def numpy_pad(x, padding, modes, value: complex = 0):
    """Crop the negative amounts, then let numpy.pad pad each of the last axes by its own mode."""
    first = x.ndim - len(padding)
    for axis, ((low, high), mode) in enumerate(zip(padding, modes, strict=True), first):
        stop = x.shape[axis] - max(-high, 0)
        x = x[(slice(None),) * axis + (slice(max(-low, 0), stop),)]
        width = [(0, 0)] * x.ndim
        width[axis] = (max(low, 0), max(high, 0))
        options: Any = {"mode": NUMPY_NAMES[mode], **({"constant_values": value} if mode == "constant" else {})}
        x = np.pad(x, width, **options)
    return x


def matrix(size, padding, modes):
    """Return the padding of one channel as a dense matrix (padded cells, cells)."""
    cells = int(np.prod(size))
    return numpy_pad(np.eye(cells).reshape(cells, *size), padding, modes).reshape(cells, -1).T


def transposed(grad, size, padding, modes):
    """Return the gradient by x of a padding."""
    rows = grad.reshape(*grad.shape[:2], -1)
    return (rows @ matrix(size, padding, modes)).reshape(*grad.shape[:2], *size)


# ---------------------------------------------------------------- random pads


@dataclasses.dataclass(frozen=True)
class PadCase:
    """One padding: sizes, pairs and modes, one per spatial axis, and what mode "constant" adds."""

    size: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    modes: tuple[str, ...]
    value: int
    seed: int

    def array(self, dtype):
        return cases.fill(np.random.default_rng(self.seed), (2, 2, *self.size), dtype, integers=True)

    @property
    def mode(self):
        """One mode where it is the same on every axis, to test that form too."""
        return self.modes[0] if len(set(self.modes)) == 1 else self.modes


def pad_cases(seed, count):
    """Return `count` random paddings, the same ones for the same seed."""
    generator = np.random.default_rng(seed)

    def integer(low, high):
        return int(generator.integers(low, high, endpoint=True))

    drawn = []
    for index in range(count):
        axes = (1, 2, 3)[integer(0, 2)]
        same = integer(0, 2) == 0
        modes = (MODES[integer(0, 4)],) * axes if same else tuple(MODES[integer(0, 4)] for _ in range(axes))
        size, padding = [], []
        for _ in range(axes):
            n = integer(1, 5)
            most = 3 * n + 1 if integer(0, 2) == 0 else 3
            pair = [integer(0, most), integer(0, most)]
            if integer(0, 3) == 0:
                pair[integer(0, 1)] = -integer(0, n - 1)
            size.append(n)
            padding.append(tuple(pair))
        drawn.append(PadCase(tuple(size), tuple(padding), modes, integer(-4, 4), seed * count + index))
    return drawn


CHUNK = 500
SEEDS = {"numpy": range(10), "torch": range(2), "numpy-under-torch": range(1), "julia": range(10)}
WORK = [pytest.param(engine, seed, id=f"{engine}-{seed}") for engine in ENGINES for seed in SEEDS.get(engine.id, ())]


def test_coverage(record_property):
    drawn = [case for seed in SEEDS["numpy"] for case in pad_cases(seed, CHUNK)]
    assert len(drawn) == 5000

    def share(check):
        return sum(map(check, drawn)) / len(drawn)

    def some(check):
        return share(lambda c: any(check(n, pair, m) for n, pair, m in zip(c.size, c.padding, c.modes, strict=True)))

    shares = {
        "lo != hi": some(lambda n, pair, mode: pair[0] != pair[1]),
        "a negative amount": some(lambda n, pair, mode: min(pair) < 0),
        "beyond n - 1": some(lambda n, pair, mode: max(pair) > n - 1),
        "beyond one period": some(lambda n, pair, mode: max(pair) > 2 * n),
        "modes that differ": share(lambda c: len(set(c.modes)) > 1),
        "2-D": share(lambda c: len(c.size) == 2),
        "3-D": share(lambda c: len(c.size) == 3),
        **{wanted: some(lambda n, pair, mode, wanted=wanted: mode == wanted and max(pair) > 0) for wanted in MODES},
    }
    record_property("coverage", "5000 pads: " + ", ".join(f"{name} {value:.0%}" for name, value in shares.items()))
    short = {name: value for name, value in shares.items() if value < cases.LEAST_COVERAGE}
    assert not short


@pytest.mark.parametrize("engine, seed", WORK)
def test_random(engine, seed):
    """Every pad equals numpy.pad to the last bit."""

    def check(engine, case, dtype):
        x = case.array(dtype)
        expected = numpy_pad(x, case.padding, case.modes, case.value)
        actual = engine(pp.pad, x, case.padding, case.mode, case.value)
        np.testing.assert_array_equal(actual, expected, strict=True)

    run(check, engine, pad_cases(seed, CHUNK), ("float64", "int64", "float32", "complex128", "int8")[seed % 5])


@either
def test_random_gradients(engine, detach):
    """`vjp` and autograd equal the transposed matrix; of detached cells only the cells of the input count."""

    def check(engine, case, dtype):
        x = case.array(dtype)
        expected = numpy_pad(x, case.padding, case.modes, case.value)
        grad = cases.fill(np.random.default_rng(case.seed + 1), expected.shape, dtype, integers=True)
        y, (dx,) = engine.vjp(pp.pad, x, grad_output=grad, padding=case.padding, mode=case.mode, value=case.value,
                              detach_padding=detach)
        np.testing.assert_array_equal(y, expected)
        modes = ("constant",) * len(case.size) if detach else case.modes
        np.testing.assert_array_equal(dx, transposed(grad, case.size, case.padding, modes))

    run(check, engine, pad_cases(77, 300), "complex128")


def test_result_is_never_the_input(engine):
    """Writing into the result does not reach x, also where nothing is added."""
    for padding in (0, ((-1, 0), (0, 0)), ((1, 0), (0, 2))):
        x = np.arange(24.0).reshape(1, 2, 3, 4)
        if engine.tensors:
            import torch

            given = torch.tensor(x)
            pp.pad(given, padding, "reflect", backend=engine.backend).fill_(9)
            assert (given.numpy() == x).all()
        else:
            given = x.copy()
            pp.pad(given, padding, "reflect")[...] = 9
            np.testing.assert_array_equal(given, x)


# ---------------------------------------------------------------- golden values


RECORDS = [r for r in json.loads((GOLDEN / "nnlib.json").read_text(encoding="utf-8"))["cases"] if r["op"] == "pad"]
GOLDEN_PADS = [Golden(record, np.load(GOLDEN / "nnlib.npz")) for record in RECORDS]


def test_every_golden_pad_is_here():
    assert len(GOLDEN_PADS) == 50
    assert {case.record["mode"] for case in GOLDEN_PADS} == set(MODES)


@pytest.mark.parametrize("case", GOLDEN_PADS, ids=str)
def test_nnlib(engine, case):
    record = case.record
    for padding in (record["padding"], Padding(record["padding"])):
        y = engine(pp.pad, case["x"], padding, record["mode"], record["value"])
        np.testing.assert_array_equal(y, case["y"], strict=True)
    modes = (record["mode"],) * (case["x"].ndim - 2)
    np.testing.assert_array_equal(numpy_pad(case["x"], record["padding"], modes, record["value"]), case["y"])


# ---------------------------------------------------------------- derivatives on torch


PADS = ((2, -1), (5, 1))


def torch_x(dtype, *shape):
    import torch

    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()


@every_mode
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
def test_gradcheck(engine, dtype, mode):
    import torch

    x = torch_x(getattr(torch, dtype), 1, 2, 3, 4)

    def function(x, **options):
        return pp.pad(x, PADS, (mode, "circular"), 0.5, backend=engine.backend, **options)

    assert torch.autograd.gradcheck(function, x, check_forward_ad=engine.backend is None)
    assert torch.autograd.gradgradcheck(function, x)
    # What detached cells send is by design not the derivative of what they show; the second derivative is that of the
    # first.
    assert torch.autograd.gradgradcheck(lambda x: function(x, detach_padding=True), x)
    if mode != "constant":
        assert not torch.autograd.gradcheck(lambda x: function(x, detach_padding=True), x, raise_exception=False)


@every_mode
@pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
def test_gradcheck_of_a_convolution(engine, mode):
    import torch

    x, weight = torch_x(torch.float64, 1, 2, 3, 4), torch_x(torch.float64, 2, 2, 2, 3)
    modes = ("zeros" if mode == "constant" else mode, "circular")

    def function(x, weight):
        return pp.conv(x, weight, stride=(1, 2), padding=PADS, padding_mode=modes, backend=engine.backend)

    assert torch.autograd.gradcheck(function, (x, weight))
    assert torch.autograd.gradgradcheck(function, (x, weight))


@every_mode
@pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
def test_detached_convolution_to_the_second_order(engine, mode):
    """Equal to a convolution of the padded image whose added cells are constants, in both orders."""
    import torch

    x, weight = torch_x(torch.float64, 1, 2, 3, 4), torch_x(torch.float64, 2, 2, 2, 3)
    modes = ("zeros" if mode == "constant" else mode, "circular")

    def ours(x, weight):
        return pp.conv(x, weight, padding=PADS, padding_mode=modes, detach_padding=True, backend=engine.backend)

    def interior(x, weight):
        inside = torch.nn.functional.pad(x, Padding(PADS).to_torch())
        padded = torch.from_numpy(numpy_pad(x.detach().numpy(), PADS, (mode, "circular")))
        return torch.nn.functional.conv2d(inside + (padded - inside).detach(), weight)

    for left, right in zip(both_orders(ours, x, weight), both_orders(interior, x, weight), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def both_orders(function, *leaves):
    """Return the value, the gradients of a curved loss, and the gradients of the squares of those."""
    import torch

    y = function(*leaves)
    first = torch.autograd.grad((y**3).sum(), leaves, create_graph=True)
    second = torch.autograd.grad([(g**2).sum() for g in first], leaves)
    return y, *first, *second


# ---------------------------------------------------------------- the detach example


def rings(corner, edge, inside):
    """Return a 6x6 image by the place of the pixel."""
    image = np.full((6, 6), inside, dtype=np.float64)
    image[[0, -1]] = image[:, [0, -1]] = edge
    image[[0, 0, -1, -1], [0, -1, 0, -1]] = corner
    return image


EXAMPLE = pytest.mark.parametrize("kernel, detach, expected", [
    (1, False, rings(4, 2, 1)),
    (1, True, rings(1, 1, 1)),
    (3, False, rings(9, 9, 9)),
    (3, True, rings(4, 6, 9)),
], ids=("1x1", "1x1 detached", "3x3", "3x3 detached"))


@EXAMPLE
def test_detach_example(engine, kernel, detach, expected):
    x, weight = np.zeros((1, 1, 6, 6)), np.ones((1, 1, kernel, kernel))
    size = 9 - kernel
    y, (dx, _) = engine.vjp(pp.conv, x, weight, grad_output=np.ones((1, 1, size, size)), padding=1,
                            padding_mode="circular", detach_padding=detach)
    np.testing.assert_array_equal(y, np.zeros((1, 1, size, size)))
    np.testing.assert_array_equal(dx, expected[None, None])
    # The same in two steps, and in the 2d form without a batch.
    _, (dx,) = engine.vjp(pp.pad, x, grad_output=engine(pp.conv_input, (1, 1, 8, 8), weight, y + 1), padding=1,
                          mode="circular", detach_padding=detach)
    np.testing.assert_array_equal(dx, expected[None, None])
    _, (dx, _) = engine.vjp(pp.conv2d, x[0], weight, grad_output=y[0] + 1, padding=1,
                            padding_mode=("circular", "circular"), detach_padding=detach)
    np.testing.assert_array_equal(dx, expected[None])


def test_detached_cells_take_part_in_the_weight_gradient(engine):
    """The gradient by weight is the same with and without: it sees the copies."""
    x, weight = np.arange(36.0).reshape(1, 1, 6, 6), np.ones((1, 1, 3, 3))
    arguments = {"padding": 1, "padding_mode": "circular", "grad_output": np.arange(36.0).reshape(1, 1, 6, 6)}
    (y, (_, dw)), (y_detached, (_, dw_detached)) = (
        engine.vjp(pp.conv, x, weight, detach_padding=detach, **arguments) for detach in (False, True))
    np.testing.assert_array_equal(y, y_detached)
    np.testing.assert_array_equal(dw, dw_detached)
    padded = numpy_pad(x, ((1, 1), (1, 1)), ("circular",) * 2)
    np.testing.assert_array_equal(dw, oracle.conv_weight(padded, weight.shape, arguments["grad_output"], **PLAIN))


@EXAMPLE
@pytest.mark.parametrize("way", ["compile", "vmap", "compiled vmap"])
@pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
def test_detach_example_transformed(engine, way, kernel, detach, expected):
    import torch

    weight = torch.ones(1, 1, kernel, kernel, dtype=torch.float64)

    def function(x):
        y = pp.conv(x, weight, padding=1, padding_mode="circular", detach_padding=detach, backend=engine.backend)
        return y.sum()

    x = torch.zeros(3, 1, 1, 6, 6, dtype=torch.float64)
    if way == "compile":
        torch._dynamo.reset()
        leaf = x[0].requires_grad_()
        (found,) = torch.autograd.grad(torch.compile(function, backend="aot_eager", fullgraph=True)(leaf), leaf)
        np.testing.assert_array_equal(found.numpy(), expected[None, None])
        return
    gradient = torch.func.vmap(torch.func.grad(function))
    if way == "compiled vmap":
        torch._dynamo.reset()
        gradient = torch.compile(gradient, backend="aot_eager")
    np.testing.assert_array_equal(gradient(x).numpy(), np.broadcast_to(expected, x.shape))


# ---------------------------------------------------------------- convolutions with a padding mode


PLAIN = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "flip_kernel": False}


def with_modes(case, seed, choices):
    """Draw a mode per axis for a convolution; an axis cropped to nothing can only be padded by zeros."""
    generator = np.random.default_rng(seed)
    return tuple(
        "zeros" if n + min(low, 0) + min(high, 0) < 1 else str(generator.choice(choices))
        for n, (low, high) in zip(case.size, case.padding, strict=True))


def as_pad(modes):
    return tuple("constant" if mode == "zeros" else mode for mode in modes)


def spelled(case):
    """Return what to tell the oracle about the convolution of an already padded array."""
    return {**case.arguments, "padding": ((0, 0),) * len(case.size)}


@either
@pytest.mark.parametrize("seed", range(3))
def test_conv_is_pad_then_conv(engine, seed, detach):
    """Result and gradients with a mode per axis: numpy.pad, then the loops."""

    def check(engine, case, dtype):
        x, weight, bias, grad = cases.arrays(case, dtype, integers=True)
        modes = with_modes(case, len(repr(case)) + seed, ("zeros", *MODES[1:]))
        padded = numpy_pad(x, case.padding, as_pad(modes))
        y, (dx, dw, db) = engine.vjp(pp.conv, x, weight, bias, grad_output=grad, **case.arguments,
                                     padding_mode=modes, detach_padding=detach)
        expected = oracle.conv(padded, weight, **spelled(case)) + bias.reshape(-1, *(1,) * len(case.size))
        np.testing.assert_array_equal(y, expected)
        wide = oracle.conv_input(padded.shape, weight.conj(), grad, **spelled(case))
        back = ("constant",) * len(modes) if detach else as_pad(modes)
        np.testing.assert_array_equal(dx, transposed(wide, case.size, case.padding, back))
        np.testing.assert_array_equal(dw, oracle.conv_weight(padded.conj(), weight.shape, grad, **spelled(case)))
        np.testing.assert_array_equal(db, grad.sum((0, *range(2, grad.ndim))))

    run(check, engine, cases.random_cases(900 + seed, 60), ("float64", "complex128")[seed % 2])


@pytest.mark.parametrize("rule", ["same", "same_lower", "causal", "valid"])
def test_rules_with_a_mode(engine, rule):
    """A rule gives the amounts, the mode what they show."""
    generator = np.random.default_rng(3)
    x = cases.fill(generator, (2, 2, 6, 7), "float64", integers=True)
    weight = cases.fill(generator, (3, 2, 4, 3), "float64", integers=True)
    pairs = {"same": ((1, 2), (1, 1)), "same_lower": ((2, 1), (1, 1)), "causal": ((3, 0), (0, 0)),
             "valid": ((0, 0), (0, 0))}[rule]
    for modes in (("circular", "replicate"), ("zeros", "reflect")):
        y = engine(pp.conv, x, weight, padding=rule, padding_mode=modes)
        padded = numpy_pad(x, pairs, as_pad(modes))
        np.testing.assert_array_equal(y, oracle.conv(padded, weight, **PLAIN))


@pytest.mark.parametrize("seed", range(3))
def test_circular_transpose_is_the_adjoint(engine, seed):
    """`conv_transpose` with circular padding undoes the shapes of `conv` and is its transpose, gradients included."""

    def check(engine, case, dtype):
        _, weight, _, grad = cases.arrays(case, dtype, integers=True)
        modes = with_modes(case, len(repr(case)) + seed, ("zeros", "circular", "circular"))
        options = {**case.arguments, "padding_mode": modes, "output_size": case.size}
        dx = cases.fill(np.random.default_rng(seed), case.x_shape, dtype, integers=True)
        y, (by_grad, by_weight) = engine.vjp(pp.conv_transpose, grad, weight, grad_output=dx, **options)
        padded = numpy_pad(dx, case.padding, as_pad(modes))
        wide = oracle.conv_input(padded.shape, weight, grad, **spelled(case))
        np.testing.assert_array_equal(y, transposed(wide, case.size, case.padding, as_pad(modes)))
        np.testing.assert_array_equal(by_grad, oracle.conv(padded, weight.conj(), **spelled(case)))
        np.testing.assert_array_equal(by_weight, oracle.conv_weight(padded, weight.shape, grad.conj(), **spelled(case)))
        # The identity itself, on the package's own two functions.
        forward = engine(pp.conv, dx, weight.conj(), **case.arguments, padding_mode=modes)
        assert np.vdot(forward, grad) == np.vdot(dx, y)

    run(check, engine, cases.random_cases(950 + seed, 60), ("float64", "complex128")[seed % 2])


# ---------------------------------------------------------------- bad input


X = np.arange(12.0).reshape(1, 1, 3, 4)


def test_reflect_of_one_cell_repeats(engine):
    x = np.array([[[7.0]]])
    np.testing.assert_array_equal(engine(pp.pad, x, ((2, 3),), "reflect"), np.full((1, 1, 6), 7.0))


def test_empty_axis(engine):
    """Only constants can pad an axis without cells."""
    x = np.zeros((1, 2, 0, 3))
    y = engine(pp.pad, x, ((1, 2), (0, 0)), "constant", 5.0)
    np.testing.assert_array_equal(y, np.full((1, 2, 3, 3), 5.0))
    for mode in MODES[1:]:
        refused(GeometryError, ("pad", "spatial axis 0", "length 0", "(1, 2)", repr(mode), "only mode 'constant'"),
                engine, pp.pad, x, ((1, 2), (0, 0)), mode)


@every_mode
def test_cutting_everything(engine, mode):
    refused(GeometryError, ("pad", "spatial axis 0", "length 3", "(-1, -2)"), engine, pp.pad, X, ((-1, -2), (0, 0)),
            mode)
    refused(GeometryError, ("pad", "cuts 5 cells", "spatial axis 1", "has 4"), engine, pp.pad, X, ((0, 0), (-5, 9)),
            mode)


@pytest.mark.parametrize("theirs, ours", [
    ("edge", "replicate"), ("wrap", "circular"), ("periodic", "circular"), ("repeat", "replicate"),
    ("zeros", "constant"), ("mirror", "reflect"), ("REFLECT", None), ("", None),
])
def test_unknown_mode(engine, theirs, ours):
    """The error lists the modes and what the other frameworks call them."""
    refused(GeometryError, (f"mode={theirs!r}", *MODES, *([f"{theirs} is {ours}"] if ours else [])),
            engine, pp.pad, X, 1, theirs)
    refused(GeometryError, (f"mode={theirs!r}", *MODES), engine, pp.pad, X, 1, ("circular", theirs))


def test_unknown_padding_mode(engine):
    weight = np.ones((1, 1, 2, 2))
    refused(GeometryError, ("conv: padding_mode='wrap'", "zeros", *MODES[1:], "wrap is circular"),
            engine, pp.conv, X, weight, padding=1, padding_mode="wrap")
    refused(GeometryError, ("conv: padding_mode='constant'", "zeros"),
            engine, pp.conv, X, weight, padding=1, padding_mode="constant")
    refused(GeometryError, ("conv_transpose: padding_mode='reflect'", "zeros", "circular"),
            engine, pp.conv_transpose, X, weight, padding=1, padding_mode="reflect")


@pytest.mark.parametrize("modes", [("circular",), ("circular",) * 3, ()])
def test_wrong_number_of_modes(engine, modes):
    refused(GeometryError, ("pad: mode", f"{len(modes)} modes", "2 spatial axes"), engine, pp.pad, X, 1, modes)
    for function in (pp.conv, pp.conv_transpose):
        refused(GeometryError, ("padding_mode", f"{len(modes)} modes", "2 spatial axes"),
                engine, function, X, np.ones((1, 1, 2, 2)), padding=1, padding_mode=modes)


@pytest.mark.parametrize("mode", [None, 3, True])
def test_mode_of_another_type(mode):
    refused(TypeError, ("pad: mode", repr(mode)), pp.pad, X, 1, mode)


def test_detached_zeros(engine):
    """Allowed, and without effect: zeros have no one to send a gradient to."""
    weight = np.ones((1, 1, 2, 2))
    results = [engine.vjp(pp.conv, X, weight, grad_output=np.ones((1, 1, 4, 5)), padding=1, detach_padding=detach)
               for detach in (False, True)]
    for left, right in zip((results[0][0], *results[0][1]), (results[1][0], *results[1][1]), strict=True):
        np.testing.assert_array_equal(left, right)
    plain, detached = (engine.vjp(pp.pad, X, grad_output=np.ones((1, 1, 5, 6)), padding=1, detach_padding=detach)
                       for detach in (False, True))
    np.testing.assert_array_equal(plain[1][0], detached[1][0])


@pytest.mark.parametrize("padding, parts", [
    ((1, 2), ("(1, 2)", "numpy.pad", "F.pad", "from_torch")),
    ((1, 2, 3, 4), ("(1, 2, 3, 4)", "bare ints", "from_torch")),
    ("same", ("padding='same'", "rule", "kernel")),
    (((1, 2),), ("1 spatial axes", "there are 2")),
    (((1, 2),) * 3, ("3 spatial axes", "there are 2")),
])
def test_amounts_refused(engine, padding, parts):
    refused(GeometryError, ("pad:", *parts), engine, pp.pad, X, padding)


@pytest.mark.parametrize("padding", [True, 1.5, None, ((1, 1.5), (0, 0)), ((True, 0), (0, 0))])
def test_amounts_that_are_no_ints(padding):
    refused(TypeError, ("pad:", "padding"), pp.pad, X, padding)


def test_value_of_another_dtype(engine):
    refused(TypeError, ("pad", "value=1j", "complex", "float64"), engine, pp.pad, X, 1, "constant", 1j)
    refused(TypeError, ("pad", "value=0.5", "integer", "int64"), engine, pp.pad, X.astype("int64"), 1, "constant", 0.5)
    y = engine(pp.pad, X + 0j, 1, "constant", 1j)
    np.testing.assert_array_equal(y, numpy_pad(X + 0j, ((1, 1),) * 2, ("constant",) * 2, 1j))


def test_wrong_rank(engine):
    for shape in ((2, 3), (1, 1, 2, 2, 2, 2)):
        refused(GeometryError, ("pad", "1 to 3 spatial axes", str(shape)), engine, pp.pad, np.zeros(shape), 1)
