"""Bad input gives an error that says what is wrong with which value and what to write instead, or the right result."""

import gc
import math
import weakref

import numpy as np
import oracle
import pytest
from engines import ENGINES

import pyflux_pad as pp
from pyflux_pad import GeometryError

X = np.arange(2 * 4 * 5 * 6, dtype=np.float64).reshape(2, 4, 5, 6)
WEIGHT = np.linspace(-1, 1, 6 * 4 * 3 * 2).reshape(6, 4, 3, 2)
WEIGHT_T = np.linspace(-1, 1, 4 * 6 * 3 * 2).reshape(4, 6, 3, 2)
GRAD = np.ones((2, 6, 3, 5))


def refused(error, parts, function, *arguments, **options):
    """Assert that a call raises `error` with every one of `parts` in its message."""
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    missing = [part for part in parts if part.lower() not in message.lower()]
    assert not missing, f"the message lacks {missing}:\n{message}"


def every_function(parts, error, **options):
    """Assert that the four functions and `plan` refuse the same options alike, each by its own name."""
    calls = {
        "conv": (pp.conv, X, WEIGHT),
        "conv_transpose": (pp.conv_transpose, X, WEIGHT_T),
        "conv_input": (pp.conv_input, X.shape, WEIGHT, GRAD),
        "conv_weight": (pp.conv_weight, X, WEIGHT.shape, GRAD),
        "plan": (pp.plan, X.shape, WEIGHT.shape),
    }
    for name, call in calls.items():
        refused(error, (*parts, name), *call, **options)


# ---------------------------------------------------------------- padding


def test_flat_list_shows_the_three_readings():
    """ONNX, torch and Flux read four ints for two axes in three ways: none is guessed, each call is shown."""
    every_function(
        ("(1, 0, 2, 3)", "ONNX", "torch", "Flux",
         "Padding.from_onnx((1, 0, 2, 3)", "((1, 2), (0, 3))",
         "Padding.from_torch((1, 0, 2, 3)", "((2, 3), (1, 0))",
         "Padding.from_flux((1, 0, 2, 3)"),
        GeometryError, padding=(1, 0, 2, 3))


def test_flat_pair_in_one_dimension():
    """``(a, b)`` for one axis is refused like any flat list; ``((a, b),)`` is not."""
    x, weight = X[..., 0], WEIGHT[..., 0]
    refused(GeometryError, ("(2, 1)", "from_onnx", "from_torch", "from_flux"), pp.conv, x, weight, padding=(2, 1))
    refused(GeometryError, ("(2, 1)", "from_onnx"), pp.conv1d, x, weight, padding=[2, 1])
    np.testing.assert_allclose(
        pp.conv(x, weight, padding=((2, 1),)),
        oracle.conv(x, weight, padding=((2, 1),), stride=(1,), dilation=(1,)))


@pytest.mark.parametrize(("padding", "error", "parts"), [
    ((1, 2, 3), GeometryError, ("(1, 2, 3)", "2")),
    (((1, 2),), GeometryError, ("((1, 2),)", "are 2")),
    (((1, 2), (3, 4), (5, 6)), GeometryError, ("(5, 6)", "are 2")),
    (((1, 2), (3, 4, 5)), GeometryError, ("(3, 4, 5)", "(low, high)")),
    (((1, 2), 3), GeometryError, ("(1, 2)", "3", "pair")),
    ((), GeometryError, ("()", "2")),
    (pp.Padding(((1, 2),)), GeometryError, ("(1, 2)", "are 2")),
    ("SAME", GeometryError, ("'SAME'", "same", "same_lower", "causal", "valid")),
    ("full", GeometryError, ("'full'", "same")),
    ("1", GeometryError, ("'1'", "same")),
    (1.0, TypeError, ("1.0", "int")),
    ((1, 1.5), TypeError, ("1.5", "int")),
    (((1, 2), (0, 2.0)), TypeError, ("2.0", "int")),
    (math.nan, TypeError, ("nan", "int")),
    (((0, math.nan), (0, 0)), TypeError, ("nan", "int")),
    (True, TypeError, ("True", "bool")),
    (((True, 0), (0, 0)), TypeError, ("True", "bool")),
    (np.True_, TypeError, ("True", "bool")),
    (None, TypeError, ("None", "int")),
    ({1: 2}, TypeError, ("{1: 2}", "int")),
])
def test_padding(padding, error, parts):
    every_function(("padding", *parts), error, padding=padding)


@pytest.mark.parametrize("padding", [
    np.int64(1), [1, 1], np.array([1, 1]), [[1, 1], [1, 1]], np.array([[1, 1], [1, 1]]), ((1, 1), np.array([1, 1])),
    pp.Padding(((1, 1), (1, 1))), (np.int8(1), np.uint64(1)),
], ids=repr)
def test_padding_spellings(padding):
    """NumPy's ints and any sequence are as good as ints and tuples."""
    np.testing.assert_array_equal(pp.conv(X, WEIGHT, padding=padding), pp.conv(X, WEIGHT, padding=1))


# ---------------------------------------------------------------- stride, dilation, groups


@pytest.mark.parametrize("name", ["stride", "dilation"])
@pytest.mark.parametrize(("value", "error", "parts"), [
    (0, GeometryError, ("0", "at least 1")),
    ((1, 0), GeometryError, ("0", "at least 1", "axis 1")),
    (-1, GeometryError, ("-1", "at least 1")),
    ((1, 2, 3), GeometryError, ("(1, 2, 3)", "2")),
    ((1,), GeometryError, ("(1,)", "2")),
    (1.5, TypeError, ("1.5", "int")),
    (math.nan, TypeError, ("nan", "int")),
    (True, TypeError, ("True", "bool")),
    ("2", TypeError, ("'2'", "int")),
    (None, TypeError, ("None", "int")),
    (((1, 1), (1, 1)), TypeError, ("(1, 1)", "int")),
])
def test_stride_and_dilation(name, value, error, parts):
    every_function((name, *parts), error, **{name: value})


@pytest.mark.parametrize(("groups", "error", "parts"), [
    (0, GeometryError, ("0", "at least 1")),
    (-2, GeometryError, ("-2", "at least 1")),
    (2.0, TypeError, ("2.0", "int")),
    (True, TypeError, ("True", "bool")),
    ((1,), TypeError, ("(1,)", "int")),
    (math.nan, TypeError, ("nan", "int")),
])
def test_groups(groups, error, parts):
    every_function(("groups", *parts), error, groups=groups)


@pytest.mark.parametrize("flip", [1, 0, None, "yes"])
def test_flip_kernel(flip):
    every_function(("flip_kernel", repr(flip), "True or False"), TypeError, flip_kernel=flip)


def test_channels():
    """The message gives both counts and says what the weight wants."""
    refused(GeometryError, ("conv", "4", "3", str((6, 3, 3, 2)), str(X.shape)), pp.conv, X, WEIGHT[:, :3])
    refused(GeometryError, ("conv", "4", "groups", "8"), pp.conv, X, WEIGHT, groups=2)
    refused(GeometryError, ("groups", "6", "4", "divisible"), pp.conv, X, WEIGHT[:, :1], groups=4)
    refused(GeometryError, ("groups", "4", "3", "divisible"), pp.conv_transpose, X, WEIGHT_T, groups=3)
    refused(GeometryError, ("conv_transpose", "4", "6"), pp.conv_transpose, X, WEIGHT)


def test_kernel_larger_than_the_padded_input():
    """The message says which axis, and how much is missing."""
    refused(GeometryError, ("axis 0", "7", "5", "2 more"), pp.conv, X, np.ones((1, 4, 7, 1)))
    refused(GeometryError, ("axis 1", "9", "8", "(1, 1)", "1 more"), pp.conv, X, np.ones((1, 4, 1, 3)),
            padding=((0, 0), (1, 1)), dilation=(1, 4))
    refused(GeometryError, ("axis 0", "(-2, -3)"), pp.conv, X, WEIGHT, padding=((-2, -3), (0, 0)))
    refused(GeometryError, ("axis 1", "crop"), pp.conv_transpose, X, WEIGHT_T, padding=((0, 0), (4, 3)))


def test_zero_size_spatial_axes():
    refused(GeometryError, ("axis 0", "(2, 4, 0, 6)"), pp.conv, X[:, :, :0], WEIGHT)
    refused(GeometryError, ("0", "kernel"), pp.conv, X, WEIGHT[:, :, :0])
    # With enough padding there is a result, and it is that of zeros.
    np.testing.assert_array_equal(pp.conv(X[:, :, :0], WEIGHT, padding=((2, 1), (0, 0))), np.zeros((2, 6, 1, 5)))


def test_shapes_given_as_arguments():
    """`conv_input` and `conv_weight` are told a shape, and it must fit the gradient."""
    refused(GeometryError, ("conv_input", "(2, 6, 3, 5)", "(2, 6, 4, 5)"),
            pp.conv_input, (2, 4, 6, 6), WEIGHT, GRAD)
    refused(GeometryError, ("conv_weight", "(2, 6, 3, 5)", "(2, 6, 2, 5)"), pp.conv_weight, X, (6, 4, 4, 2), GRAD)
    refused(GeometryError, ("conv_input", "-1"), pp.conv_input, (2, 4, -1, 6), WEIGHT, GRAD)
    refused(TypeError, ("conv_input", "6.0"), pp.conv_input, (2, 4, 5, 6.0), WEIGHT, GRAD)
    refused(TypeError, ("conv_weight", "True"), pp.conv_weight, X, (6, 4, 3, True), GRAD)


@pytest.mark.parametrize(("options", "error", "parts"), [
    ({"output_padding": 2, "stride": 2}, GeometryError, ("output_padding", "2", "stride", "smaller")),
    ({"output_padding": -1}, GeometryError, ("output_padding", "-1")),
    ({"output_padding": (0, 1, 0), "stride": 2}, GeometryError, ("output_padding", "(0, 1, 0)", "2")),
    ({"output_padding": 0.5}, TypeError, ("output_padding", "0.5")),
    ({"output_size": (10,)}, GeometryError, ("output_size", "(10,)", "2")),
    ({"output_size": (0, 9)}, GeometryError, ("output_size", "0")),
    ({"output_size": (7.0, 9)}, TypeError, ("output_size", "7.0")),
    ({"padding": "causal"}, GeometryError, ("'causal'", "transposed")),
])
def test_output_of_a_transposed_convolution(options, error, parts):
    refused(error, ("conv_transpose", *parts), pp.conv_transpose, X, WEIGHT_T, **options)


def test_sizes_beyond_64_bits():
    """A geometry whose arrays cannot exist is refused by number, not by a crash in the engine."""
    huge = 2**62
    refused(GeometryError, ("64 bits",), pp.plan, (1, 1, 4), (1, 1, 1), padding=((huge, huge),))
    refused(GeometryError, ("64 bits",), pp.plan, (huge, 4, 8), (1, 4, 1))
    refused(GeometryError, ("64 bits",), pp.conv, X, WEIGHT, padding=2**80)
    refused(GeometryError, ("64 bits", "the output"), pp.conv_transpose, X, WEIGHT_T, stride=2**61)
    refused(GeometryError, ("dilation", "64 bits"), pp.conv, X, WEIGHT, dilation=2**80)


@pytest.mark.parametrize(("name", "value"), [
    ("stride", (2**62, 2**62)), ("stride", (2**70, 2**70)), ("dilation", (2**70, 2**70)),
    ("padding", ((-(2**70), 2**70), (0, 0))),
], ids=["stride 2**62", "stride 2**70", "dilation 2**70", "padding 2**70"])
def test_settings_beyond_64_bits(engine, name, value):
    """Huge settings can still have a small result: it is right, or refused in our words, not in an engine's."""
    plain = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}
    weight = WEIGHT[..., :1, :1]
    try:
        y = engine(pp.conv, X, weight, **{name: value})
    except GeometryError as error:
        assert "64 bits" in str(error)  # noqa: PT017
    else:
        np.testing.assert_allclose(y, oracle.conv(X, weight, **{**plain, name: value}), rtol=1e-12)


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize("x", [np.float64(3.0), np.ones(()), np.ones(3), np.ones((2, 3)), np.ones((1,) * 6)],
                         ids=("scalar", "0-d", "1-d", "2-d", "6-d"))
def test_wrong_ranks(x):
    """0-d to 6-d: the number of axes is said, and what was expected."""
    refused((GeometryError, TypeError), ("x",), pp.conv, x, WEIGHT)
    refused((GeometryError, TypeError), ("weight",), pp.conv, X, x)


def test_ranks_of_the_forms():
    """The 1d, 2d and 3d forms want their own rank, batched or not."""
    refused(GeometryError, ("conv2d", "(6, 4, 3)"), pp.conv2d, X, WEIGHT[..., 0])
    refused(GeometryError, ("conv2d", "5", "(1, 2, 4, 5, 6)"), pp.conv2d, X[None], WEIGHT)
    refused(GeometryError, ("conv1d", "(2, 4, 5, 6)"), pp.conv1d, X, WEIGHT[..., 0])
    refused(GeometryError, ("conv", "batch"), pp.conv, X[0], WEIGHT)


def test_bias():
    refused(GeometryError, ("bias", "(5,)", "6"), pp.conv, X, WEIGHT, np.ones(5))
    refused(GeometryError, ("bias", "(6, 1)"), pp.conv, X, WEIGHT, np.ones((6, 1)))
    refused(TypeError, ("bias", "float32", "float64"), pp.conv, X, WEIGHT, np.ones(6, np.float32))


def test_mixed_types(engine):
    """A mixture names both types; nothing is promoted."""
    for call in ((pp.conv, X, WEIGHT.astype(np.float32)),
                 (pp.conv_input, X.shape, WEIGHT.astype(np.float32), GRAD),
                 (pp.conv_weight, X, WEIGHT.shape, GRAD.astype(np.float32)),
                 (pp.conv_transpose, X, WEIGHT_T.astype(np.float32))):
        refused(TypeError, ("float64", "float32"), engine, *call)
    refused(TypeError, ("float64", "complex128"), engine, pp.conv, X, WEIGHT.astype(complex))


@pytest.mark.engine("torch")
def test_mixed_libraries():
    import torch

    for x, weight in ((torch.tensor(X), WEIGHT), (X, torch.tensor(WEIGHT))):
        refused(TypeError, ("numpy", "torch", "convert"), pp.conv, x, weight)
        refused(TypeError, ("numpy", "torch"), pp.conv_weight, x, WEIGHT.shape, weight)
    refused(TypeError, ("bias", "numpy", "torch"), pp.conv, X, WEIGHT, torch.ones(6))


class Subclass(np.ndarray):
    """What a library might derive from ndarray."""


@pytest.mark.parametrize("x", [
    np.ma.masked_array(X, X > 3), X.view(Subclass), X.tolist(), 1.0, None, "x", memoryview(b"x"), range(3),
], ids=("masked", "subclass", "list", "float", "None", "str", "memoryview", "range"))
def test_unknown_types(x):
    """What would lose its meaning, or have to be converted, is refused, and the conversion is shown."""
    refused(TypeError, ("x", type(x).__name__, "asarray"), pp.conv, x, WEIGHT)
    refused(TypeError, ("weight", type(x).__name__), pp.conv, X, x)


@pytest.mark.parametrize("dtype", ["bool", "datetime64[s]", "object", "U3"])
def test_types_without_arithmetic(dtype):
    x, weight = np.zeros(X.shape, dtype), np.zeros(WEIGHT.shape, dtype)
    refused(TypeError, ("conv", x.dtype.name.split("[")[0][:3]), pp.conv, x, weight)


ODD_ARRAYS = {
    "Fortran order": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "broadcast": lambda a: np.broadcast_to(a[:1, :1], a.shape),
    "misaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder()),
}
numpy_arrays = pytest.mark.parametrize("engine", [
    pytest.param(None, id="numpy"), pytest.param("torch", id="torch", marks=pytest.mark.engine("torch"))])


@numpy_arrays
@pytest.mark.parametrize("odd", ODD_ARRAYS)
def test_odd_memory(engine, odd):
    """Any strides, alignment and byte order give the same values, and come back in native order."""
    x, weight, grad = (ODD_ARRAYS[odd](a) for a in (X, WEIGHT, GRAD))
    plain_x, plain_weight, plain_grad = (np.array(a, np.float64, order="C") for a in (x, weight, grad))
    for found, expected in (
        (pp.conv(x, weight, backend=engine), pp.conv(plain_x, plain_weight)),
        (pp.conv_input(X.shape, weight, grad, backend=engine), pp.conv_input(X.shape, plain_weight, plain_grad)),
        (pp.conv_weight(x, WEIGHT.shape, grad, backend=engine), pp.conv_weight(plain_x, WEIGHT.shape, plain_grad)),
    ):
        assert found.dtype == np.float64
        assert found.dtype.isnative
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@numpy_arrays
def test_nothing_is_modified(engine):
    """Read-only arrays are enough: no input is ever written to."""
    bias = np.arange(6.0)
    given = [a.copy() for a in (X, WEIGHT, GRAD, bias, WEIGHT_T)]
    for a in given:
        a.flags.writeable = False
    x, weight, grad, b, weight_t = given
    options = {"padding": ((1, -1), (0, 2)), "stride": (1, 2), "backend": engine}
    y, pullback = pp.vjp(pp.conv, x, weight, b, **options)
    pullback(np.ones_like(y))
    pp.conv_transpose(x, weight_t, **options)
    pp.conv_input(x.shape, weight, grad, backend=engine)
    pp.conv_weight(x, weight.shape, grad, backend=engine)
    for a, original in zip(given, (X, WEIGHT, GRAD, bias, WEIGHT_T), strict=True):
        np.testing.assert_array_equal(a, original)


def test_no_array_is_kept_alive(engine):
    """Caches hold integers: after a call, and after its gradients, the operands can go."""
    seen, options = [], {"padding": ((0, 1), (2, 0)), "stride": (2, 1)}

    def watched(x, weight, **options):
        seen.extend(map(weakref.ref, (x, weight)))
        return pp.conv(x, weight, **options)

    grad = np.ones_like(engine(watched, X.copy(), WEIGHT.copy(), **options))
    if engine.tensors:
        engine.vjp(watched, X.copy(), WEIGHT.copy(), grad_output=grad, **options)
    else:
        x, weight = X.copy(), WEIGHT.copy()
        seen.extend(map(weakref.ref, (x, weight)))
        engine.vjp(pp.conv, x, weight, grad_output=grad, **options)
        del x, weight
    gc.collect()
    assert len(seen) == 4
    assert all(reference() is None for reference in seen)


# ---------------------------------------------------------------- empty arrays


EMPTY = {
    "no batch": ((0, 4, 5, 6), (6, 4, 3, 2)),
    "no input channels": ((2, 0, 5, 6), (6, 0, 3, 2)),
    "no output channels": ((2, 4, 5, 6), (0, 4, 3, 2)),
}


@pytest.mark.parametrize("which", EMPTY)
def test_empty(engine, which):
    """N = 0 and C_out = 0 give an empty result, C_in = 0 zeros plus the bias; gradients are empty or zero."""
    x_shape, weight_shape = EMPTY[which]
    x, weight, bias = np.ones(x_shape), np.ones(weight_shape), np.arange(1.0, weight_shape[0] + 1)
    grad = np.ones((x_shape[0], weight_shape[0], 4, 7))
    y, (dx, dw, db) = engine.vjp(pp.conv, x, weight, bias, grad_output=grad, padding=((0, 1), (2, 0)))
    np.testing.assert_array_equal(y, np.broadcast_to(bias[:, None, None], grad.shape))
    np.testing.assert_array_equal(dx, np.zeros(x_shape))
    np.testing.assert_array_equal(dw, np.zeros(weight_shape))
    np.testing.assert_array_equal(db, grad.sum((0, 2, 3)))


@pytest.mark.parametrize("which", EMPTY)
def test_empty_transposed(engine, which):
    (batch, channels, *_), (filters, *_) = EMPTY[which]
    x, weight = np.ones((batch, channels, 2, 3)), np.ones((channels, filters, 3, 2))
    bias, grad = np.arange(1.0, filters + 1), np.ones((batch, filters, 5, 3))
    y, (dx, dw, db) = engine.vjp(pp.conv_transpose, x, weight, bias, grad_output=grad, stride=2,
                                 padding=((0, 0), (2, 1)))
    np.testing.assert_array_equal(y, np.broadcast_to(bias[:, None, None], grad.shape))
    np.testing.assert_array_equal(dx, np.zeros(x.shape))
    np.testing.assert_array_equal(dw, np.zeros(weight.shape))
    np.testing.assert_array_equal(db, grad.sum((0, 2, 3)))


# ---------------------------------------------------------------- engines by name


def test_unknown_backend(monkeypatch):
    refused(ValueError, ("'jax'", "numpy", "torch"), pp.conv, X, WEIGHT, backend="jax")
    refused(TypeError, ("backend", "3"), pp.conv, X, WEIGHT, backend=3)
    refused(ValueError, ("'jax'", "numpy"), pp.set_default_backend, "jax")


def test_out_must_fit():
    """`out` is checked before anything is computed, and belongs to the NumPy engine."""
    refused((GeometryError, ValueError), ("out", "(2, 6, 3, 4)", "(2, 6, 3, 5)"), pp.conv, X, WEIGHT,
            out=np.empty((2, 6, 3, 4)))
    refused(TypeError, ("out", "float32", "float64"), pp.conv, X, WEIGHT, out=np.empty((2, 6, 3, 5), np.float32))
    locked = np.empty((2, 6, 3, 5))
    locked.flags.writeable = False
    refused(ValueError, ("out", "writable"), pp.conv, X, WEIGHT, out=locked)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e.tensors], ids=str)
def test_out_needs_numpy(engine):
    import torch

    x, weight, out = (torch.tensor(a) for a in (X, WEIGHT, GRAD))
    refused(TypeError, ("out", "leave it out"), pp.conv, x, weight, out=out, backend=engine.backend)
