"""Pools with their own padding on every side; semantics of torch and ONNX where those agree."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, cast

from ..backends import ArrayEngine, Engine, resolve
from ..geometry import (
    AdaptiveGeometry,
    PoolGeometry,
    adaptive_geometry,
    pool_geometry,
)
from ..padding import GeometryError, as_int
from .call import Array, Ints, PaddingLike, public

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass
class PoolCall:
    """A pool bound to its engine, windows and array."""

    engine: Engine
    name: str
    geometry: PoolGeometry | AdaptiveGeometry
    kind: str
    x: Array
    include_pad: bool = True
    divisor: int | None = None
    power: float = 2.0
    return_indices: bool = False
    batched: bool = True

    def run(self) -> Any:
        """Return the result, or the maxima and their indices."""
        if self.kind == "avg":
            return self._unbatched(self.engine.avg_pool(self.geometry, self.x, self.include_pad, self.divisor))
        if self.kind == "lp":
            return self._unbatched(self.engine.lp_pool(cast(PoolGeometry, self.geometry), self.x, self.power))
        y, index = self.engine.max_pool(self.geometry, self.x, self.return_indices)
        return (self._unbatched(y), self._unbatched(index)) if self.return_indices else self._unbatched(y)

    def pullback(self, grad_output: Array) -> dict[str, Array]:
        """Return the gradient by x."""
        engine = cast(ArrayEngine, self.engine)
        if not self.batched:
            grad_output = grad_output[None]
        if self.kind == "avg":
            grad = engine.avg_pool_transpose(self.geometry, grad_output, self.include_pad, self.divisor)
        elif self.kind == "lp":
            grad = engine.lp_pool_gradient(cast(PoolGeometry, self.geometry), self.x, grad_output, self.power)
        else:
            _, index = engine.max_pool(self.geometry, self.x, True)
            grad = engine.max_pool_transpose(tuple(self.x.shape), index, grad_output)
        return {self.name: self._unbatched(grad)}

    def _unbatched(self, array: Array) -> Array:
        return array if self.batched else array[0]


@public("x")
def max_pool(
    x: Array,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    backend: str | None = None,
) -> PoolCall:
    """Return the maximum of every window of `x (N, C, *spatial)`.

    Padding never wins (-inf; for integers the dtype's minimum) and NaN propagates.

    Parameters
    ----------
    x
        (N, C, *spatial), one to three spatial axes; real or integer.
    kernel_size, stride, dilation
        An int or one per spatial axis; `stride` is the kernel size by default.
    padding
        As in `conv`, rules included; negative pads crop.
    ceil_mode
        Whether a rest at the high end gets a window of its own, if it starts before the high padding.
    return_indices
        Whether to return the place of every maximum too: flat in the unpadded plane, int64, the first on ties, the last
        on NaN, -1 for a window without input cells (its maximum is -inf).
    backend
        Name of the engine; by default the array's own.

    Returns
    -------
    array, or (array, int64 array)
        (N, C, *out) with ``out = (n + lo + hi - ke) // stride + 1``, and one more in ceil mode where a rest is left.
    """
    return bind_pool(
        "max_pool", "x", x, backend, "max", kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation,
        ceil_mode=ceil_mode, return_indices=return_indices,
    )  # fmt: skip


@public("x")
def avg_pool(
    x: Array,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    backend: str | None = None,
) -> PoolCall:
    """Return the average of every window of `x (N, C, *spatial)`.

    The divisor counts the cells of the window that lie in the input and, if `count_include_pad`, those in the declared
    padding; never the overhang of ceil mode. A window without input cells is 0. With ``padding="same"`` zeros count
    unless told otherwise, unlike TensorFlow, Keras and ONNX.

    Parameters
    ----------
    x
        (N, C, *spatial), real floating point.
    kernel_size, stride, padding, dilation, ceil_mode, backend
        As in `max_pool`.
    count_include_pad
        Whether declared padding counts, as torch and NNlib do by default and ONNX does not.
    divisor_override
        A divisor for every window.
    """
    return bind_pool(
        "avg_pool", "x", x, backend, "avg", kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation,
        ceil_mode=ceil_mode, count_include_pad=count_include_pad, divisor_override=divisor_override,
    )  # fmt: skip


@public("x")
def lp_pool(
    x: Array,
    kernel_size: Ints,
    *,
    norm_type: float = 2.0,
    stride: Ints | None = None,
    padding: PaddingLike = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    backend: str | None = None,
) -> PoolCall:
    """Return ``(sum |x|^p)^(1/p)`` over the input cells of every window of `x (N, C, *spatial)`.

    Equal to ONNX. Equal to torch and NNlib, which take no absolute value, where x >= 0 or p is even; torch weighs the
    overhang of ceil mode differently. The gradient is 0 where a window is all zero.

    Parameters
    ----------
    x
        (N, C, *spatial), real floating point.
    norm_type
        p, any real number of at least 1.
    kernel_size, stride, padding, dilation, ceil_mode, backend
        As in `max_pool`.
    """
    return bind_pool(
        "lp_pool", "x", x, backend, "lp", kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation,
        ceil_mode=ceil_mode, norm_type=norm_type,
    )  # fmt: skip


@public("x")
def adaptive_avg_pool(x: Array, output_size: Any, *, backend: str | None = None) -> PoolCall:
    """Return averages over torch's adaptive windows: output j covers ``floor(j n / out) .. ceil((j + 1) n / out)``.

    Parameters
    ----------
    x
        (N, C, *spatial), real floating point.
    output_size
        An int or one per spatial axis; None keeps the size of an axis.
    backend
        Name of the engine; by default the array's own.
    """
    return bind_adaptive("adaptive_avg_pool", "x", x, output_size, backend, "avg")


@public("x")
def adaptive_max_pool(
    x: Array, output_size: Any, *, return_indices: bool = False, backend: str | None = None
) -> PoolCall:
    """Return maxima over torch's adaptive windows, with their places if `return_indices`; see `adaptive_avg_pool`."""
    return bind_adaptive("adaptive_max_pool", "x", x, output_size, backend, "max", return_indices=return_indices)


def bind_pool(
    operation: str,
    name: str,
    x: Array,
    backend: str | None,
    kind: str,
    *,
    kernel_size: Ints,
    stride: Ints | None,
    padding: PaddingLike,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    norm_type: float = 2.0,
    return_indices: bool = False,
    batched: bool = True,
) -> PoolCall:
    """Bind a pool to its checked geometry."""
    x = x if batched else x[None]
    engine = _engine(operation, name, x, backend, kind)
    if divisor_override is not None:
        divisor_override = as_int(divisor_override, f"{operation}: divisor_override")
        if divisor_override == 0:
            raise GeometryError(f"{operation}: divisor_override must not be 0")
    if isinstance(norm_type, bool) or not isinstance(norm_type, numbers.Real):
        raise TypeError(f"{operation}: norm_type must be a real number, got {norm_type!r}")
    if kind == "lp" and not 1 <= norm_type < math.inf:
        raise ValueError(
            f"{operation}: norm_type must be a finite number of at least 1, got {norm_type!r}; "
            f"its limit at infinity is max_pool(abs({name}), ...)"
        )
    geometry = pool_geometry(operation, tuple(x.shape[2:]), kernel_size, stride, padding, dilation, bool(ceil_mode))
    return PoolCall(
        engine, name, geometry, kind, x, bool(count_include_pad), divisor_override, float(norm_type),
        bool(return_indices), batched,
    )  # fmt: skip


def bind_adaptive(
    operation: str,
    name: str,
    x: Array,
    output_size: Any,
    backend: str | None,
    kind: str,
    return_indices: bool = False,
    batched: bool = True,
) -> PoolCall:
    """Bind a pool to its checked geometry."""
    x = x if batched else x[None]
    engine = _engine(operation, name, x, backend, kind)
    geometry = adaptive_geometry(operation, tuple(x.shape[2:]), output_size)
    return PoolCall(engine, name, geometry, kind, x, return_indices=bool(return_indices), batched=batched)


def _engine(operation: str, name: str, x: Array, backend: str | None, kind: str) -> Engine:
    engine = resolve(operation, {name: x}, backend)
    dtype = getattr(x.dtype, "name", str(x.dtype).rpartition(".")[2])  # torch's dtypes have no name
    if "complex" in dtype:
        raise TypeError(f"{operation}: {name} is {dtype}, which has no order; pool its real and imaginary parts")
    if kind != "max" and dtype not in _FLOATS:
        raise TypeError(f"{operation}: {name} is {dtype}, whose averages are no integers; convert it to a float dtype")
    if len(x.shape) < 3 or len(x.shape) > 5:
        shape = tuple(x.shape)
        raise GeometryError(f"{operation}: {name} must be (N, C, *spatial) with 1 to 3 spatial axes, got {shape}")
    return engine
