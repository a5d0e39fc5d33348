"""Pooling windows: which input cells every output reads, axis by axis. Integers only.

A window is a box, so every pool is separable: a sum, a maximum and a count are taken along one axis after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..padding import GeometryError, Pairs, apply_rule, as_int, parse, per_axis
from .convolution import Sizes

Taps = tuple[tuple[Any, Any], ...]
"""Pairs (outputs, inputs) of index objects of equal length: tap by tap, in ascending order of the inputs."""


@dataclass(frozen=True)
class PoolGeometry:
    """Windows of equal size: output j reads the cells ``j * stride + tap * dilation - low`` that lie in the input.

    Attributes
    ----------
    input_size, kernel_size, stride, dilation, output_size
        One int per spatial axis.
    cuts
        Cells that negative padding cuts from the low and the high end first; `input_size` is counted before.
    padding
        What is left of the padding: not negative.
    """

    input_size: Sizes
    kernel_size: Sizes
    stride: Sizes
    dilation: Sizes
    cuts: Pairs
    padding: Pairs
    output_size: Sizes

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel_size)

    @property
    def step(self) -> Sizes:
        """Distance between the cells of a window."""
        return self.dilation

    @property
    def cut_size(self) -> Sizes:
        """What the cuts leave."""
        return tuple([n - low - high for n, (low, high) in zip(self.input_size, self.cuts, strict=True)])

    @property
    def reach(self) -> Pairs:
        """Low pad and the high pad that the last window needs, ceil overhang included, per axis."""
        return tuple(
            [
                (low, max((out - 1) * s + d * (k - 1) + 1 - n - low, 0))
                for n, k, s, d, (low, _), out in zip(
                    self.cut_size, self.kernel_size, self.stride, self.dilation, self.padding, self.output_size,
                    strict=True,
                )
            ]
        )  # fmt: skip

    def taps(self, axis: int) -> Taps:
        """Return, for every cell of the window, the outputs whose cell lies in the input, and those inputs."""
        n, out, s, d = self.cut_size[axis], self.output_size[axis], self.stride[axis], self.dilation[axis]
        (cut, _), (low, _) = self.cuts[axis], self.padding[axis]
        taps = []
        for tap in range(self.kernel_size[axis]):
            offset = tap * d - low
            first = max(-(offset // s), 0)
            stop = min((n - 1 - offset) // s + 1, out)
            if first < stop:
                start = cut + first * s + offset
                taps.append((slice(first, stop), slice(start, start + (stop - first - 1) * s + 1, s)))
        return tuple(taps)

    def cells(self, axis: int, arange: Callable[..., Any]) -> Any:
        """Return the padded cell of every tap and output of an axis, an integer matrix (kernel, out)."""
        taps = arange(self.kernel_size[axis])[:, None] * self.dilation[axis]
        return taps + arange(self.output_size[axis])[None, :] * self.stride[axis]

    def counts(self, axis: int, include_pad: bool, arange: Callable[..., Any]) -> Any:
        """Return how many cells of each window lie in the input, or in the input with its declared padding.

        `arange` makes the integer vectors, so that an engine can keep symbolic sizes.
        """
        n, (low, high) = self.cut_size[axis], self.padding[axis]
        first, last = (-low, n + high) if include_pad else (0, n)
        starts = arange(self.output_size[axis]) * self.stride[axis] - low
        cells = starts[:, None] + arange(self.kernel_size[axis])[None, :] * self.dilation[axis]
        return ((cells >= first) & (cells < last)).sum(-1)


@dataclass(frozen=True)
class AdaptiveGeometry:
    """torch's adaptive windows: output j reads the cells from ``floor(j n / out)`` to ``ceil((j + 1) n / out)``."""

    input_size: Sizes
    output_size: Sizes

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.output_size)

    @property
    def step(self) -> Sizes:
        """Distance between the cells of a window."""
        return (1,) * self.ndim

    def taps(self, axis: int) -> Taps:
        """Return, for every cell of the longest window, the outputs that have it, and their inputs."""
        windows = self._windows(axis)
        taps = []
        for tap in range(max(stop - start for start, stop in windows)):
            outputs = [j for j, (start, stop) in enumerate(windows) if start + tap < stop]
            taps.append((outputs, [windows[j][0] + tap for j in outputs]))
        return tuple(taps)

    def counts(self, axis: int, include_pad: bool, arange: Callable[..., Any]) -> Any:
        """Return the number of cells of each window."""
        outputs = arange(self.output_size[axis])
        n, out = self.input_size[axis], self.output_size[axis]
        return -(-(outputs + 1) * n // out) - outputs * n // out

    def _windows(self, axis: int) -> list[tuple[int, int]]:
        n, out = self.input_size[axis], self.output_size[axis]
        return [(j * n // out, -(-(j + 1) * n // out)) for j in range(out)]


def window_bounds(geometry: PoolGeometry | AdaptiveGeometry, axis: int) -> tuple[list[int], list[int]]:
    """Return, of every window of an axis, its first cell in the input and how many it has, `step` apart."""
    size = geometry.output_size[axis]
    starts, counts = [0] * size, [0] * size
    outputs_of, inputs_of = range(size), range(geometry.input_size[axis])
    for outputs, inputs in geometry.taps(axis):
        outputs = outputs_of[outputs] if isinstance(outputs, slice) else outputs
        inputs = inputs_of[inputs] if isinstance(inputs, slice) else inputs
        for output, cell in zip(outputs, inputs, strict=True):
            if counts[output] == 0:
                starts[output] = cell
            counts[output] += 1
    return starts, counts


def covering_bounds(geometry: PoolGeometry | AdaptiveGeometry, axis: int) -> tuple[list[int], list[int], int]:
    """Return, of every input cell of an axis, the first window that holds it, how many do, and how far apart they are.

    Where ``j * stride + tap * dilation`` is the same cell, j goes in steps of ``dilation / gcd(stride, dilation)``.
    Adaptive windows that share a cell are neighbours.
    """
    size = geometry.input_size[axis]
    firsts, counts = [0] * size, [0] * size
    outputs_of, inputs_of = range(geometry.output_size[axis]), range(size)
    for outputs, inputs in geometry.taps(axis):
        outputs = outputs_of[outputs] if isinstance(outputs, slice) else outputs
        inputs = inputs_of[inputs] if isinstance(inputs, slice) else inputs
        for output, cell in zip(outputs, inputs, strict=True):
            firsts[cell] = output if counts[cell] == 0 else min(output, firsts[cell])
            counts[cell] += 1
    if isinstance(geometry, AdaptiveGeometry):
        return firsts, counts, 1
    stride, dilation = geometry.stride[axis], geometry.dilation[axis]
    return firsts, counts, dilation // math.gcd(stride, dilation)


def pool_geometry(
    operation: str,
    input_size: Sizes,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> PoolGeometry:
    """Return the checked geometry of a pool.

    With ``floor_out = (n + lo + hi - ke) // s + 1``, ceil mode adds one window if a remainder is left and
    ``floor_out * s < n + lo``, so that no window starts in the high padding (the rule of torch and ONNX).
    """
    ndim = len(input_size)
    try:
        kernel = per_axis(kernel_size, ndim, "kernel_size", minimum=1)
        steps = kernel if stride is None else per_axis(stride, ndim, "stride", minimum=1)
        spacing = per_axis(dilation, ndim, "dilation", minimum=1)
        pairs = parse(padding, ndim)
    except (GeometryError, TypeError) as error:
        raise type(error)(f"{operation}: {error}") from None
    if isinstance(pairs, str):
        pairs = apply_rule(pairs, input_size, kernel, steps, spacing)
    cuts = tuple([(max(-low, 0), max(-high, 0)) for low, high in pairs])
    pads = tuple([(max(low, 0), max(high, 0)) for low, high in pairs])
    output = []
    for axis, (n, k, s, d, (low, high)) in enumerate(zip(input_size, kernel, steps, spacing, pairs, strict=True)):
        extent, span = d * (k - 1) + 1, n + low + high
        if sum(cuts[axis]) > n:
            raise GeometryError(f"{operation}: padding ({low}, {high}) cuts more than the {n} cells of axis {axis}")
        out = (span - extent) // s + 1
        if ceil_mode and (span - extent) % s and out * s < n - sum(cuts[axis]) + max(low, 0):
            out += 1
        if out < 1:
            raise GeometryError(
                f"{operation}: no output on spatial axis {axis}: the window spans {extent} cells, the padded input "
                f"{span} (input {n} + padding ({low}, {high})); pad {extent - span} more, or use a smaller window"
            )
        output.append(out)
    return PoolGeometry(tuple(input_size), kernel, steps, spacing, cuts, pads, tuple(output))


cached_pool_geometry = lru_cache(maxsize=1024)(pool_geometry)


def adaptive_geometry(operation: str, input_size: Sizes, output_size: Any) -> AdaptiveGeometry:
    """Return the geometry of an adaptive pool; None on an axis keeps its size, as in torch."""
    ndim = len(input_size)
    given = tuple(output_size) if hasattr(output_size, "__len__") else (output_size,) * ndim
    if len(given) != ndim or isinstance(output_size, str):
        raise GeometryError(f"{operation}: output_size={output_size!r} is not one int per spatial axis, of {ndim}")
    name = f"{operation}: output_size"
    sizes = tuple(n if size is None else as_int(size, name) for n, size in zip(input_size, given, strict=True))
    for axis, (n, size) in enumerate(zip(input_size, sizes, strict=True)):
        if size < 1 or n < 1:
            raise GeometryError(f"{operation}: spatial axis {axis} of {n} cells cannot be pooled to {size}")
    return AdaptiveGeometry(tuple(input_size), sizes)
