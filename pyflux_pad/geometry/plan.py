"""The padding plan: how (low, high) pads become what an engine takes, cheapest first. Integers only, no arrays.

1. Pads that equal a symmetric pair cost nothing ("symmetric"): the slack of the last window often allows it.
2. An engine that takes pairs gets them ("native"); one that takes them for dense convolutions only (stride
   and groups 1, see `_is_dense`) gets them where that costs less than what follows.
3. "crop": pad both sides by enough, compute a few outputs more and keep those that are wanted.
4. "residual": let the engine pad the smaller amount on both sides and copy the input only for the difference.
5. "full": copy the input with all its padding.

Negative pads are views of the input. A kernel is never extended by zero taps: they would let ``0 * inf`` through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ..padding import GeometryError
from .convolution import ConvArguments, ConvGeometry, Sizes, conv_geometry
from .pad import PadGeometry, pad_geometry

STRATEGIES = ("symmetric", "native", "crop", "residual", "full")


class AxisPlan(NamedTuple):
    """What one spatial axis asks of an engine, in the order of execution.

    Attributes
    ----------
    strategy
        One of `STRATEGIES`.
    cut
        Cells cut from the low and from the high end of the input (views).
    pad
        Zeros copied to the low and to the high end.
    native
        Pads handed to the engine's own convolution.
    skip
        Leading outputs that are computed and dropped; what follows the wanted ones is dropped too.
    computed
        Number of outputs that the engine computes.
    """

    strategy: str
    cut: tuple[int, int]
    pad: tuple[int, int]
    native: tuple[int, int]
    skip: int
    computed: int


@dataclass(frozen=True)
class ConvPlan:
    """A geometry, the strategy of each axis and, worked out once so that a planned call costs little, what to execute.

    Attributes
    ----------
    geometry
        The convolution.
    axes
        One `AxisPlan` per spatial axis.
    cuts
        Views of the input before anything else: (array axis, start, length) each.
    pads
        Zeros to copy around the input, pairs, last axis first; empty if the input is not copied.
    native_low
        Low pad that the engine applies, per axis; a symmetric engine applies it to both sides.
    keeps
        Slices of what the engine computes: (array axis, start, length) each.
    is_empty
        Whether batch or channels are empty, which engines refuse.
    explicit
        Padding of the input by a mode other than zeros, before everything else; `geometry` is that of what it gives.
    copy_bytes
        Bytes written by copies beyond the result itself: a padded input, or a cropped result made contiguous.
    extra_work
        Multiply-adds beyond those of the result.
    """

    geometry: ConvGeometry
    axes: tuple[AxisPlan, ...]
    cuts: tuple[tuple[int, int, int], ...]
    pads: tuple[int, ...]
    native_low: Sizes
    keeps: tuple[tuple[int, int, int], ...]
    is_empty: bool
    copy_bytes: int = 0
    extra_work: int = 0
    explicit: PadGeometry | None = None

    @property
    def strategy(self) -> str | tuple[str, ...]:
        """The strategy of every axis: one name if they agree, else a tuple."""
        names = tuple(axis.strategy for axis in self.axes)
        return names[0] if len(set(names)) == 1 else names


def _make(geometry: ConvGeometry, axes: tuple[AxisPlan, ...], copy_bytes: int = 0, extra_work: int = 0) -> ConvPlan:
    """Work out what the planned axes ask of an engine."""
    copies = any([axis.strategy in ("residual", "full") for axis in axes])
    return ConvPlan(
        geometry,
        axes,
        cuts=tuple(
            [
                (axis + 2, planned.cut[0], size - sum(planned.cut))
                for axis, (planned, size) in enumerate(zip(axes, geometry.input_size, strict=True))
                if planned.cut != (0, 0)
            ]
        ),
        pads=tuple([entry for axis in reversed(axes) for entry in axis.pad]) if copies else (),
        native_low=tuple([axis.native[0] for axis in axes]),
        keeps=tuple(
            [
                (axis + 2, planned.skip, size)
                for axis, (planned, size) in enumerate(zip(axes, geometry.output_size, strict=True))
                if planned.strategy == "crop"
            ]
        ),
        is_empty=any([size == 0 for size in (geometry.batch, geometry.in_channels, geometry.out_channels)]),
        copy_bytes=copy_bytes,
        extra_work=extra_work,
    )


# The cost model compares a padded copy with a few outputs that are computed and thrown away. What matters is the
# number of multiply-adds that take as long as one byte copied. Measured on two cores (AMD EPYC, Intel Xeon) with torch
# 2.13, float32: convolutions of 16-64 channels run at 4e10 multiply-adds per second and more, a padded copy writes 4e9
# to 1e10 bytes per second. With these constants the faster of crop and residual was taken in 10 of the 11 cases of
# `pyflux-pad bench`, and in the eleventh they differed by 3 %.
_WORK_PER_BYTE = 10
# A call of the engine, a view or a copy, takes about 2 microseconds whatever its size: it decides for tiny arrays.
_WORK_PER_CALL = 80_000
# A dense convolution whose pairs go to the engine, on an Intel Xeon with AVX-512: with this for a call, and the factors
# of `_dense_cost`, it took 0.94 of the next best plan's time in the mean of 62 shapes that were chosen, and over 1.05
# of it in four; dilated, 0.92 in the mean of 100.
_DENSE_CALL = 1 << 20
_REGISTER = 16


def plan_conv(
    geometry: ConvGeometry,
    *,
    native: bool,
    itemsize: int = 4,
    training: bool = False,
    contiguous: bool = True,
    strategy: str | Sequence[str] | None = None,
    symbolic: bool = False,
    dense_pairs: bool = False,
) -> ConvPlan:
    """Choose how (low, high) pads become what an engine takes, cheapest first; see the design of `AxisPlan`.

    Parameters
    ----------
    geometry
        The convolution.
    native
        Whether the engine takes a pair per axis (NumPy, NNlib, the cuDNN graph); others take one pad for both sides.
    itemsize
        Bytes per element.
    training
        Whether a gradient will be taken: nothing is cropped then.
    contiguous
        Whether a cropped result is copied to be contiguous.
    strategy
        Force one of `STRATEGIES` on every axis, or one name per axis.
    symbolic
        Whether sizes are symbolic (export, dynamic compile): the plan then never branches on them.
    dense_pairs
        Whether the engine takes a pair per axis where stride and groups are 1; see `_is_dense`.

    Raises
    ------
    GeometryError
        If a forced strategy cannot give this result: "symmetric" without symmetric equivalent, "native" on an engine
        that takes no pairs, an unknown name.
    """
    if strategy is not None:
        names = (strategy,) * geometry.ndim if isinstance(strategy, str) else tuple(strategy)
        _check_strategies(names, geometry, native)
        axes = tuple(_axis(geometry, axis, name, symbolic) for axis, name in enumerate(names))
    elif native:
        axes = tuple(_axis(geometry, axis, "native", symbolic) for axis in range(geometry.ndim))
    elif symbolic:
        axes = tuple(_symbolic_axis(geometry, axis) for axis in range(geometry.ndim))
    else:
        return _cheapest(geometry, itemsize, training, contiguous, dense_pairs)
    return _priced(geometry, axes, itemsize, contiguous, symbolic)


def plan_padded(geometry: ConvGeometry, symbolic: bool = False) -> ConvPlan:
    """Plan without dropped outputs, as a weight gradient needs it: symmetric axes as they are, others padded."""
    if symbolic:
        return _make(geometry, tuple(_symbolic_axis(geometry, axis) for axis in range(geometry.ndim)))
    return _make(geometry, tuple(_axis_or(geometry, axis, "residual") for axis in range(geometry.ndim)))


cached_padded_plan = lru_cache(maxsize=1024)(plan_padded)


def _check_strategies(names: tuple[str, ...], geometry: ConvGeometry, native: bool) -> None:
    for name in names:
        if name not in STRATEGIES:
            raise GeometryError(f"plan: strategy must be one of {', '.join(STRATEGIES)}, got {name!r}")
        if name == "native" and not native:
            raise GeometryError("plan: strategy 'native' needs an engine that always takes (low, high) pairs")
    if len(names) != geometry.ndim:
        raise GeometryError(f"plan: {len(names)} strategies for {geometry.ndim} spatial axes: {names}")


def _cheapest(geometry: ConvGeometry, itemsize: int, training: bool, contiguous: bool, dense_pairs: bool) -> ConvPlan:
    """Take symmetric axes as they are; the others are all cropped, padded or left to the engine, whichever costs least.

    One padded axis copies the whole input already, so padding the others along with it is never dearer than cropping
    them. Where a gradient is taken they are padded: backward, a crop embeds the gradient in zeros, and the wider pads
    keep torch from its fast kernels; the weight gradient of strided convolutions then took two to four times as long.
    """
    crop, residual = [
        _priced(geometry, tuple([_axis_or(geometry, a, name) for a in range(geometry.ndim)]), itemsize, contiguous)
        for name in ("crop", "residual")
    ]
    if training or not (residual.pads or crop.keeps):
        return residual
    plan = crop if _cost(crop) < _cost(residual) else residual
    if dense_pairs and _is_dense(geometry) and _dense_cost(geometry, itemsize) < _cost(plan):
        axes = tuple([_axis(geometry, axis, "native") for axis in range(geometry.ndim)])
        return _make(geometry, axes, copy_bytes=itemsize * math.prod(geometry.weight_shape))
    return plan


def _is_dense(geometry: ConvGeometry) -> bool:
    """Say whether an engine that takes pairs of dense convolutions only takes these.

    It runs them transposed, with ``k - 1`` less the pads, which must not be negative. oneDNN's fast kernels take
    channels by 16 (a register of AVX-512); the others, and dilated ones, took 1.4 to 4 times as long. Where a dilation
    divides a single axis and its pads, though, the axis is a dense one in rows of that length; rows of 2 and 3 are too
    short for the kernels.
    """
    channels = (geometry.in_channels, geometry.out_channels)
    rows = _rows(geometry)
    pads = [(k * rows, pad) for k, pair in zip(geometry.kernel_size, geometry.padding, strict=True) for pad in pair]
    return (
        geometry.groups == 1
        and geometry.batch > 0
        and not any([count == 0 or count % _REGISTER for count in channels])
        and all([stride == 1 for stride in geometry.stride])
        and rows not in (2, 3)
        and all([dilation == rows for dilation in geometry.dilation])
        and all([0 <= pad < extent and pad % rows == 0 for extent, pad in pads])
        and geometry.input_size[0] % rows == 0
        and 0 not in geometry.input_size
    )


def _rows(geometry: ConvGeometry) -> int:
    """Return the length of the rows in which taps of a dilated single axis are neighbours."""
    return geometry.dilation[0] if geometry.ndim == 1 else 1


def transposed(geometry: ConvGeometry) -> tuple[int, Sizes, Sizes]:
    """Return a dense convolution as a transposed one of the turned kernel: rows, low crops and output paddings.

    Rows other than 1 make two axes of one, ``(n / rows, rows)``, with a kernel of ``(k, 1)``.
    """
    rows, axis = _rows(geometry), zip(geometry.kernel_size, geometry.padding, strict=True)
    crops = [(k - 1 - low // rows, (high - low) // rows) for k, (low, high) in axis] + [(0, 0)] * (rows > 1)
    return rows, tuple([crop for crop, _ in crops]), tuple([extra for _, extra in crops])


def _dense_cost(geometry: ConvGeometry, itemsize: int) -> int:
    """Return what running a convolution transposed costs: turning the weight, a slower kernel's result, a call."""
    turned, result = math.prod(geometry.weight_shape), math.prod(geometry.output_shape)
    return _WORK_PER_BYTE * (itemsize * (8 * turned + result // 2) + _DENSE_CALL)


def _axis_or(geometry: ConvGeometry, axis: int, name: str) -> AxisPlan:
    """Plan an axis as symmetric if it can be, else by `name`."""
    low = geometry.padding[axis][0]
    lowest, highest = geometry.slack[axis]
    if 0 <= low and lowest <= low <= highest and geometry.input_size[axis] > 0:
        return _axis(geometry, axis, "symmetric")
    planned = _axis(geometry, axis, name)
    # After a cut the remaining pads may be symmetric: nothing is padded or dropped then.
    if planned.pad == (0, 0) and planned.skip == 0 and planned.computed == geometry.output_size[axis]:
        return planned._replace(strategy="symmetric")
    return planned


def _axis(geometry: ConvGeometry, axis: int, name: str, symbolic: bool = False) -> AxisPlan:
    """Plan one axis by the strategy `name`."""
    n, s, ke = geometry.input_size[axis], geometry.stride[axis], geometry.extent[axis]
    low, high = geometry.padding[axis]
    out = geometry.output_size[axis]
    if name == "native":
        return AxisPlan("native", (0, 0), (0, 0), (low, high), 0, out)
    lowest, highest = geometry.slack[axis]
    if name == "symmetric":
        if low < 0:
            raise GeometryError(
                f"plan: the low pad {low} on spatial axis {axis} is negative, and no engine's symmetric padding cuts; "
                f"leave strategy=None, which cuts the input first"
            )
        if not lowest <= low <= highest:
            raise GeometryError(
                f"plan: no symmetric padding equals ({low}, {high}) on spatial axis {axis}: the high pad must lie in "
                f"[{lowest}, {highest}]; leave strategy=None"
            )
        return AxisPlan("symmetric", (0, 0), (0, 0), (low, low), 0, out)
    if symbolic:
        return _symbolic_axis(geometry, axis, name)
    high = min(max(low, lowest), highest)  # of the high pads that give this result, the one nearest to low
    cut, (low, high) = _cut(n, low, high)
    if name == "full" or sum(cut) == n:  # nothing of the input is left: engines refuse an empty one
        return AxisPlan("full", cut, (low, high), (0, 0), 0, out)
    if name == "residual":
        both = min(low, high)
        return AxisPlan("residual", cut, (low - both, high - both), (both, both), 0, out)
    enough = max(low, high, 0)
    both = enough + (low - enough) % s  # the smallest pad that starts a window at -low and holds the last one
    computed = (n - sum(cut) + 2 * both - ke) // s + 1
    return AxisPlan("crop", cut, (0, 0), (both, both), (both - low) // s, computed)


def _cut(n: int, low: int, high: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Turn negative pads into cells cut from an axis of n; what exceeds the axis is taken from the other pad."""
    cut_low = min(max(-low, 0), n)
    high += min(low + cut_low, 0)
    cut_high = min(max(-high, 0), n - cut_low)
    low = max(low, 0) + min(high + cut_high, 0)
    return (cut_low, cut_high), (low, max(high, 0))


def _symbolic_axis(geometry: ConvGeometry, axis: int, name: str | None = None) -> AxisPlan:
    """Plan an axis whose sizes may be symbolic: pads are compared where they are plain ints, sizes never."""
    low, high = geometry.padding[axis]
    out, s = geometry.output_size[axis], geometry.stride[axis]
    if geometry.padding_from_sizes or name == "full":
        return AxisPlan("full", (0, 0), (low, high), (0, 0), 0, out)
    if low == high >= 0:
        return AxisPlan("symmetric", (0, 0), (0, 0), (low, high), 0, out)
    if name == "crop" and low >= 0:
        both = max(low, high) + (low - max(low, high)) % s
        computed = (geometry.input_size[axis] + 2 * both - geometry.extent[axis]) // s + 1
        return AxisPlan("crop", (0, 0), (0, 0), (both, both), (both - low) // s, computed)
    both = max(min(low, high), 0)
    return AxisPlan("residual", (0, 0), (low - both, high - both), (both, both), 0, out)


def _priced(
    geometry: ConvGeometry, axes: tuple[AxisPlan, ...], itemsize: int, contiguous: bool, symbolic: bool = False
) -> ConvPlan:
    """Add up what a plan copies and computes beyond the result."""
    if symbolic:
        return _make(geometry, axes)
    copied = 0
    if any(axis.pad != (0, 0) for axis in axes):
        padded = [n - sum(a.cut) + sum(a.pad) for n, a in zip(geometry.input_size, axes, strict=True)]
        copied += geometry.batch * geometry.in_channels * math.prod(padded)
    computed = math.prod([axis.computed for axis in axes])
    kept = math.prod(geometry.output_size)
    if computed != kept and contiguous:
        copied += geometry.batch * geometry.out_channels * kept
    taps = geometry.in_channels // geometry.groups * math.prod(geometry.kernel_size)
    extra = geometry.batch * geometry.out_channels * (computed - kept) * taps
    return _make(geometry, axes, copied * itemsize, extra)


def _cost(plan: ConvPlan) -> int:
    """Return the cost of a plan in multiply-adds."""
    calls = len(plan.keeps) + 1 if plan.keeps else 2 * bool(plan.pads)  # padding fills, then copies
    return plan.extra_work + _WORK_PER_BYTE * plan.copy_bytes + _WORK_PER_CALL * calls


def build_conv_plan(
    operation: str,
    x_shape: Sizes,
    weight_shape: Sizes,
    args: ConvArguments,
    native: bool,
    itemsize: int,
    training: bool,
    contiguous: bool,
    symbolic: bool,
    modes: tuple[str, ...] | None = None,
    detached: bool = False,
    strategy: str | tuple[str, ...] | None = None,
    dense_pairs: bool = False,
) -> ConvPlan:
    """Return the plan of a convolution of checked arguments; axes whose mode is not "zeros" are padded explicitly."""
    geometry = conv_geometry(operation, x_shape, weight_shape, args)
    explicit = None
    if modes is not None and any([mode != "zeros" for mode in modes]):
        zeros = [mode == "zeros" for mode in modes]
        pairs = tuple([(0, 0) if zero else pair for pair, zero in zip(geometry.padding, zeros, strict=True)])
        constant = tuple(["constant" if mode == "zeros" else mode for mode in modes])
        explicit = pad_geometry(operation, geometry.input_size, pairs, constant, detached)
        left = tuple([pair if zero else (0, 0) for pair, zero in zip(geometry.padding, zeros, strict=True)])
        padded_shape = (*x_shape[:2], *explicit.output_size)
        geometry = conv_geometry(operation, padded_shape, weight_shape, args._replace(padding=left))
    plan = plan_conv(
        geometry,
        native=native,
        itemsize=itemsize,
        training=training,
        contiguous=contiguous,
        strategy=strategy,
        symbolic=symbolic,
        dense_pairs=dense_pairs,
    )
    return plan if explicit is None else replace(plan, explicit=explicit)


cached_conv_plan = lru_cache(maxsize=1024)(build_conv_plan)
