"""The loops that judge the package are judged themselves: by torch, and by sums written out by hand."""

import numpy as np
import oracle
import pytest
from cases import CONV_CASES, TRANSPOSED_CASES, TransposedCase, arrays, random_cases

torch = pytest.importorskip("torch")
F = torch.nn.functional


def pad_order(pairs):
    """Return pairs in the order of `F.pad`: last axis first."""
    return [entry for pair in reversed(pairs) for entry in pair]


def by_torch(case, x, weight):
    """Pad or crop with `F.pad` around torch's convolution without padding."""
    axes = len(case.size)
    if case.flip_kernel:
        weight = weight.flip(tuple(range(2, 2 + axes)))
    if isinstance(case, TransposedCase):
        y = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1](
            x, weight, None, case.stride, 0, 0, case.groups, case.dilation)
        crops = tuple((-lo, extra - hi) for (lo, hi), extra in zip(case.padding, case.output_padding, strict=True))
        return F.pad(y, pad_order(crops))
    return (F.conv1d, F.conv2d, F.conv3d)[axes - 1](
        F.pad(x, pad_order(case.padding)), weight, None, case.stride, 0, case.dilation, case.groups)


def same(found, expected):
    np.testing.assert_allclose(found, expected.detach().resolve_conj().numpy(), rtol=1e-12, atol=1e-12)


def compare(case):
    """Compare values, and the two transposes with autograd, which conjugates the saved operand."""
    x, weight, _, grad = arrays(case, "complex128")
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, weight)]
    y = by_torch(case, *leaves)
    if isinstance(case, TransposedCase):
        same(oracle.conv_transpose(x, weight, **case.arguments), y)
        return
    dx, dw = torch.autograd.grad(y, leaves, torch.tensor(grad))
    same(oracle.conv(x, weight, **case.arguments), y)
    same(oracle.conv_input(x.shape, weight.conj(), grad, **case.arguments), dx)
    same(oracle.conv_weight(x.conj(), weight.shape, grad, **case.arguments), dw)


@pytest.mark.parametrize("case", CONV_CASES + TRANSPOSED_CASES, ids=str)
def test_table(case):
    compare(case)


@pytest.mark.parametrize("transposed", [False, True], ids=("conv", "conv_transpose"))
def test_random(transposed):
    for case in random_cases(7, 100, transposed=transposed):
        compare(case)


def test_by_hand():
    """``y[0] = 1*10 + 2*20``: cross-correlation reads forward, `flip_kernel` backward, pads shift, strides skip."""
    x, weight = np.array([[[1, 2, 3]]]), np.array([[[10, 20]]])
    plain = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,)}
    assert oracle.conv(x, weight, **plain).tolist() == [[[50, 80]]]
    assert oracle.conv(x, weight, **plain, flip_kernel=True).tolist() == [[[40, 70]]]
    assert oracle.conv(x, weight, np.array([5]), **plain).tolist() == [[[55, 85]]]
    assert oracle.conv(x, weight, **{**plain, "padding": ((1, 0),)}).tolist() == [[[20, 50, 80]]]
    assert oracle.conv(x, weight, **{**plain, "padding": ((-1, 2),), "stride": (2,)}).tolist() == [[[80, 0]]]
    assert oracle.conv(x, weight, **{**plain, "dilation": (2,)}).tolist() == [[[70]]]
    assert oracle.conv_transpose(x, weight, **plain).tolist() == [[[10, 40, 70, 60]]]
    assert oracle.conv_transpose(x, weight, **{**plain, "padding": ((1, -1),)}).tolist() == [[[40, 70, 60, 0]]]
    assert oracle.conv_transpose(x, weight, **{**plain, "stride": (3,)}, output_padding=(1,)).tolist() == [
        [[10, 20, 0, 20, 40, 0, 30, 60, 0]]]


def test_integers_wrap():
    """Sums beyond 64 bits wrap, so a cast gives the result modulo 2**bits."""
    x, weight = np.array([[[2**62, 3]]]), np.array([[[4, 1]]])
    wrapped = oracle.conv(x, weight, stride=(1,), padding=((0, 0),), dilation=(1,))
    assert wrapped.tolist() == [[[3]]]
    assert wrapped.dtype == np.int64


@pytest.mark.filterwarnings("ignore:invalid value")
def test_zeros_are_multiplied():
    """An infinite tap over the padding is NaN: nothing is skipped."""
    y = oracle.conv(np.ones((1, 1, 1)), np.array([[[np.inf, 1.0]]]), stride=(1,), padding=((1, 1),), dilation=(1,))
    np.testing.assert_array_equal(y, [[[np.nan, np.inf]]])
