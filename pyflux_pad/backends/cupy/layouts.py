"""Memory layouts of arrays: channels first or last, dense or with gaps; what cuDNN can read without a copy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...geometry import Sizes

Array = Any

FIRST, LAST = "first", "last"
"""Channels before the spatial axes, or after them."""


def layout_of(array: Array) -> str | None:
    """Return the layout of an array of whole elements with gaps at most; None if it is reversed, permuted or overlaps.

    Axes of length 1 say nothing; an array that is both is "first".
    """
    return next((layout for layout in (FIRST, LAST) if has_layout(array, layout)), None)


def has_layout(array: Array, layout: str) -> bool:
    """Say whether every axis steps over all that is inside of it, in the order of a layout."""
    if layout == FIRST and array.flags.c_contiguous:
        return True
    inside = array.itemsize
    for axis in _innermost_first(array.ndim, layout):
        size, stride = array.shape[axis], array.strides[axis]
        if size == 1:
            continue
        if stride < inside or stride % array.itemsize:
            return False
        inside = stride * size
    return True


def _innermost_first(ndim: int, layout: str) -> tuple[int, ...]:
    return (1, *reversed(range(2, ndim)), 0) if layout == LAST else tuple(reversed(range(ndim)))


def empty(xp: ModuleType, shape: Sizes, dtype: Any, layout: str | None) -> Array:
    """Return a dense new array in a layout, channels first unless it says last."""
    if layout != LAST:
        return xp.empty(shape, dtype)
    ndim = len(shape)
    return xp.empty((shape[0], *shape[2:], shape[1]), dtype).transpose(0, ndim - 1, *range(1, ndim - 1))


def settled(xp: ModuleType, array: Array, layout: str) -> Array:
    """Return the array itself if it has a layout, else a dense copy that has it."""
    if has_layout(array, layout):
        return array
    copy = empty(xp, array.shape, array.dtype, layout)
    copy[...] = array
    return copy


def element_strides(array: Array, layout: str) -> Sizes:
    """Return the strides of a settled array in elements; an axis of length 1 steps over what is inside of it."""
    strides, inside = [0] * array.ndim, 1
    for axis in _innermost_first(array.ndim, layout):
        size = array.shape[axis]
        strides[axis] = inside if size == 1 else array.strides[axis] // array.itemsize
        inside = strides[axis] * size
    return tuple(strides)
