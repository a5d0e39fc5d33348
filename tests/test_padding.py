"""Padding: every dialect in and out, the rules by hand and by definition, and a value that cannot change."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyflux_pad import GeometryError, Padding

ENTRIES = st.integers(-5, 9)
PADDINGS = st.lists(st.tuples(ENTRIES, ENTRIES), min_size=1, max_size=3).map(lambda pairs: Padding(tuple(pairs)))

# One padding of two axes in every notation: one row above, two below, nothing on the left, three on the right.
TWO_AXES = Padding(((1, 2), (0, 3)))
# And of three, with six different numbers: depth (1, 2), height (3, 4), width (5, 6).
THREE_AXES = Padding(((1, 2), (3, 4), (5, 6)))


# ---------------------------------------------------------------- dialects


@pytest.mark.parametrize(("padding", "onnx", "torch", "tf", "jax"), [
    (Padding(((4, 0),)), (4, 0), (4, 0), ((0, 0), (4, 0), (0, 0)), ((4, 0),)),
    (TWO_AXES, (1, 0, 2, 3), (0, 3, 1, 2), ((0, 0), (1, 2), (0, 3), (0, 0)), ((1, 2), (0, 3))),
    (THREE_AXES, (1, 3, 5, 2, 4, 6), (5, 6, 3, 4, 1, 2), ((0, 0), (1, 2), (3, 4), (5, 6), (0, 0)),
     ((1, 2), (3, 4), (5, 6))),
], ids=("1d", "2d", "3d"))
def test_dialects_by_hand(padding, onnx, torch, tf, jax):
    axes = len(padding)
    assert padding.to_onnx() == onnx
    assert Padding.from_onnx(onnx) == padding
    assert padding.to_torch() == torch
    assert Padding.from_torch(torch, axes) == padding
    assert padding.to_flux() == torch, "Flux and F.pad share their order: width first"
    assert Padding.from_flux(torch, axes) == padding
    assert padding.to_tf() == tf
    assert Padding.from_tf(tf, ("NWC", "NHWC", "NDHWC")[axes - 1]) == padding
    assert padding.to_jax() == jax
    assert Padding(jax) == padding


@given(PADDINGS)
def test_round_trips(padding):
    axes = len(padding)
    assert Padding.from_onnx(padding.to_onnx()) == padding
    assert Padding.from_torch(padding.to_torch(), axes) == padding
    assert Padding.from_flux(padding.to_flux(), axes) == padding
    assert Padding(padding.to_jax()) == padding
    for data_format in (("NWC", "NCW"), ("NHWC", "NCHW"), ("NDHWC", "NCDHW"))[axes - 1]:
        assert Padding.from_tf(padding.to_tf(data_format), data_format) == padding


@given(PADDINGS)
def test_torch_pad_agrees(padding):
    """`F.pad` with what `to_torch` writes pads the axes and sides that the pairs say."""
    torch = pytest.importorskip("torch")
    sizes = [10 + axis for axis in range(len(padding))]
    padded = torch.nn.functional.pad(torch.ones(sizes), padding.to_torch())
    expected = np.ones(sizes)
    for axis, (low, high) in enumerate(padding):
        cells = slice(max(-low, 0), expected.shape[axis] - max(-high, 0))
        expected = np.take(expected, range(*cells.indices(expected.shape[axis])), axis)
        grow = [(0, 0)] * expected.ndim
        grow[axis] = (max(low, 0), max(high, 0))
        expected = np.pad(expected, grow)
    np.testing.assert_array_equal(padded, expected)


def test_torch_may_cover_fewer_axes():
    assert Padding.from_torch((1, 2), 2) == Padding(((0, 0), (1, 2)))
    assert Padding.from_torch((1, 2, 3, 4), 3) == Padding(((0, 0), (3, 4), (1, 2)))
    assert Padding.from_torch((), 2) == Padding(((0, 0), (0, 0)))


def test_flux_reads_two_ints_by_the_number_of_axes():
    """NNlib: ``(a, b)`` is low and high in 1-D, width and height on both sides in 2-D."""
    assert Padding.from_flux((2, 0), 1) == Padding(((2, 0),))
    assert Padding.from_flux((2, 1), 2) == Padding(((1, 1), (2, 2)))
    assert Padding.from_flux((3, 2, 1), 3) == Padding(((1, 1), (2, 2), (3, 3)))
    assert Padding.from_flux(2, 2) == Padding(((2, 2), (2, 2)))


def test_caffe2_is_top_left_bottom_right():
    assert Padding.from_caffe2((1, 0, 2, 3)) == TWO_AXES


def test_tensorflow_channels_first():
    assert TWO_AXES.to_tf("NCHW") == ((0, 0), (0, 0), (1, 2), (0, 3))
    assert Padding.from_tf([[0, 0], [0, 0], [1, 2], [0, 3]], "NCHW") == TWO_AXES


# ---------------------------------------------------------------- "same", by hand

# An 8 x 9 input under a 3 x 4 kernel of stride 2: five rules give a 4 x 5 output and four different paddings.
WORKED = {"input_size": (8, 9), "kernel_size": (3, 4), "stride": 2}


@pytest.mark.parametrize(("rule", "pairs"), [
    ("tf", ((0, 1), (1, 2))),
    ("jax", ((0, 1), (1, 2))),
    ("onnx_upper", ((0, 1), (1, 2))),
    ("onnx_lower", ((1, 0), (2, 1))),
    ("flux", ((1, 1), (2, 1))),
])
def test_same_worked_example(rule, pairs):
    assert Padding.same(rule, **WORKED) == Padding(pairs)


def test_same_of_torch_needs_stride_1():
    assert Padding.same("torch", (8, 9), (3, 4)) == Padding(((1, 1), (1, 2)))
    with pytest.raises(GeometryError, match=r"stride=2.*'tf'"):
        Padding.same("torch", **WORKED)


@pytest.mark.parametrize(("rule", "n", "k", "s", "d", "pair"), [
    ("tf", 5, 1, 3, 1, (0, 0)),  # kernel shorter than the stride: the total would be negative
    ("tf", 2, 7, 1, 1, (3, 3)),  # input shorter than the kernel
    ("tf", 6, 2, 1, 3, (1, 2)),  # dilation counts
    ("tf", 6, 3, 2, 1, (0, 1)),  # the input size counts: 7 gives (1, 1)
    ("tf", 7, 3, 2, 1, (1, 1)),
    ("onnx_lower", 6, 2, 1, 3, (2, 1)),
    ("flux", 6, 3, 2, 1, (1, 1)),  # whatever the input size
    ("flux", 6, 2, 1, 3, (2, 1)),  # the odd cell at the start
    ("torch", 6, 2, 1, 3, (1, 2)),
])
def test_same_by_hand(rule, n, k, s, d, pair):
    assert Padding.same(rule, n, k, s, d) == Padding((pair,))


SIZES = st.integers(1, 12)
SMALL = st.integers(1, 5)


@given(SIZES, SMALL, SMALL, SMALL)
def test_same_by_definition(n, k, s, d):
    """The least padding with ceil(n / s) windows, as even as can be, the odd cell at the end (`upper`) or the start."""
    ke, out = d * (k - 1) + 1, -(-n // s)
    ((low, high),) = Padding.same("tf", n, k, s, d)
    assert 0 <= low <= high <= low + 1
    assert (n + low + high - ke) // s + 1 == out
    if low + high:
        assert (n + low + high - 1 - ke) // s + 1 < out
    assert Padding.same("onnx_lower", n, k, s, d) == Padding(((high, low),))
    assert Padding.same("jax", n, k, s, d) == Padding.same("onnx_upper", n, k, s, d) == Padding(((low, high),))


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's warning that an uneven padding costs a copy
@given(SIZES, SMALL, SMALL)
def test_same_of_torch_is_torchs(n, k, d):
    torch = pytest.importorskip("torch")
    x, weight = torch.arange(1.0, n + 1)[None, None], torch.arange(1.0, k + 1)[None, None]
    padded = torch.nn.functional.pad(x, Padding.same("torch", n, k, 1, d).to_torch())
    expected = torch.nn.functional.conv1d(padded, weight, dilation=d)
    np.testing.assert_array_equal(torch.nn.functional.conv1d(x, weight, padding="same", dilation=d), expected)


def test_causal():
    assert Padding.causal(3) == Padding(((2, 0),))
    assert Padding.causal(3, 4) == Padding(((8, 0),))
    assert Padding.causal((3, 5), 2) == Padding(((4, 0), (0, 0))), "only the first axis is time"


# ---------------------------------------------------------------- ceil mode of a max pool


@pytest.mark.parametrize(("rule", "n", "k", "s", "padding", "pair"), [
    # The worked example, axis by axis, without and with k // 2 of padding.
    ("torch", 8, 3, 2, 0, (0, 1)),
    ("torch", 9, 4, 2, 0, (0, 1)),
    ("caffe", 8, 3, 2, 0, (0, 1)),
    ("mxnet", 8, 3, 2, 0, (0, 1)),
    ("caffe2", 8, 3, 2, 0, (0, 2)),  # the exporter adds up to s - 1 cells more than the last window needs
    ("torch", 8, 3, 2, 1, (1, 2)),
    ("torch", 9, 4, 2, 2, (2, 3)),
    # GoogLeNet's first pool: 112 -> 56.
    ("caffe2", 112, 3, 2, 0, (0, 2)),
    ("torch", 112, 3, 2, 0, (0, 1)),
    # No remainder: nothing to add, and declared pads stay.
    ("torch", 7, 3, 2, 0, (0, 0)),
    ("torch", 7, 3, 2, ((1, 1),), (1, 1)),
    # A window that would start beyond the input: torch drops it, Caffe only where there is padding, MXNet never.
    ("torch", 2, 1, 2, 0, (0, 0)),
    ("caffe", 2, 1, 2, 0, (0, 1)),
    ("mxnet", 2, 1, 2, 0, (0, 1)),
    ("caffe", 2, 2, 3, 1, (1, 1)),
    ("mxnet", 2, 2, 3, 1, (1, 2)),
])
def test_ceil_by_hand(rule, n, k, s, padding, pair):
    assert Padding.ceil(rule, n, k, s, padding) == Padding((pair,))


def test_ceil_is_torchs_max_pool():
    """An explicit pad of -inf without ceil mode pools as torch does with it."""
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    for n, k, s, d in itertools.product(range(1, 9), range(1, 5), range(1, 4), (1, 2)):
        for pad in range(k // 2 + 1):
            if n + 2 * pad < d * (k - 1) + 1:
                continue
            x = torch.arange(1.0, n + 1)[None]
            pads = Padding.ceil("torch", n, k, s, pad, d)
            low, high = pads[0]
            ours = F.max_pool1d(F.pad(x, (low, high), value=-torch.inf), k, s, dilation=d)
            theirs = F.max_pool1d(x, k, s, padding=pad, dilation=d, ceil_mode=True)
            assert torch.equal(ours, theirs), f"n={n} k={k} s={s} d={d} pad={pad}: {pads}"


# ---------------------------------------------------------------- the value


def test_a_value():
    """Equal by content, hashable, of plain ints, iterable in order, and printed as it is written."""
    from_lists = UNTYPED([[np.int64(1), 2], (0, np.int32(3))])
    assert from_lists == TWO_AXES
    assert hash(from_lists) == hash(TWO_AXES)
    assert {from_lists: 1}[TWO_AXES] == 1
    assert all(type(entry) is int for pair in from_lists for entry in pair)
    assert list(TWO_AXES) == [(1, 2), (0, 3)]
    assert (len(TWO_AXES), TWO_AXES[1]) == (2, (0, 3))
    assert eval(repr(TWO_AXES)) == TWO_AXES
    assert Padding(((1, 2), (3, 0))) != TWO_AXES
    assert Padding(((2, 1), (3, 0))) != TWO_AXES


def test_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TWO_AXES.pairs = ((0, 0),)  # pyright: ignore[reportAttributeAccessIssue]
    source = [[1, 2], [0, 3]]
    padding = UNTYPED(source)
    source[0][0] = 9
    assert padding == TWO_AXES, "a later change of the list it was made from must not reach it"


def test_symmetric():
    assert Padding(((1, 1), (2, 2))).is_symmetric
    assert not TWO_AXES.is_symmetric


# ---------------------------------------------------------------- errors name the value and the remedy

UNTYPED: Any = Padding
"""A type checker would refuse these calls before they are made."""


@pytest.mark.parametrize(("call", "error", "parts"), [
    (lambda: UNTYPED((1, 2)), GeometryError, ("1", "pair", "from_onnx")),
    (lambda: UNTYPED(((1, 2, 3),)), GeometryError, ("(1, 2, 3)", "pair")),
    (lambda: UNTYPED(3), TypeError, ("3", "pair")),
    (lambda: UNTYPED("same"), TypeError, ("'same'", "pair")),
    (lambda: UNTYPED(((1, 2.0),)), TypeError, ("2.0", "float")),
    (lambda: UNTYPED(((True, 0),)), TypeError, ("True", "bool")),
    (lambda: UNTYPED.from_onnx((1, 2, 3)), GeometryError, ("(1, 2, 3)", "begins")),
    (lambda: UNTYPED.from_torch((1, 2, 3), 2), GeometryError, ("(1, 2, 3)", "pairs")),
    (lambda: UNTYPED.from_torch((1, 2, 3, 4), 1), GeometryError, ("(1, 2, 3, 4)", "1")),
    (lambda: UNTYPED.from_flux((1, 2, 3), 2), GeometryError, ("(1, 2, 3)", "2 or 4")),
    (lambda: UNTYPED.from_flux("same", 2), TypeError, ("'same'",)),
    (lambda: UNTYPED.from_caffe2((1, 2)), GeometryError, ("(1, 2)", "top")),
    (lambda: UNTYPED.from_tf([[0, 0], [1, 1], [0, 0], [0, 1]], "NHWC"), GeometryError, ("'NHWC'", "C", "(0, 1)")),
    (lambda: UNTYPED.from_tf([[0, 0], [1, 1]], "NHWC"), GeometryError, ("'NHWC'", "pair")),
    (lambda: UNTYPED.from_tf([[0, 0]] * 4, "HWCN"), GeometryError, ("'HWCN'", "NHWC")),
    (lambda: TWO_AXES.to_tf("NWC"), GeometryError, ("'NWC'", "2")),
    (lambda: UNTYPED.same("SAME", 5, 3), GeometryError, ("'SAME'", "onnx_upper")),
    (lambda: UNTYPED.same("tf", 5, 0), GeometryError, ("kernel_size", "0")),
    (lambda: UNTYPED.same("tf", (5, 6), (3, 3, 3)), GeometryError, ("(5, 6)", "(3, 3, 3)")),
    (lambda: UNTYPED.same("tf", 5, 3, stride=1.5), TypeError, ("stride", "1.5")),
    (lambda: UNTYPED.ceil("keras", 5, 3, 2), GeometryError, ("'keras'", "mxnet")),
    (lambda: UNTYPED.ceil("torch", 2, 5, 2), GeometryError, ("5", "larger")),
])
def test_errors(call, error, parts):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert all(part in message for part in parts), f"{message!r} lacks one of {parts}"
