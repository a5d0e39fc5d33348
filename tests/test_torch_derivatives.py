"""Derivatives of every order through torch's autograd, by torch's kernels and by the NumPy engine carried under torch.

Finite differences judge the first two orders on every case of the table, by a random projection of the Jacobian (a
single wrong entry changes it); on a few small cases every entry is compared.
"""

import functools

import numpy as np
import pytest
from cases import CONV_CASES, TRANSPOSED_CASES, TransposedCase, arrays, random_cases
from engines import TENSOR_ENGINES

import pyflux_pad as pp

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [
    pytest.mark.engine("torch"),
    # torch's own forward mode scripts its decompositions when it is first used.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

on_tensors = pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
convs = pytest.mark.parametrize("case", CONV_CASES, ids=str)
# The table's transposed cases with output_padding, made thirty with random ones.
TRANSPOSED = TRANSPOSED_CASES + tuple(c for c in random_cases(0, 40, transposed=True)
                                       if isinstance(c, TransposedCase) and any(c.output_padding))[:12]
every_case = pytest.mark.parametrize("case", CONV_CASES + TRANSPOSED, ids=str)
dtypes = pytest.mark.parametrize("dtype", ("float64", "complex128"))
operators = pytest.mark.parametrize("operator", ("conv_input", "conv_weight"))


def leaves(*values):
    """Return NumPy arrays as tensors that record."""
    return tuple(torch.tensor(value, requires_grad=True) for value in values)


def layer(engine, case, dtype):
    """Return the layer of a case as a function of (x, weight, bias), and these."""
    function = pp.conv_transpose if isinstance(case, TransposedCase) else pp.conv
    return functools.partial(function, **case.arguments, backend=engine.backend), leaves(*arrays(case, dtype)[:3])


def transpose(engine, case, dtype, operator):
    """Return `conv_input` or `conv_weight` as a function of its two tensors, and these."""
    x, weight, _, grad = arrays(case, dtype)
    settings = {**case.arguments, "backend": engine.backend}
    if operator == "conv_input":
        return lambda w, g: pp.conv_input(case.x_shape, w, g, **settings), leaves(weight, grad)
    return lambda x, g: pp.conv_weight(x, case.weight_shape, g, **settings), leaves(x, grad)


def first_order(function, operands, **options):
    """Reverse and forward mode against finite differences; a batch of cotangents against one after the other."""
    options = {"fast_mode": True, "check_forward_ad": True, "check_batched_grad": True, **options}
    assert torch.autograd.gradcheck(function, operands, **options)


def second_order(function, operands, **options):
    """Reverse over reverse and forward over reverse against finite differences."""
    options = {"fast_mode": True, "check_fwd_over_rev": True, **options}
    assert torch.autograd.gradgradcheck(function, operands, **options)


def test_thirty_cases_have_output_padding():
    assert sum(isinstance(c, TransposedCase) and any(c.output_padding) for c in TRANSPOSED) >= 30


@on_tensors
@every_case
@dtypes
def test_first_order(engine, case, dtype):
    first_order(*layer(engine, case, dtype))


@on_tensors
@every_case
@dtypes
def test_second_order(engine, case, dtype):
    second_order(*layer(engine, case, dtype))


@on_tensors
@convs
@dtypes
@operators
def test_first_order_of_the_transposes(engine, case, dtype, operator):
    first_order(*transpose(engine, case, dtype, operator))


@on_tensors
@convs
@dtypes
@operators
def test_second_order_of_the_transposes(engine, case, dtype, operator):
    second_order(*transpose(engine, case, dtype, operator))


SMALL = [c for c in CONV_CASES + TRANSPOSED if c.name in (
    "1d_low_only", "1d_one_pixel", "1d_one_pixel_t", "1d_zeros_both_sides_t")]


@on_tensors
@pytest.mark.parametrize("case", SMALL, ids=str)
@dtypes
def test_every_entry(engine, case, dtype):
    function, operands = layer(engine, case, dtype)
    first_order(function, operands, fast_mode=False, check_batched_forward_grad=True)
    second_order(function, operands, fast_mode=False, check_batched_grad=True)


THIRD = ("1d_low_only", "1d_crop_low_pad_high", "1d_flip", "1d_groups", "1d_strided_t", "1d_zeros_high_crop_low_t",
         "2d_leftover", "2d_flip_groups_dilated", "2d_depthwise_t", "3d_dilated_groups")


@on_tensors
@pytest.mark.parametrize("case", [c for c in CONV_CASES + TRANSPOSED_CASES if c.name in THIRD], ids=str)
@dtypes
def test_third_order(engine, case, dtype):
    """The second order of the gradient of a cubic loss."""
    function, (x, weight, _) = layer(engine, case, dtype)

    def gradients(x, weight):
        y = torch.view_as_real(function(x, weight)) if x.is_complex() else function(x, weight)
        return torch.autograd.grad(y.pow(3).sum() / y.numel(), (x, weight), create_graph=True)

    assert torch.autograd.gradgradcheck(gradients, (x, weight), fast_mode=True)


# ---------------------------------------------------------------- the gradient penalty of a stride-2 convolution

PENALIZED = {"stride": 2, "padding": 1}
POOLS = {"max": F.max_pool2d, "mean": F.avg_pool2d}
pools = pytest.mark.parametrize("pool", POOLS)


def operands():
    """32 images of 3 x 32 x 32 and 20 filters of 3 x 3."""
    draw = np.random.default_rng(0).standard_normal
    return draw((32, 3, 32, 32)), draw((20, 3, 3, 3))


def penalty(conv, pool):
    """Return the mean squared weight gradient of the mean of the pooled output, and its gradients by x and weight."""
    x, weight = leaves(*operands())
    (by_weight,) = torch.autograd.grad(POOLS[pool](conv(x, weight), 2).mean(), weight, create_graph=True)
    value = by_weight.pow(2).mean()
    # The loss is linear in the weight (but for which cell wins), so its gradient by the weight is zero: materialize it.
    gradients = torch.autograd.grad(value, (x, weight), materialize_grads=True)
    return [result.detach().numpy() for result in (value, *gradients)]


@functools.cache
def penalty_of_torch(pool):
    return penalty(functools.partial(F.conv2d, **PENALIZED), pool)


def same(found, expected):
    """Compare values far below 1: the tolerance is relative to the largest entry."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12 * np.abs(b).max())


@on_tensors
@pools
def test_gradient_penalty(engine, pool):
    conv = functools.partial(pp.conv, **PENALIZED, backend=engine.backend)
    assert np.abs(penalty_of_torch(pool)[1]).max() > 0
    same(penalty(conv, pool), penalty_of_torch(pool))


@pytest.mark.parametrize("backend", ("numpy", "torch"))
@pools
def test_gradient_penalty_by_vjp(backend, pool):
    """NumPy arrays: `vjp` of the convolution gives the weight gradient, `vjp` of `conv_weight` the penalty's."""
    x, weight = operands()
    y, pullback = pp.vjp(pp.conv, x, weight, **PENALIZED, backend=backend)
    (y,) = leaves(y)
    (grad,) = torch.autograd.grad(POOLS[pool](y, 2).mean(), y)
    _, by_weight = pullback(grad.numpy())
    again, pullback = pp.vjp(pp.conv_weight, x, weight.shape, grad.numpy(), **PENALIZED, backend=backend)
    np.testing.assert_array_equal(again, by_weight)
    by_x = pullback(2 * by_weight / by_weight.size)[0]
    same((np.mean(by_weight**2), by_x), penalty_of_torch(pool)[:2])
