"""A small array library that every operator is written against, on NumPy and on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Array = Any


class Arrays(Protocol):
    """What an array library offers to the operators. Functions are named as in NumPy where NumPy has them."""

    backend: str | None
    """The engine of convolutions, pools and pads; None is the arrays' own."""

    @property
    def host(self) -> Arrays:
        """The library of NumPy arrays, for what is computed from sizes and constants alone."""
        ...

    def asarray(self, array: Array, like: Array, /) -> Array:
        """Return a NumPy array as an array of this library, on the device of `like`."""
        ...

    def dtype(self, x: Array, /) -> str:
        """Return NumPy's name of the dtype."""
        ...

    def astype(self, x: Array, dtype: str, /) -> Array:
        """Convert; a float goes to an integer towards zero."""
        ...

    def exp(self, x: Array, /) -> Array:
        """e^x."""
        ...

    def log(self, x: Array, /) -> Array:
        """Natural logarithm."""
        ...

    def expm1(self, x: Array, /) -> Array:
        """e^x - 1, exact near 0."""
        ...

    def log1p(self, x: Array, /) -> Array:
        """log(1 + x), exact near 0."""
        ...

    def sqrt(self, x: Array, /) -> Array:
        """Square root."""
        ...

    def abs(self, x: Array, /) -> Array:
        """Absolute value."""
        ...

    def tanh(self, x: Array, /) -> Array:
        """Hyperbolic tangent."""
        ...

    def sigmoid(self, x: Array, /) -> Array:
        """1 / (1 + e^-x)."""
        ...

    def erf(self, x: Array, /) -> Array:
        """Error function."""
        ...

    def divide(self, x: Array, y: Array, /) -> Array:
        """Quotient; of integers towards zero."""
        ...

    def power(self, x: Array, y: Array, /) -> Array:
        """x^y in the dtype of x."""
        ...

    def where(self, condition: Array, x: Array, y: Array, /) -> Array:
        """X where the condition holds, else y; either may be a number."""
        ...

    def maximum(self, x: Array, y: Array, /) -> Array:
        """Elementwise maximum; NaN wins."""
        ...

    def minimum(self, x: Array, y: Array, /) -> Array:
        """Elementwise minimum; NaN wins."""
        ...

    def matmul(self, x: Array, y: Array, /) -> Array:
        """Matrix product, as ``numpy.matmul``."""
        ...

    def sum(self, x: Array, axes: Sequence[int], keepdims: bool, /) -> Array:
        """Sum over axes, in the dtype of x."""
        ...

    def mean(self, x: Array, axes: Sequence[int], keepdims: bool, /) -> Array:
        """Mean over axes."""
        ...

    def max(self, x: Array, axes: Sequence[int], keepdims: bool, /) -> Array:
        """Maximum over axes; of nothing the dtype's lowest value."""
        ...

    def min(self, x: Array, axes: Sequence[int], keepdims: bool, /) -> Array:
        """Minimum over axes; of nothing the dtype's highest value."""
        ...

    def reshape(self, x: Array, shape: Sequence[int], /) -> Array:
        """Give the same elements another shape."""
        ...

    def transpose(self, x: Array, axes: Sequence[int], /) -> Array:
        """Put the axes in another order."""
        ...

    def broadcast_to(self, x: Array, shape: Sequence[int], /) -> Array:
        """Repeat along axes of size 1."""
        ...

    def concatenate(self, arrays: Sequence[Array], axis: int, /) -> Array:
        """Join along an axis."""
        ...

    def stack(self, arrays: Sequence[Array], axis: int, /) -> Array:
        """Join along a new axis."""
        ...

    def take(self, x: Array, index: Array, axis: int, /) -> Array:
        """Select along an axis by an integer array of any shape; negative integers count from the end."""
        ...

    def zeros(self, shape: Sequence[int], like: Array, /) -> Array:
        """Zeros of the dtype and device of `like`."""
        ...
