"""Pools, unfold and fold equal the loops of `oracle_pools`; derivatives, the forms with a rank and bad input."""

import dataclasses
import math

import cases
import numpy as np
import oracle_pools as oracle
import pytest
from engines import ENGINES, TENSOR_ENGINES
from pool_cases import pool_cases, with_indices
from test_bad_input import refused
from test_random import run

import pyflux_pad as pp
from pyflux_pad import GeometryError

# torch's forward mode loads torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


# ---------------------------------------------------------------- random pools


CHUNK = 500
SEEDS = {"numpy": range(10), "torch": range(3), "numpy-under-torch": range(1), "julia": range(10)}
WORK = [pytest.param(engine, seed, id=f"{engine}-{seed}") for engine in ENGINES for seed in SEEDS.get(engine.id, ())]


def test_coverage(record_property):
    drawn = [case for seed in SEEDS["numpy"] for case in pool_cases(seed, CHUNK)]
    assert len(drawn) == 5000
    checks = {
        "lo != hi": lambda c: any(low != high for low, high in c.padding),
        "a window of ceil mode": lambda c: c.leftover,
        "dilation > 1": lambda c: any(d > 1 and k > 1 for k, d in zip(c.kernel, c.dilation, strict=True)),
        "a negative pad": lambda c: min(map(min, c.padding)) < 0,
        "a pad >= the dilated kernel": lambda c: any(
            max(pair) >= ke for pair, ke in zip(c.padding, c.extent, strict=True)),
        "an empty window": lambda c: any(not cells for _, cells, _ in c.windows),
        "2-D": lambda c: len(c.size) == 2,
        "3-D": lambda c: len(c.size) == 3,
    }
    shares = {name: sum(map(check, drawn)) / len(drawn) for name, check in checks.items()}
    record_property("coverage", "5000 pools: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    short = {name: share for name, share in shares.items() if share < cases.LEAST_COVERAGE}
    assert not short


@pytest.mark.parametrize("engine, seed", WORK)
def test_random(engine, seed):
    """Result and gradient, NaN and ties included."""

    def check(engine, case, dtype):
        x = case.x(dtype)
        expected, back = case.expected(x)
        grad = case.grad(expected.shape)
        y, (dx,) = engine.vjp(case.function, x, grad_output=grad, **case.arguments)
        np.testing.assert_allclose(y, expected, 1e-12, 1e-12)
        np.testing.assert_allclose(dx, back(grad), 1e-12, 1e-12)

    run(check, engine, pool_cases(seed, CHUNK), "float64")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "uint8"])
def test_random_indices(engine, dtype):
    """torch's: flat in the uncut plane, the first on ties, the last NaN, -1 where no cell is."""

    def check(engine, case, dtype):
        x = dataclasses.replace(case, nans=case.nans and dtype[0] == "f").x("int64" if dtype == "uint8" else dtype)
        x = (abs(x) if dtype == "uint8" else x).astype(dtype)
        y, where = with_indices(engine, x, **case.arguments)
        expected, places = oracle.max_pool(x, case.windows)
        np.testing.assert_array_equal(y, expected, strict=True)
        np.testing.assert_array_equal(where, places)
        np.testing.assert_array_equal(engine(pp.max_pool, x, **case.arguments), expected)

    run(check, engine, pool_cases(71, 200, ("max",)), dtype)


def test_ties_nan_and_empty_windows_by_hand(engine):
    x = np.array([[[1.0, 5, 5, np.nan, 2, np.nan, 0, 0]]])
    y, where = with_indices(engine, x, kernel_size=2, stride=2, padding=((3, 2),))
    # pad pad | pad 1 | 5 5 | nan 2 | nan 0 | 0 pad, and a last pad alone that no window reaches.
    np.testing.assert_array_equal(y, [[[-np.inf, 1, 5, np.nan, np.nan, 0]]])
    np.testing.assert_array_equal(where, [[[-1, 0, 1, 3, 5, 7]]])
    y, where = with_indices(engine, x, kernel_size=3, stride=3)
    np.testing.assert_array_equal(where, [[[1, 5]]], err_msg="the last NaN of a window")
    y, (dx,) = engine.vjp(pp.max_pool, x, grad_output=np.array([[[10.0, 1, 2, 3, 4, 5]]]), kernel_size=2, stride=2,
                          padding=((3, 2),))
    np.testing.assert_array_equal(dx, [[[1, 2, 0, 3, 0, 4, 0, 5]]])
    for include in (True, False):
        y, (dx,) = engine.vjp(pp.avg_pool, np.ones((1, 1, 2)), grad_output=np.ones((1, 1, 3)), kernel_size=2,
                              padding=((2, 2),), count_include_pad=include)
        np.testing.assert_array_equal(y, [[[0, 1, 0]]])
        np.testing.assert_array_equal(dx, [[[0.5, 0.5]]])
    y, (dx,) = engine.vjp(pp.lp_pool, np.zeros((1, 1, 4)), grad_output=np.ones((1, 1, 2)), kernel_size=2)
    np.testing.assert_array_equal((y.ravel(), dx.ravel()[:2]), np.zeros((2, 2)))


def test_window_over_both_borders(engine):
    """One window wider than the input, with pads on both sides: where NNlib's own gradients go wrong."""
    x = np.array([[[3.0, -1.0]]])
    arguments = {"kernel_size": 5, "padding": ((1, 2),), "grad_output": np.array([[[10.0]]])}
    for function, expected, gradient in ((pp.max_pool, 3, (10, 0)), (pp.avg_pool, 0.4, (2, 2)),
                                         (pp.lp_pool, math.sqrt(10), (30 / math.sqrt(10), -10 / math.sqrt(10)))):
        y, (dx,) = engine.vjp(function, x, **arguments)
        np.testing.assert_allclose(y, [[[expected]]], 1e-15)
        np.testing.assert_allclose(dx, [[gradient]], 1e-15)


def test_stride_defaults_to_the_kernel(engine):
    x = np.arange(42.0).reshape(1, 1, 6, 7)
    for function in (pp.max_pool, pp.avg_pool, pp.lp_pool):
        np.testing.assert_array_equal(engine(function, x, (2, 3)), engine(function, x, (2, 3), stride=(2, 3)))
        assert engine(function, x, (2, 3)).shape == (1, 1, 3, 2)


@pytest.mark.engine("torch")
def test_vjp_is_autograd():
    """The NumPy engine's pullback gives torch's gradients, on arrays of normal numbers."""
    numpy_engine, torch_engine = ENGINES[:2]

    def check(engine, case, dtype):
        x = cases.fill(np.random.default_rng(case.seed), (2, 2, *case.size), dtype)
        y = numpy_engine(case.function, x, **case.arguments)
        grad = cases.fill(np.random.default_rng(1), y.shape, dtype)
        for left, right in zip(*((y, *gradients) for y, gradients in (
                e.vjp(case.function, x, grad_output=grad, **case.arguments) for e in (numpy_engine, torch_engine))),
                strict=True):
            np.testing.assert_allclose(left, right, 1e-12, 1e-12)

    run(check, None, pool_cases(72, 200), "float64")


# ---------------------------------------------------------------- adaptive pools, unfold, fold


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_adaptive(engine, axes):
    """torch's windows, larger outputs than inputs included; None keeps an axis."""
    generator = np.random.default_rng(axes)
    for _ in range(40):
        size = tuple(int(n) for n in generator.integers(1, 7, axes))
        output = tuple(int(n) for n in generator.integers(1, 8, axes))
        x = cases.fill(generator, (2, 2, *size), "float64", integers=True)
        grad = cases.fill(generator, (2, 2, *output), "float64", integers=True)
        boxes = oracle.adaptive_windows(size, output)
        y, (dx,) = engine.vjp(pp.adaptive_avg_pool, x, grad_output=grad, output_size=output)
        np.testing.assert_allclose(y, oracle.avg_pool(x, boxes), 1e-12, 1e-12)
        np.testing.assert_allclose(dx, oracle.avg_pool_input(x, boxes, grad), 1e-12, 1e-12)
        y, (dx,) = engine.vjp(pp.adaptive_max_pool, x, grad_output=grad, output_size=output)
        expected, places = oracle.max_pool(x, boxes)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(dx, oracle.max_pool_input(x, boxes, grad))
        y, where = with_indices(engine, x, pp.adaptive_max_pool, output_size=output)
        np.testing.assert_array_equal(where, places)
        keeps = engine(pp.adaptive_avg_pool, x, (None, *output[1:]))
        np.testing.assert_array_equal(keeps, engine(pp.adaptive_avg_pool, x, size[:1] + output[1:]))


@pytest.mark.parametrize("seed", range(2))
def test_unfold_and_fold(engine, seed):
    """Columns in torch's order; each is the other's transpose and gradient."""

    def check(engine, case, dtype):
        window = {"kernel_size": case.kernel, "stride": case.stride, "padding": case.padding,
                  "dilation": case.dilation}
        boxes = oracle.windows(case.size, case.kernel, case.stride, case.padding, case.dilation, False)
        layout = boxes, case.kernel, case.stride, case.padding, case.dilation
        x = cases.fill(np.random.default_rng(case.seed), (2, 3, *case.size), dtype, integers=True)
        columns = oracle.unfold(x, *layout)
        grad = cases.fill(np.random.default_rng(1), columns.shape, dtype, integers=True)
        folded = oracle.fold(grad, x.shape, *layout)
        y, (dx,) = engine.vjp(pp.unfold, x, grad_output=grad, **window)
        np.testing.assert_array_equal(y, columns)
        np.testing.assert_array_equal(dx, folded)
        y, (dx,) = engine.vjp(pp.fold, grad, grad_output=x, output_size=case.size, **window)
        np.testing.assert_array_equal(y, folded)
        np.testing.assert_array_equal(dx, columns)

    run(check, engine, pool_cases(80 + seed, 100), ("float64", "complex128")[seed])


# ---------------------------------------------------------------- derivatives on torch


WINDOW = {"kernel_size": (2, 3), "stride": (2, 1), "padding": ((1, 0), (-1, 3)), "dilation": (2, 1)}
DIFFERENTIABLE = {
    # A window without cells would be -inf, which has no finite difference.
    "max": (pp.max_pool, {**WINDOW, "padding": ((1, 0), (-1, 2)), "ceil_mode": True}),
    "avg": (pp.avg_pool, {**WINDOW, "ceil_mode": True}),
    "avg of input cells": (pp.avg_pool, {**WINDOW, "count_include_pad": False}),
    "avg by 5": (pp.avg_pool, {**WINDOW, "divisor_override": 5}),
    "lp 1": (pp.lp_pool, {**WINDOW, "norm_type": 1}),
    "lp 2": (pp.lp_pool, {**WINDOW, "ceil_mode": True}),
    "lp 2.5": (pp.lp_pool, {**WINDOW, "norm_type": 2.5}),
    "lp 3": (pp.lp_pool, {**WINDOW, "norm_type": 3}),
    "adaptive avg": (pp.adaptive_avg_pool, {"output_size": (2, 3)}),
    "adaptive max": (pp.adaptive_max_pool, {"output_size": (3, 2)}),
    "unfold": (pp.unfold, WINDOW),
}


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, "fold"])
@pytest.mark.parametrize("engine", TENSOR_ENGINES, ids=str)
def test_gradcheck(engine, name):
    """First and second derivatives of every pool."""
    import torch

    x = torch.tensor(cases.fill(np.random.default_rng(5), (2, 2, 4, 5), "float64")).requires_grad_()
    if name == "fold":
        x = pp.unfold(x, **WINDOW).detach().requires_grad_()
        function, options = pp.fold, {"output_size": (4, 5), **WINDOW}
    else:
        function, options = DIFFERENTIABLE[name]
    if engine.backend is not None:
        options = {**options, "backend": engine.backend}
    assert torch.autograd.gradcheck(lambda x: function(x, **options), x)
    assert torch.autograd.gradgradcheck(lambda x: function(x, **options), x)


# ---------------------------------------------------------------- the forms with a rank


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_ranks(engine, axes):
    """torch's positional order, with and without a batch."""
    x = cases.fill(np.random.default_rng(axes), (2, 3, 5, 6, 4)[: axes + 2], "float64")

    def form(name):
        return getattr(pp, f"{name}{axes}d")

    calls = [
        ("max_pool", (2, 1, 1, 2, True), {"stride": 1, "padding": 1, "dilation": 2, "ceil_mode": True}),
        ("avg_pool", (3, 2, 1, True, False, 4), {"stride": 2, "padding": 1, "ceil_mode": True,
                                                "count_include_pad": False, "divisor_override": 4}),
    ]
    for name, (kernel, *positional), named in calls:
        expected = engine(getattr(pp, name), x, kernel, **named)
        np.testing.assert_array_equal(engine(form(name), x, kernel, *positional), expected)
        np.testing.assert_array_equal(engine(form(name), x[0], kernel, *positional), expected[0])
    expected = engine(pp.lp_pool, x, 2, norm_type=3.0, stride=1, ceil_mode=True)
    np.testing.assert_array_equal(engine(form("lp_pool"), x[0], 3.0, 2, 1, True), expected[0])
    for name in ("adaptive_avg_pool", "adaptive_max_pool"):
        np.testing.assert_array_equal(engine(form(name), x[0], 2), engine(getattr(pp, name), x, 2)[0])
    y, where = with_indices(engine, x[0], form("max_pool"), kernel_size=2)
    assert y.shape == where.shape == (3, *(n // 2 for n in x.shape[2:]))
    shape = (*x.shape, 1, 1)
    refused(GeometryError, (f"max_pool{axes}d", str(shape)), engine, form("max_pool"), x.reshape(shape), 1)


# ---------------------------------------------------------------- bad input


X = np.arange(30.0).reshape(1, 1, 5, 6)
POOLS = pytest.mark.parametrize("function", [pp.max_pool, pp.avg_pool, pp.lp_pool], ids=lambda f: f.__name__)


@POOLS
def test_window_larger_than_the_input(engine, function):
    refused(GeometryError, (function.__name__, "no output on spatial axis 1", "spans 9 cells", "padded input 8",
                            "(1, 1)", "pad 1 more"), engine, function, X, (2, 9), padding=((0, 0), (1, 1)))
    refused(GeometryError, (function.__name__, "axis 0", "spans 7"), engine, function, X, 3, dilation=3)


@POOLS
def test_cutting_more_than_there_is(engine, function):
    refused(GeometryError, (function.__name__, "(-3, -3)", "axis 0", "5"),
            engine, function, X, 1, padding=((-3, -3), (0, 0)))


def test_windows_wholly_in_the_padding(engine):
    """Allowed: -inf, 0 and 0, without gradient."""
    arguments = {"kernel_size": 1, "padding": ((1, 0), (0, 1)), "grad_output": np.ones((1, 1, 6, 7))}
    for function, empty in ((pp.max_pool, -np.inf), (pp.avg_pool, 0), (pp.lp_pool, 0)):
        y, (dx,) = engine.vjp(function, X + 1, **arguments)
        expected = np.pad(X + 1, ((0, 0), (0, 0), (1, 0), (0, 1)), constant_values=empty)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(dx, np.ones_like(X))


@POOLS
@pytest.mark.parametrize("options, error, parts", [
    ({"padding": (1, 0, 2, 3)}, GeometryError, ("from_onnx", "from_torch", "from_flux")),
    ({"padding": "SAME"}, GeometryError, ("SAME", "same_lower")),
    ({"stride": 0}, GeometryError, ("stride", "0")),
    ({"stride": (1, 2, 3)}, GeometryError, ("stride", "(1, 2, 3)")),
    ({"dilation": 0}, GeometryError, ("dilation", "0")),
    ({"kernel_size": 0}, GeometryError, ("kernel_size", "0")),
    ({"kernel_size": (2,)}, GeometryError, ("kernel_size", "(2,)")),
    ({"kernel_size": 2.0}, TypeError, ("kernel_size", "2.0")),
    ({"kernel_size": True}, TypeError, ("kernel_size", "True")),
    ({"stride": True}, TypeError, ("stride", "True")),
    ({"padding": True}, TypeError, ("padding", "True")),
], ids=str)
def test_settings_refused(function, options, error, parts):
    refused(error, (function.__name__, *parts), function, X, **{"kernel_size": 2, **options})


def test_dtypes_refused(engine):
    for function in (pp.max_pool, pp.avg_pool, pp.lp_pool):
        refused(TypeError, (function.__name__, "complex128"), engine, function, X + 0j, 2)
    for function in (pp.avg_pool, pp.lp_pool):
        refused(TypeError, (function.__name__, "int64"), engine, function, X.astype("int64"), 2)
    refused(TypeError, ("adaptive_avg_pool", "int64"), engine, pp.adaptive_avg_pool, X.astype("int64"), 2)
    refused(TypeError, ("adaptive_max_pool", "complex128"), engine, pp.adaptive_max_pool, X + 0j, 2)


def test_options_refused(engine):
    refused(GeometryError, ("avg_pool", "divisor_override", "0"), engine, pp.avg_pool, X, 2, divisor_override=0)
    refused(TypeError, ("avg_pool", "divisor_override", "1.5"), engine, pp.avg_pool, X, 2, divisor_override=1.5)
    for power in (0.5, 0, -1, float("nan")):
        refused(ValueError, ("lp_pool", "norm_type", "at least 1", repr(power)), engine, pp.lp_pool, X, 2,
                norm_type=power)
    refused(GeometryError, ("adaptive_avg_pool", "output_size", "(2, 2, 2)"), engine, pp.adaptive_avg_pool, X,
            (2, 2, 2))
    refused(GeometryError, ("adaptive_max_pool", "axis 1", "0"), engine, pp.adaptive_max_pool, X, (2, 0))
    refused(GeometryError, ("fold", "(N, C * 4, 20)", "(1, 8, 19)"), engine, pp.fold, np.zeros((1, 8, 19)), (5, 6), 2)


@POOLS
def test_rank_refused(engine, function):
    for shape in ((3, 4), (1, 1, 2, 2, 2, 2)):
        refused(GeometryError, (function.__name__, "1 to 3 spatial axes", str(shape)), engine, function,
                np.zeros(shape), 1)


# ---------------------------------------------------------------- the edges of types and shapes


@pytest.mark.parametrize("shape", [(0, 2, 5, 6), (2, 0, 5, 6)], ids=("no batch", "no channels"))
@POOLS
def test_empty_arrays(engine, function, shape):
    y, (dx,) = engine.vjp(function, np.zeros(shape), grad_output=np.zeros((*shape[:2], 2, 3)), kernel_size=2)
    assert y.shape == (*shape[:2], 2, 3)
    assert dx.shape == shape


@POOLS
def test_half_precision_is_rounded_once(engine, function):
    """Sums beyond float16's 65504 and results within it, as torch's own average."""
    x = (np.arange(30).reshape(1, 1, 5, 6) * 1000).astype("float16")
    y = engine(function, x, (2, 3))
    np.testing.assert_allclose(y, engine(function, x.astype("float64"), (2, 3)), 2.0**-11)


@pytest.mark.parametrize("power", ["2", None, True])
def test_norm_type_of_another_type(power):
    refused(TypeError, ("lp_pool", "norm_type", repr(power)), pp.lp_pool, X, 2, norm_type=power)


def test_vjp_with_indices():
    """The pullback takes the gradient by the maxima; the indices have none."""
    (y, where), pullback = pp.vjp(pp.max_pool, X, kernel_size=2, return_indices=True)
    grad = np.arange(6.0).reshape(y.shape)
    np.testing.assert_array_equal(pullback(grad)[0], oracle.max_pool_input(X, oracle.windows(
        (5, 6), (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False), grad))
    assert where.dtype == np.int64
