"""The operators' array library on NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any

_erf = np.frompyfunc(math.erf, 1, 1)


class NumpyArrays:
    """NumPy arrays; results keep the dtype of what went in."""

    def __init__(self, backend: str | None) -> None:
        self.backend = backend

    @property
    def host(self) -> NumpyArrays:
        """These are NumPy arrays already."""
        return self

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    expm1 = staticmethod(np.expm1)
    log1p = staticmethod(np.log1p)
    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    tanh = staticmethod(np.tanh)
    where = staticmethod(np.where)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    matmul = staticmethod(np.matmul)
    transpose = staticmethod(np.transpose)
    broadcast_to = staticmethod(np.broadcast_to)
    concatenate = staticmethod(np.concatenate)
    stack = staticmethod(np.stack)

    def asarray(self, array: Array, like: Array) -> Array:
        """Return the array."""
        return array

    def dtype(self, x: Array) -> str:
        """Return the name of the dtype."""
        return x.dtype.name

    def astype(self, x: Array, dtype: str) -> Array:
        """Convert."""
        return x.astype(dtype)

    def sigmoid(self, x: Array) -> Array:
        """Return 1 / (1 + e^-x) without overflow, and with all its digits where it is small."""
        power = np.exp(-np.abs(x))
        return np.where(x < 0, power, np.ones((), x.dtype)) / (power + 1)

    def erf(self, x: Array) -> Array:
        """Return the error function."""
        return np.asarray(_erf(x)).astype(x.dtype)

    def divide(self, x: Array, y: Array) -> Array:
        """Divide; integers towards zero."""
        if x.dtype.kind not in "iu":
            return x / y
        down = x // y
        return down + ((down < 0) & (down * y != x)).astype(x.dtype)

    def power(self, x: Array, y: Array) -> Array:
        """Return the power in the dtype of x."""
        return np.power(x, y).astype(x.dtype)

    def sum(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Sum in the dtype of x."""
        return x.sum(tuple(axes), dtype=x.dtype, keepdims=keepdims)

    def mean(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Average; integers towards zero."""
        return x.mean(tuple(axes), keepdims=keepdims).astype(x.dtype)

    def max(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Return the maximum."""
        return x.max(tuple(axes), keepdims=keepdims, initial=_limits(x)[0])

    def min(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Return the minimum."""
        return x.min(tuple(axes), keepdims=keepdims, initial=_limits(x)[1])

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        """Reshape."""
        return x.reshape(tuple(shape))

    def take(self, x: Array, index: Array, axis: int) -> Array:
        """Select along an axis."""
        return np.take(x, index, axis)

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        """Return zeros."""
        return np.zeros(tuple(shape), like.dtype)


def _limits(x: Array) -> tuple[Any, Any]:
    """Return the lowest and the highest value of x's dtype."""
    if x.dtype.kind == "b":
        return False, True
    if x.dtype.kind in "iu":
        return np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    return -math.inf, math.inf
