"""Pre-padding: how (low, high) pads reach a convolution that takes one pad per axis, and how its gradients come back.

The classic way around the older interface of cuDNN, and torch's. Integers are planned once and cached; the arrays are
those of any array module. Negative pads are views, slack that makes a pair symmetric costs nothing, and only what is
left of the difference between low and high is copied with zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

from ...geometry import ConvGeometry, cached_padded_plan
from ...padding import Pairs
from ..numpy.blocks import narrow
from .layouts import empty, layout_of

Array = Any


@dataclass(frozen=True)
class PrePadding:
    """What happens to the input before a convolution, and the convolution that is left.

    Attributes
    ----------
    cuts
        Views of the input first: (array axis, start, length) each.
    pads
        Zeros copied around what the cuts leave, one ``(low, high)`` pair per spatial axis.
    geometry
        The convolution of the result: its pads are not negative and, unless pairs were asked for, symmetric.
    """

    cuts: tuple[tuple[int, int, int], ...]
    pads: Pairs
    geometry: ConvGeometry

    @property
    def copies(self) -> bool:
        """Whether the input is copied."""
        return any([pair != (0, 0) for pair in self.pads])


@lru_cache(maxsize=1024)
def pre_padding(geometry: ConvGeometry, pairs: bool = False) -> PrePadding:
    """Plan the way from a geometry with any pads to one with pads that an engine takes.

    Parameters
    ----------
    geometry
        The convolution; its kernel is not flipped.
    pairs
        Whether the engine takes a (low, high) pair per axis: then only an axis that the cuts leave empty is padded.

    Returns
    -------
    PrePadding
    """
    plan = cached_padded_plan(geometry)
    pads, native, sizes = [], [], []
    for n, axis in zip(geometry.input_size, plan.axes, strict=True):
        whole = axis.native[0] + axis.pad[0], axis.native[1] + axis.pad[1]
        takes = pairs and axis.strategy != "full"
        pads.append((0, 0) if takes else axis.pad)
        native.append(whole if takes else axis.native)
        sizes.append(n - sum(axis.cut) + sum(pads[-1]))
    return PrePadding(plan.cuts, tuple(pads), replace(geometry, input_size=tuple(sizes), padding=tuple(native)))


def prepad(xp: ModuleType, geometry: ConvGeometry, x: Array, pairs: bool = False) -> tuple[Array, ConvGeometry]:
    """Cut and pad the input of a convolution until one pad per axis is enough.

    ``conv(x)`` of `geometry` is ``conv(padded)`` of the geometry returned, and so is the gradient by the weight.

    Parameters
    ----------
    xp
        The array module of `x`.
    geometry
        The convolution, with any pads.
    x
        (N, C, *input_size), of any strides.
    pairs
        As in `pre_padding`.

    Returns
    -------
    array, ConvGeometry
        A view of `x` where nothing has to be added, else a copy in its layout; and what is left to compute.

    Raises
    ------
    MemoryError
        If there is no memory for the copy; nothing else has been allocated.
    """
    plan = pre_padding(geometry, pairs)
    x = narrow(x, plan.cuts)
    if not plan.copies:
        return x, plan.geometry
    shape = plan.geometry.input_shape
    try:
        padded = empty(xp, shape, x.dtype, layout_of(x))
    except MemoryError as error:
        size = math.prod(shape) * x.dtype.itemsize
        raise MemoryError(
            f"no memory for the pre-padded input {shape} of {x.dtype.name}, {size:,} bytes beside the input's own "
            f"{x.nbytes:,}: {error}; take a smaller batch, or provider='frontend', which pads without a copy"
        ) from error
    padded[...] = 0
    padded[_interior(plan)] = x
    return padded, plan.geometry


def unpad(xp: ModuleType, geometry: ConvGeometry, padded: Array, pairs: bool = False) -> Array:
    """Return the gradient by the input of a convolution from the gradient by what `prepad` makes of it.

    Parameters
    ----------
    xp
        The array module.
    geometry, pairs
        As for `prepad`.
    padded
        Gradient by the padded input.

    Returns
    -------
    array
        (N, C, *input_size): the interior, a view; a copy with zeros at the borders where negative pads cut the input.
    """
    plan = pre_padding(geometry, pairs)
    interior = padded[_interior(plan)] if plan.copies else padded
    if not plan.cuts:
        return interior
    result = empty(xp, geometry.input_shape, padded.dtype, layout_of(padded))
    result[...] = 0
    narrow(result, plan.cuts)[...] = interior
    return result


def _interior(plan: PrePadding) -> tuple[Any, ...]:
    sizes = plan.geometry.input_size
    return (..., *(slice(low, n - high) for n, (low, high) in zip(sizes, plan.pads, strict=True)))
