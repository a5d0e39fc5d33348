"""Operators that move elements about or speak of shapes; shapes and axes are NumPy arrays on every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import Array, Arrays
from .reductions import axes_of
from .table import operator


@operator("Shape")
def shape(ns: Arrays, x: Array, *, start: int = 0, end: int | None = None) -> np.ndarray:
    """Return the sizes of the axes from `start` to `end`."""
    return np.array(tuple(x.shape)[start:end], np.int64)


@operator("Reshape", host=(1,))
def reshape(ns: Arrays, x: Array, shape: Any, *, allowzero: int = 0) -> Array:
    """Give the elements another shape: -1 is what is left, 0 copies the size of x unless `allowzero`."""
    sizes = [int(size) for size in shape]
    if not allowzero:
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return ns.reshape(x, sizes)


@operator("Flatten")
def flatten(ns: Arrays, x: Array, *, axis: int = 1) -> Array:
    """Make a matrix: the axes before `axis` are its rows."""
    axis = axis + x.ndim if axis < 0 else axis
    return ns.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Squeeze", host=(1,))
def squeeze(ns: Arrays, x: Array, axes: Any = None) -> Array:
    """Drop `axes` of size 1, or all there are."""
    if axes is None:
        dropped = {axis for axis, size in enumerate(x.shape) if size == 1}
    else:
        dropped = set(axes_of(axes, x.ndim))
    for axis in dropped:
        if x.shape[axis] != 1:
            raise ValueError(f"axis {axis} of the shape {tuple(x.shape)} cannot be squeezed: its size is not 1")
    return ns.reshape(x, [size for axis, size in enumerate(x.shape) if axis not in dropped])


@operator("Unsqueeze", host=(1,))
def unsqueeze(ns: Arrays, x: Array, axes: Any) -> Array:
    """Add `axes` of size 1, counted in the result."""
    added = set(axes_of(axes, x.ndim + len(axes)))
    sizes = iter(x.shape)
    return ns.reshape(x, [1 if axis in added else next(sizes) for axis in range(x.ndim + len(added))])


@operator("Transpose")
def transpose(ns: Arrays, x: Array, *, perm: tuple[int, ...] | None = None) -> Array:
    """Axes in the order `perm`, or backwards."""
    return ns.transpose(x, tuple(reversed(range(x.ndim))) if perm is None else perm)


@operator("Expand", host=(1,))
def expand(ns: Arrays, x: Array, shape: Any) -> Array:
    """Broadcast x and `shape` with each other."""
    return ns.broadcast_to(x, np.broadcast_shapes(tuple(x.shape), tuple(int(size) for size in shape)))


@operator("Concat", parameters=(0, 1))
def concat(ns: Arrays, *arrays: Array, axis: int) -> Array:
    """Join along an axis."""
    return ns.concatenate(arrays, axis)


@operator("Split", host=(1,))
def split(ns: Arrays, x: Array, split: Any = None, *, axis: int = 0, num_outputs: int | None = None) -> tuple:
    """Parts along an axis, of given sizes or of equal ones (the last may be smaller)."""
    if split is not None:
        sizes = [int(size) for size in split]
    elif num_outputs is not None:
        chunk = -(-x.shape[axis] // num_outputs)
        sizes = [max(min(chunk, x.shape[axis] - part * chunk), 0) for part in range(num_outputs)]
    else:
        raise ValueError("Split needs the sizes of the parts, or num_outputs")
    ends = np.cumsum(sizes)
    return tuple(_part(x, axis, int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True))


def _part(x: Array, axis: int, start: int, stop: int) -> Array:
    return x[(*(slice(None),) * (axis % x.ndim), slice(start, stop))]


@operator("Slice", host=(1, 2, 3, 4))
def slice_(ns: Arrays, x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    """Cut the cells from `starts` to `ends` by `steps`, as Python's slices: they clamp, and may go backwards."""
    axes = range(len(starts)) if axes is None else axes_of(axes, x.ndim)
    steps = [1] * len(starts) if steps is None else steps
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        cells = slice(int(start), int(stop), int(step))
        if step > 0:
            x = x[(*(slice(None),) * axis, cells)]
        else:
            x = ns.take(x, np.arange(x.shape[axis])[cells], axis)
    return x


@operator("Gather", parameters=(0,))
def gather(ns: Arrays, x: Array, index: Array, *, axis: int = 0) -> Array:
    """Select along an axis by integers of any shape; negative ones count from the end."""
    return ns.take(x, index, axis)


@operator("Constant")
def constant(ns: Arrays, *, value: np.ndarray) -> np.ndarray:
    """Return the array."""
    return value


@operator("ConstantOfShape", host=(0,))
def constant_of_shape(ns: Arrays, shape: Any, *, value: np.ndarray | None = None) -> np.ndarray:
    """Fill an array with one value, float32 zero by default."""
    fill = np.zeros(1, np.float32) if value is None else value
    return np.full(tuple(int(size) for size in shape), fill.reshape(-1)[0], fill.dtype)


@operator("Range", host=(0, 1, 2))
def range_(ns: Arrays, start: Any, limit: Any, delta: Any) -> np.ndarray:
    """Count from `start` to before `limit` by `delta`."""
    count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
    return (start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype)


@operator("DepthToSpace", check=lambda given: _check_mode(given["mode"]))
def depth_to_space(ns: Arrays, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move blocks of channels into squares; "CRD" is torch's pixel_shuffle."""
    batch, channels, height, width = x.shape
    depth = channels // blocksize**2
    if mode == "DCR":
        sizes, order = (blocksize, blocksize, depth), (0, 3, 4, 1, 5, 2)
    else:
        sizes, order = (depth, blocksize, blocksize), (0, 1, 4, 2, 5, 3)
    blocks = ns.transpose(ns.reshape(x, (batch, *sizes, height, width)), order)
    return ns.reshape(blocks, (batch, depth, height * blocksize, width * blocksize))


@operator("SpaceToDepth", check=lambda given: _check_mode(given["mode"]))
def space_to_depth(ns: Arrays, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Move squares into channels: the inverse of DepthToSpace."""
    batch, channels, height, width = x.shape
    rows, columns = height // blocksize, width // blocksize
    blocks = ns.reshape(x, (batch, channels, rows, blocksize, columns, blocksize))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return ns.reshape(ns.transpose(blocks, order), (batch, channels * blocksize**2, rows, columns))


def _check_mode(mode: str, known: Sequence[str] = ("DCR", "CRD")) -> str:
    return "" if mode in known else f"mode={mode!r} is unknown; there are {', '.join(known)}"
