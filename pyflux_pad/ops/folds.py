"""Windows as columns, and back: the two halves of im2col."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..backends import Engine, resolve
from ..geometry import PoolGeometry, pool_geometry
from ..padding import GeometryError, per_axis
from .call import Array, Ints, PaddingLike, array_shape, public


@dataclass
class FoldCall:
    """`unfold` or `fold` bound to its engine and windows; each is the transpose of the other."""

    engine: Engine
    name: str
    geometry: PoolGeometry
    folds: bool
    x: Array
    batched: bool = True

    def run(self) -> Array:
        """Return the result."""
        result = self._apply(self.x, self.folds)
        return result if self.batched else result[0]

    def pullback(self, grad_output: Array) -> dict[str, Array]:
        """Return the gradient by the array."""
        grad_output = grad_output if self.batched else grad_output[None]
        gradient = self._apply(grad_output, not self.folds)
        return {self.name: gradient if self.batched else gradient[0]}

    def _apply(self, array: Array, folds: bool) -> Array:
        geometry = self.geometry
        taps = math.prod(geometry.kernel_size)
        if folds:
            shape = (array.shape[0], array.shape[1] // taps, *geometry.kernel_size, *geometry.output_size)
            return self.engine.fold(geometry, array.reshape(shape))
        windows = self.engine.unfold(geometry, array)
        return windows.reshape(array.shape[0], array.shape[1] * taps, math.prod(geometry.output_size))


@public("x")
def unfold(
    x: Array,
    kernel_size: Ints,
    *,
    dilation: Ints = 1,
    padding: PaddingLike = 0,
    stride: Ints = 1,
    backend: str | None = None,
) -> FoldCall:
    """Return the cells of every window as columns, (N, C * prod(kernel_size), prod(out)), in torch's order.

    Parameters
    ----------
    x
        (N, C, *spatial), one to three spatial axes.
    kernel_size, dilation, padding, stride
        As in `conv`; padding is zeros.
    backend
        Name of the engine; by default the array's own.
    """
    return bind_unfold("unfold", "x", x, kernel_size, dilation, padding, stride, backend)


@public("x")
def fold(
    x: Array,
    output_size: Ints,
    kernel_size: Ints,
    *,
    dilation: Ints = 1,
    padding: PaddingLike = 0,
    stride: Ints = 1,
    backend: str | None = None,
) -> FoldCall:
    """Add columns back to where `unfold` took them from: its transpose, ONNX's Col2Im.

    Parameters
    ----------
    x
        (N, C * prod(kernel_size), L), as `unfold` gives it.
    output_size
        Spatial size of the result; one int per spatial axis.
    kernel_size, dilation, padding, stride, backend
        As in `unfold`.

    Returns
    -------
    array
        (N, C, *output_size).
    """
    return bind_fold("fold", "x", x, output_size, kernel_size, dilation, padding, stride, backend)


def bind_unfold(
    operation: str,
    name: str,
    x: Array,
    kernel_size: Ints,
    dilation: Ints,
    padding: PaddingLike,
    stride: Ints,
    backend: str | None,
    batched: bool = True,
) -> FoldCall:
    """Bind `unfold` to its checked windows."""
    engine = resolve(operation, {name: x}, backend)
    x = x if batched else x[None]
    shape = tuple(array_shape(operation, name, x))
    if len(shape) not in (3, 4, 5):
        raise GeometryError(f"{operation}: {name} must be (N, C, *spatial) with 1 to 3 spatial axes, got {shape}")
    geometry = pool_geometry(operation, shape[2:], kernel_size, stride, padding, dilation, False)
    return FoldCall(engine, name, geometry, False, x, batched)


def bind_fold(
    operation: str,
    name: str,
    x: Array,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints,
    padding: PaddingLike,
    stride: Ints,
    backend: str | None,
    batched: bool = True,
) -> FoldCall:
    """Bind `fold` to its checked windows; the number of axes is that of `output_size`."""
    engine = resolve(operation, {name: x}, backend)
    x = x if batched else x[None]
    sized = [size for size in (output_size, kernel_size) if not isinstance(size, int)]
    ndim = len(sized[0]) if sized else 2
    try:
        size = per_axis(output_size, ndim, "output_size", minimum=1)
    except (GeometryError, TypeError) as error:
        raise type(error)(f"{operation}: {error}") from None
    geometry = pool_geometry(operation, size, kernel_size, stride, padding, dilation, False)
    shape, taps, windows = tuple(x.shape), math.prod(geometry.kernel_size), math.prod(geometry.output_size)
    if len(shape) != 3 or shape[1] % taps or shape[2] != windows:
        raise GeometryError(
            f"{operation}: {name} must be (N, C * {taps}, {windows}) for {geometry.output_size} windows of "
            f"{geometry.kernel_size} cells over {size}, got {shape}"
        )
    return FoldCall(engine, name, geometry, True, x, batched)
