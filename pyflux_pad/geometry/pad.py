"""Padding by a mode: which cells are cut, and how much is added on each side. Integers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..padding import GeometryError, Pairs, source_index
from .convolution import Sizes


@dataclass(frozen=True)
class PadGeometry:
    """Every integer of a padding of ``x (N, C, *input_size)``.

    Attributes
    ----------
    input_size
        One int per spatial axis.
    cuts
        Cells cut from the low and the high end of each axis first.
    pads
        Cells added to each end of what is left; not negative.
    modes
        One mode per axis: what the added cells show.
    detached
        Whether the added cells send no gradient back to the cells they show.
    """

    input_size: Sizes
    cuts: Pairs
    pads: Pairs
    modes: tuple[str, ...]
    detached: bool = False

    @property
    def cut_size(self) -> Sizes:
        """What the cuts leave."""
        return tuple([n - low - high for n, (low, high) in zip(self.input_size, self.cuts, strict=True)])

    @property
    def output_size(self) -> Sizes:
        """Spatial size of the result."""
        return tuple([n + low + high for n, (low, high) in zip(self.cut_size, self.pads, strict=True)])

    def sources(self, axis: int, arange: Callable[..., Any], where: Callable[..., Any]) -> Any:
        """Return the input cell that every cell of the result shows along an axis; -1 where it shows a constant."""
        n, (cut, _), (low, high) = self.cut_size[axis], self.cuts[axis], self.pads[axis]
        cells = arange(-low, n + high)
        if self.modes[axis] == "constant":
            return where((cells >= 0) & (cells < n), cells + cut, -1)
        return source_index(cells, n, self.modes[axis]) + cut

    def differentiated(self) -> PadGeometry:
        """Return the padding whose transpose is the gradient: with detached cells, a padding by constants."""
        if not self.detached:
            return self
        return replace(self, modes=("constant",) * len(self.modes), detached=False)


def pad_geometry(
    operation: str, input_size: Sizes, padding: Pairs, modes: tuple[str, ...], detached: bool
) -> PadGeometry:
    """Return the checked geometry of a padding; negative amounts crop first, then the rest is padded.

    Raises
    ------
    GeometryError
        If nothing of an axis is left, unless the mode is constant and something is added.
    """
    cuts, pads = [], []
    for axis, (n, (low, high), mode) in enumerate(zip(input_size, padding, modes, strict=True)):
        cut = (max(-low, 0), max(-high, 0))
        left = n - sum(cut)
        added = (max(low, 0), max(high, 0))
        if left < 0:
            raise GeometryError(
                f"{operation}: padding ({low}, {high}) cuts {sum(cut)} cells from spatial axis {axis}, which has {n}; "
                f"cut less"
            )
        if left == 0 and (mode != "constant" or (sum(added) == 0 and sum(cut) > 0)):
            raise GeometryError(
                f"{operation}: nothing of spatial axis {axis} (length {n}) is left to pad by ({low}, {high}) in mode "
                f"{mode!r}; only mode 'constant' pads an empty axis"
            )
        cuts.append(cut)
        pads.append(added)
    return PadGeometry(tuple(input_size), tuple(cuts), tuple(pads), modes, detached)


cached_pad_geometry = lru_cache(maxsize=1024)(pad_geometry)
