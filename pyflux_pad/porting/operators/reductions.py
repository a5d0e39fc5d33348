"""Sums, means and extremes over axes, products of matrices, and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays import Array, Arrays
from .table import operator


def axes_of(axes: Any, ndim: int) -> tuple[int, ...]:
    """Return axes as non-negative ints."""
    return tuple(int(axis) % ndim for axis in axes)


def _reduction(name: str, choose: Callable[[Arrays], Callable[..., Array]]) -> None:
    @operator(name, host=(1,))
    def reduce(ns: Arrays, x: Array, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
        """Reduce over `axes`; over all if there are none, unless `noop_with_empty_axes`."""
        if axes is None or axes.size == 0:
            if noop_with_empty_axes:
                return x
            axes = range(x.ndim)
        return choose(ns)(x, axes_of(axes, x.ndim), bool(keepdims))


_reduction("ReduceSum", lambda ns: ns.sum)
_reduction("ReduceMean", lambda ns: ns.mean)
_reduction("ReduceMax", lambda ns: ns.max)
_reduction("ReduceMin", lambda ns: ns.min)


@operator("MatMul", parameters=(0, 1))
def matmul(ns: Arrays, x: Array, y: Array) -> Array:
    """Matrix product, as ``numpy.matmul``."""
    return ns.matmul(x, y)


@operator("Gemm", parameters=(1, 2))
def gemm(
    ns: Arrays, a: Array, b: Array, c: Array | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,  # noqa: N803
) -> Array:  # fmt: skip
    """Alpha A B + beta C, of matrices that may be transposed first."""
    y = ns.matmul(ns.transpose(a, (1, 0)) if transA else a, ns.transpose(b, (1, 0)) if transB else b)
    if alpha != 1:
        y = y * alpha
    if c is None:
        return y
    return y + (c if beta == 1 else c * beta)


@operator("Softmax")
def softmax(ns: Arrays, x: Array, *, axis: int = -1) -> Array:
    """e^x over its sum along an axis."""
    powers = ns.exp(_centred(ns, x, axis))
    return powers / ns.sum(powers, axes_of((axis,), x.ndim), True)


@operator("LogSoftmax")
def log_softmax(ns: Arrays, x: Array, *, axis: int = -1) -> Array:
    """Logarithm of Softmax."""
    centred = _centred(ns, x, axis)
    return centred - ns.log(ns.sum(ns.exp(centred), axes_of((axis,), x.ndim), True))


def _centred(ns: Arrays, x: Array, axis: int) -> Array:
    """Subtract the maximum, which changes nothing but keeps e^x from overflowing."""
    return x - ns.max(x, axes_of((axis,), x.ndim), True)
