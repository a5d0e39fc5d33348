"""Padding modes and pools of NumPy arrays, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ...geometry import AdaptiveGeometry, PadGeometry, PoolGeometry
from ...padding import source_index
from .blocks import Array, Sizes, compute_dtype, native

Windows = PoolGeometry | AdaptiveGeometry


class PadsAndPools:
    """What the NumPy engine does with windows; mixed into it."""

    xp: ModuleType

    def pad(self, geometry: PadGeometry, x: Array, value: complex = 0.0) -> Array:
        """Return the padded array: constants in one copy, then each other axis by its index vector."""
        xp, dtype = self.xp, native(x.dtype)
        inside = tuple(slice(low, n - high) for n, (low, high) in zip(geometry.input_size, geometry.cuts, strict=True))
        constant = [mode == "constant" for mode in geometry.modes]
        pads = [pair if flat else (0, 0) for pair, flat in zip(geometry.pads, constant, strict=True)]
        sizes = [n + low + high for n, (low, high) in zip(geometry.cut_size, pads, strict=True)]
        result = xp.full((*x.shape[:2], *sizes), value, dtype)
        result[_interior(geometry.cut_size, pads)] = x[(..., *inside)]
        for axis, index in self._sources(geometry):
            result = result.take(index, axis)
        return result

    def pad_transpose(self, geometry: PadGeometry, grad_output: Array) -> Array:
        """Return the transpose of `pad`: each border cell is added to the cell it shows, low precision in float32."""
        xp, dtype = self.xp, native(grad_output.dtype)
        total = grad_output.astype(compute_dtype(dtype), copy=False)
        for axis, index in reversed(self._sources(geometry)):
            low, high = geometry.pads[axis - 2]
            before = (slice(None),) * axis
            folded = total[(*before, slice(low, total.shape[axis] - high))].copy()
            for place in (*range(low), *range(total.shape[axis] - high, total.shape[axis])):
                folded[(*before, index[place])] += total[(*before, place)]
            total = folded
        constant = [mode == "constant" for mode in geometry.modes]
        pads = [pair if flat else (0, 0) for pair, flat in zip(geometry.pads, constant, strict=True)]
        result = xp.zeros((*grad_output.shape[:2], *geometry.input_size), dtype)
        result[_interior(geometry.cut_size, geometry.cuts)] = total[_interior(geometry.cut_size, pads)]
        return result

    def _sources(self, geometry: PadGeometry) -> list[tuple[int, Array]]:
        """Return (array axis, index vector) of each axis that is padded by a mode other than constant."""
        sources = []
        for axis, (mode, n, (low, high)) in enumerate(
            zip(geometry.modes, geometry.cut_size, geometry.pads, strict=True)
        ):
            if mode != "constant" and (low, high) != (0, 0):
                sources.append((axis + 2, source_index(self.xp.arange(-low, n + high), n, mode)))
        return sources

    def avg_pool(self, geometry: Windows, x: Array, include_pad: bool, divisor: int | None) -> Array:
        """Return the sum of every window over its divisor, low precision in float32."""
        total = self._pool_sum(geometry, x.astype(compute_dtype(native(x.dtype)), copy=False))
        total /= self._divisor(geometry, include_pad, divisor, total.dtype)
        return total.astype(native(x.dtype), copy=False)

    def avg_pool_transpose(
        self, geometry: Windows, grad_output: Array, include_pad: bool, divisor: int | None
    ) -> Array:
        """Return the transpose of `avg_pool`."""
        compute = compute_dtype(native(grad_output.dtype))
        shares = grad_output.astype(compute, copy=False) / self._divisor(geometry, include_pad, divisor, compute)
        return self._pool_sum_transpose(geometry, shares).astype(native(grad_output.dtype), copy=False)

    def lp_pool(self, geometry: Windows, x: Array, power: float) -> Array:
        """Return ``(sum |x|^p)^(1/p)`` over the cells of every window that lie in the input."""
        compute = compute_dtype(native(x.dtype))
        total = self._pool_sum(geometry, self.xp.abs(x.astype(compute, copy=False)) ** power)
        return (total ** (1 / power)).astype(native(x.dtype), copy=False)

    def lp_pool_gradient(self, geometry: Windows, x: Array, grad_output: Array, power: float) -> Array:
        """Return ``sign(x) |x|^(p-1) * sum over windows of grad y^(1-p)``, 0 where a window is all zero."""
        xp, compute = self.xp, compute_dtype(native(x.dtype))
        x = x.astype(compute, copy=False)
        total = self._pool_sum(geometry, xp.abs(x) ** power)
        empty = total == 0
        scaled = grad_output.astype(compute) * xp.where(empty, 1, total) ** (1 / power - 1)
        shares = self._pool_sum_transpose(geometry, xp.where(empty, 0, scaled))
        return (xp.sign(x) * xp.abs(x) ** (power - 1) * shares).astype(native(grad_output.dtype), copy=False)

    def max_pool(self, geometry: Windows, x: Array, with_indices: bool = True) -> tuple[Array, Array]:
        """Return the maxima and their flat indices: first on ties, last on NaN, -1 for a window without input cells."""
        xp = self.xp
        best = x.astype(native(x.dtype), copy=False)
        index = xp.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
        index = xp.broadcast_to(index, x.shape)
        for axis in reversed(range(geometry.ndim)):
            before = (slice(None),) * (axis + 2)
            shape = (*best.shape[: axis + 2], geometry.output_size[axis], *best.shape[axis + 3 :])
            winner, place = xp.full(shape, _lowest(best.dtype), best.dtype), xp.full(shape, -1, xp.int64)
            for outputs, inputs in geometry.taps(axis):
                value, source = best[(*before, inputs)], index[(*before, inputs)]
                held, at = winner[(*before, outputs)], place[(*before, outputs)]
                wins = (source >= 0) & ((at < 0) | (value > held) | (value != value))
                winner[(*before, outputs)] = xp.where(wins, value, held)
                place[(*before, outputs)] = xp.where(wins, source, at)
            best, index = winner, place
        return best, index

    def max_pool_transpose(self, shape: Sizes, index: Array, grad_output: Array) -> Array:
        """Send every gradient to the cell that won; what has no cell is dropped."""
        xp, dtype = self.xp, native(grad_output.dtype)
        planes, cells = math.prod(shape[:2]), math.prod(shape[2:])
        result = xp.zeros((planes, cells), compute_dtype(dtype))
        places = index.reshape(planes, math.prod(index.shape[2:]))
        rows, columns = xp.nonzero(places >= 0)
        xp.add.at(result, (rows, places[rows, columns]), grad_output.reshape(places.shape)[rows, columns])
        return result.reshape(shape).astype(dtype, copy=False)

    def unfold(self, geometry: PoolGeometry, x: Array) -> Array:
        """Return the cells of every window, (N, C, *kernel, *out), zeros outside the input."""
        xp, dtype = self.xp, native(x.dtype)
        sizes = [n + low + high for n, (low, high) in zip(geometry.cut_size, geometry.reach, strict=True)]
        padded = xp.zeros((*x.shape[:2], *sizes), dtype)
        padded[_interior(geometry.cut_size, geometry.reach)] = x[_interior(geometry.cut_size, geometry.cuts)]
        for axis in range(geometry.ndim):
            padded = padded.take(geometry.cells(axis, xp.arange), 2 + 2 * axis)
        return padded.transpose(0, 1, *range(2, padded.ndim, 2), *range(3, padded.ndim, 2))

    def fold(self, geometry: PoolGeometry, columns: Array) -> Array:
        """Return the transpose of `unfold`: overlapping cells are added, low precision in float32."""
        xp, dtype, ndim = self.xp, native(columns.dtype), geometry.ndim
        order = [axis + 2 for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        total = columns.astype(compute_dtype(dtype), copy=False).transpose(0, 1, *order)
        for axis in reversed(range(ndim)):
            low, high = geometry.reach[axis]
            before, after = total.shape[: 2 + 2 * axis], total.shape[4 + 2 * axis :]
            folded = xp.zeros((*before, geometry.cut_size[axis] + low + high, *after), total.dtype)
            xp.add.at(folded, (*(slice(None),) * len(before), geometry.cells(axis, xp.arange)), total)
            total = folded
        result = xp.zeros((*columns.shape[:2], *geometry.input_size), dtype)
        result[_interior(geometry.cut_size, geometry.cuts)] = total[_interior(geometry.cut_size, geometry.reach)]
        return result

    def _pool_sum(self, geometry: Windows, x: Array) -> Array:
        for axis in range(geometry.ndim):
            before = (slice(None),) * (axis + 2)
            total = self.xp.zeros((*x.shape[: axis + 2], geometry.output_size[axis], *x.shape[axis + 3 :]), x.dtype)
            for outputs, inputs in geometry.taps(axis):
                total[(*before, outputs)] += x[(*before, inputs)]
            x = total
        return x

    def _pool_sum_transpose(self, geometry: Windows, grad_output: Array) -> Array:
        for axis in range(geometry.ndim):
            before = (slice(None),) * (axis + 2)
            shape = (*grad_output.shape[: axis + 2], geometry.input_size[axis], *grad_output.shape[axis + 3 :])
            total = self.xp.zeros(shape, grad_output.dtype)
            for outputs, inputs in geometry.taps(axis):
                # Adaptive windows can share a cell within one tap, which an ordinary += would add once.
                self.xp.add.at(total, (*before, inputs), grad_output[(*before, outputs)])
            grad_output = total
        return grad_output

    def _divisor(self, geometry: Windows, include_pad: bool, divisor: int | None, dtype: Any) -> Array:
        """Return what a window's sum is divided by; a window without cells keeps its 0."""
        if divisor is not None:
            return self.xp.asarray(divisor, dtype)
        counts = self.xp.ones((), self.xp.int64)
        for axis in range(geometry.ndim):
            counts = counts[..., None] * geometry.counts(axis, include_pad, self.xp.arange)
        return self.xp.maximum(counts, 1).astype(dtype)


def _interior(sizes: Sequence[int], pads: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    """Index the unpadded part of a padded array."""
    return (..., *(slice(low, low + n) for n, (low, _) in zip(sizes, pads, strict=True)))


def _lowest(dtype: Any) -> Any:
    """Return what never wins a maximum."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf
