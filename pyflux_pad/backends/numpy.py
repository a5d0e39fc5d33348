"""The reference engine: NumPy arrays, BLAS on cache-sized blocks, a pair of pads on every axis.

One kernel does everything. It gathers the inputs of a block of outputs into a small matrix, zeros where a window
leaves the input, and multiplies. The gradient by the input is the same kernel: with stride s and dilation d, the inputs
of one residue modulo s are a stride-1 correlation of the gradient with every (s / gcd(s, d))-th tap, reversed. The
gradient by the weight multiplies the gathered matrix from the other side. No array of im2col's size is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..geometry import AdaptiveGeometry, ConvGeometry, ConvPlan, PadGeometry, PoolGeometry
from ..padding import source_index

Array = Any
Sizes = tuple[int, ...]
Box = tuple[slice, ...]
Windows = PoolGeometry | AdaptiveGeometry

_BLOCK_BYTES = 1 << 21
"""Size of a gathered matrix, and of its halo and its product: together they stay in a last-level cache."""
_MATRIX_BYTES = 1 << 22
"""Size of a block of weights that is converted or summed."""
_COLUMNS = 128
"""Outputs in a block below which the channels are split instead: BLAS wants both sides of a product long."""
_LOW_PRECISION = ("float16", "bfloat16")
_DTYPES = (
    *_LOW_PRECISION, "float32", "float64", "complex64", "complex128",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)  # fmt: skip


class Axis(NamedTuple):
    """One axis of a correlation: output j reads the inputs ``j * stride + tap * dilation - low``."""

    stride: int
    dilation: int
    low: int


class NumpyEngine:
    """Convolutions of NumPy arrays, written against an array module so that CuPy can inherit them."""

    name = "numpy"
    family = "numpy"
    native_padding = True
    takes_out = True
    xp: ModuleType = np

    def check(self, operation: str, arrays: dict[str, Array]) -> None:
        """Raise TypeError for unknown dtypes and for mixtures; byte order does not matter."""
        (first, array), *others = arrays.items()
        if array.dtype.name not in _DTYPES:
            raise TypeError(
                f"{operation}: {first} has dtype {array.dtype.name}, which is not one of {', '.join(_DTYPES)}; "
                f"convert it with {first}.astype(...)"
            )
        for name, other in others:
            if other.dtype != array.dtype and _native(other.dtype) != _native(array.dtype):
                raise TypeError(
                    f"{operation}: {first} is {array.dtype.name} but {name} is {other.dtype.name}; nothing is "
                    f"converted silently, so convert one of them: {name}.astype({first}.dtype)"
                )

    def symbolic(self, *arrays: Array) -> bool:
        """Sizes of NumPy arrays are plain ints."""
        return False

    def traced(self) -> bool:
        """NumPy code is not traced."""
        return False

    def itemsize(self, array: Array) -> int:
        """Bytes per element."""
        return array.dtype.itemsize

    def records(self, *arrays: Array) -> bool:
        """NumPy records no gradients."""
        return False

    def overlaps(self, out: Array, array: Array) -> bool:
        """Say whether two arrays may share memory."""
        return self.xp.may_share_memory(out, array)

    def conjugate(self, array: Array) -> Array:
        """Return the complex conjugate; real arrays as they are."""
        return array.conj() if array.dtype.kind == "c" else array

    def bias_gradient(self, grad_output: Array) -> Array:
        """Sum over the batch and the spatial axes, low precision in float32."""
        dtype = _native(grad_output.dtype)
        axes = (0, *range(2, grad_output.ndim))
        return grad_output.sum(axis=axes, dtype=_compute_dtype(dtype)).astype(dtype, copy=False)

    def conv(
        self,
        plan: ConvPlan,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        contiguous: bool = True,
        out: Array | None = None,
    ) -> Array:
        """Return the convolution, in `out` if given; a forced strategy cuts, pads and drops outputs as it says."""
        geometry = plan.geometry
        for axis, start, length in plan.cuts:
            x = x[(slice(None),) * axis + (slice(start, start + length),)]
        if plan.pads:
            x = self.xp.pad(x, ((0, 0), (0, 0), *(axis.pad for axis in plan.axes)))
        computed = (geometry.batch, geometry.out_channels, *(axis.computed for axis in plan.axes))
        result = out if out is not None and not plan.keeps else self.xp.empty(computed, _native(x.dtype))
        axes = tuple(Axis(*axis) for axis in zip(geometry.stride, geometry.dilation, plan.native_low, strict=True))
        self._correlate(
            _grouped(x, geometry.groups),
            _grouped(weight, geometry.groups, axis=0, flip=geometry.flip_kernel),
            _grouped(result, geometry.groups),
            (Axis(1, 1, 0),) * (3 - len(axes)) + axes,
            bias,
        )
        for axis, start, length in plan.keeps:
            result = result[(slice(None),) * axis + (slice(start, start + length),)]
        if out is None:
            return self.xp.ascontiguousarray(result) if contiguous else result
        if result is not out:
            out[...] = result
        return out

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input: a stride-1 correlation for each residue of the input modulo the stride.

        ``j * stride + k * dilation = i + low`` is symmetric in gradient and kernel. The shorter of them slides over
        the longer one, so that a kernel as large as the input costs no more than its transpose.
        """
        result = self.xp.empty(geometry.input_shape, _native(grad_output.dtype))
        still = _grouped(grad_output, geometry.groups)  # (N, G, O, *out)
        sliding = _grouped(weight, geometry.groups, axis=0, flip=geometry.flip_kernel).swapaxes(1, 2)  # (G, C, O, *k)
        target = _grouped(result, geometry.groups)  # (N, G, C, *in)
        lifted = geometry.lifted()
        steps = zip(lifted.stride, lifted.dilation, strict=True)
        # Swapped, the channels of the result are where the batch was: the bias is added afterwards, a second rounding.
        rounds = bias is not None and _compute_dtype(result.dtype) != result.dtype
        swap = not rounds and math.prod(geometry.kernel_size) > math.prod(geometry.output_size)
        if swap:
            still, sliding, target = sliding.swapaxes(0, 1), still.swapaxes(0, 1), target.swapaxes(0, 2)
            steps = zip(lifted.dilation, lifted.stride, strict=True)
        phases = (
            _phases(n, taps, Axis(*step, low))
            for n, taps, step, (low, _) in zip(target.shape[3:], sliding.shape[3:], steps, lifted.padding, strict=True)
        )
        inner_bias = None if swap else bias
        for phase in product(*phases):
            places, taps, axes = zip(*phase, strict=True)
            self._correlate(still, sliding[(..., *taps)], target[(..., *places)], axes, inner_bias)
        if bias is not None and swap:
            result += bias.reshape(-1, *(1,) * geometry.ndim)
        return result

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight: the gradient times the gathered inputs, summed over batch and outputs."""
        xp, dtype = self.xp, _native(x.dtype)
        compute = _compute_dtype(dtype)
        result = xp.zeros(geometry.weight_shape, dtype)
        if x.size == 0 or grad_output.size == 0 or result.size == 0:
            return result
        target = _grouped(result, geometry.groups, axis=0, flip=geometry.flip_kernel)
        x, gradient = _grouped(x, geometry.groups), _grouped(grad_output, geometry.groups)
        lifted = geometry.lifted()
        axes = tuple(
            Axis(s, d, low) for s, d, (low, _) in zip(lifted.stride, lifted.dilation, lifted.padding, strict=True)
        )
        (batch, groups, _, *outputs), (channels, *kernel) = gradient.shape, target.shape[2:]
        tile = _tile(gradient.shape, (channels, *kernel), axes, compute.itemsize, _MATRIX_BYTES, 2 * _COLUMNS)
        gather = _Gather(xp, x, axes, compute, tile)
        for group, *taps in _boxes((groups, channels, *kernel), (tile.outputs[1], *tile.taps)):
            place = target[(group, slice(None), *taps)]
            total = xp.zeros((place.shape[0], place.shape[1], math.prod(place.shape[2:])), compute)
            for samples, *out in _boxes((batch, *outputs), (tile.outputs[0], *tile.outputs[2:])):
                rows = gradient[(samples, group, slice(None), *out)].transpose(1, 2, 0, 3, 4, 5)
                rows = rows.astype(compute, copy=False).reshape(*total.shape[:2], -1)
                total += xp.matmul(rows, gather((samples, group, *out), taps).swapaxes(1, 2))
            place[...] = total.reshape(place.shape)
        return result

    def pad(self, geometry: PadGeometry, x: Array, value: complex = 0.0) -> Array:
        """Return the padded array: constants in one copy, then each other axis by its index vector."""
        xp, dtype = self.xp, _native(x.dtype)
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
        xp, dtype = self.xp, _native(grad_output.dtype)
        total = grad_output.astype(_compute_dtype(dtype), copy=False)
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

    # ------------------------------------------------------------------ pools

    def avg_pool(self, geometry: Windows, x: Array, include_pad: bool, divisor: int | None) -> Array:
        """Return the sum of every window over its divisor, low precision in float32."""
        total = self._pool_sum(geometry, x.astype(_compute_dtype(_native(x.dtype)), copy=False))
        total /= self._divisor(geometry, include_pad, divisor, total.dtype)
        return total.astype(_native(x.dtype), copy=False)

    def avg_pool_transpose(
        self, geometry: Windows, grad_output: Array, include_pad: bool, divisor: int | None
    ) -> Array:
        """Return the transpose of `avg_pool`."""
        compute = _compute_dtype(_native(grad_output.dtype))
        shares = grad_output.astype(compute, copy=False) / self._divisor(geometry, include_pad, divisor, compute)
        return self._pool_sum_transpose(geometry, shares).astype(_native(grad_output.dtype), copy=False)

    def lp_pool(self, geometry: Windows, x: Array, power: float) -> Array:
        """Return ``(sum |x|^p)^(1/p)`` over the cells of every window that lie in the input."""
        compute = _compute_dtype(_native(x.dtype))
        total = self._pool_sum(geometry, self.xp.abs(x.astype(compute, copy=False)) ** power)
        return (total ** (1 / power)).astype(_native(x.dtype), copy=False)

    def lp_pool_gradient(self, geometry: Windows, x: Array, grad_output: Array, power: float) -> Array:
        """Return ``sign(x) |x|^(p-1) * sum over windows of grad y^(1-p)``, 0 where a window is all zero."""
        xp, compute = self.xp, _compute_dtype(_native(x.dtype))
        x = x.astype(compute, copy=False)
        total = self._pool_sum(geometry, xp.abs(x) ** power)
        empty = total == 0
        scaled = grad_output.astype(compute) * xp.where(empty, 1, total) ** (1 / power - 1)
        shares = self._pool_sum_transpose(geometry, xp.where(empty, 0, scaled))
        return (xp.sign(x) * xp.abs(x) ** (power - 1) * shares).astype(_native(grad_output.dtype), copy=False)

    def max_pool(self, geometry: Windows, x: Array, with_indices: bool = True) -> tuple[Array, Array]:
        """Return the maxima and their flat indices: first on ties, last on NaN, -1 for a window without input cells."""
        xp = self.xp
        best = x.astype(_native(x.dtype), copy=False)
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
        xp, dtype = self.xp, _native(grad_output.dtype)
        planes, cells = math.prod(shape[:2]), math.prod(shape[2:])
        result = xp.zeros((planes, cells), _compute_dtype(dtype))
        places = index.reshape(planes, -1)
        rows, columns = xp.nonzero(places >= 0)
        xp.add.at(result, (rows, places[rows, columns]), grad_output.reshape(planes, -1)[rows, columns])
        return result.reshape(shape).astype(dtype, copy=False)

    def unfold(self, geometry: PoolGeometry, x: Array) -> Array:
        """Return the cells of every window, (N, C, *kernel, *out), zeros outside the input."""
        xp, dtype = self.xp, _native(x.dtype)
        sizes = [n + low + high for n, (low, high) in zip(geometry.cut_size, geometry.reach, strict=True)]
        padded = xp.zeros((*x.shape[:2], *sizes), dtype)
        padded[_interior(geometry.cut_size, geometry.reach)] = x[_interior(geometry.cut_size, geometry.cuts)]
        for axis in range(geometry.ndim):
            padded = padded.take(geometry.cells(axis, xp.arange), 2 + 2 * axis)
        return padded.transpose(0, 1, *range(2, padded.ndim, 2), *range(3, padded.ndim, 2))

    def fold(self, geometry: PoolGeometry, columns: Array) -> Array:
        """Return the transpose of `unfold`: overlapping cells are added, low precision in float32."""
        xp, dtype, ndim = self.xp, _native(columns.dtype), geometry.ndim
        order = [axis + 2 for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        total = columns.astype(_compute_dtype(dtype), copy=False).transpose(0, 1, *order)
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

    def _correlate(self, x: Array, kernel: Array, result: Array, axes: Sequence[Axis], bias: Array | None) -> None:
        """Write the correlation of `x` with `kernel`, plus `bias`, into `result`.

        Shapes: x (N, G, C, *in), kernel (G, O, C, *k), result (N, G, O, *out), bias (G * O,). Windows that leave x
        read zeros. Low precision is summed in float32 and rounded once.
        """
        xp, compute = self.xp, _compute_dtype(result.dtype)
        batch, groups, rows, *outputs = result.shape
        if bias is not None:
            bias = bias.reshape(groups, rows, 1).astype(compute)
        if x.size == 0 or kernel.size == 0 or result.size == 0:
            result[...] = 0 if bias is None else bias[..., None, None]
            return
        matrix_bytes = _MATRIX_BYTES if compute != kernel.dtype else None
        tile = _tile(result.shape, kernel.shape[2:], axes, compute.itemsize, matrix_bytes, _COLUMNS)
        gather = _Gather(xp, x, axes, compute, tile)
        for samples, group, *out in _boxes((batch, groups, *outputs), tile.outputs):
            total: Array = None
            for taps in _boxes(kernel.shape[2:], tile.taps):
                matrix = kernel[(group, slice(None), *taps)].astype(compute, copy=False)
                matrix = matrix.reshape(*matrix.shape[:2], -1)
                part = xp.matmul(matrix, gather((samples, group, *out), taps))
                total = part if total is None else xp.add(total, part, out=total)
            if bias is not None:
                total += bias[group]
            place = result[(samples, group, slice(None), *out)].transpose(1, 2, 0, 3, 4, 5)
            place[...] = total.reshape(place.shape)


ENGINE = NumpyEngine()


class _Gather:
    """Copies the inputs that a block of outputs reads into a matrix, through buffers that every block reuses."""

    def __init__(self, xp: ModuleType, x: Array, axes: Sequence[Axis], dtype: Any, tile: _Tile) -> None:
        self.xp, self.x, self.axes = xp, x, axes
        self.matrix = xp.empty(tile.cells, dtype)
        self.halo = xp.empty(tile.halo, x.dtype)

    def __call__(self, outputs: Sequence[slice], taps: Sequence[slice]) -> Array:
        """Return the matrix (groups, channels * taps, samples * outputs) of a box of outputs and a box of taps."""
        samples, group, *out = outputs
        channel, *kernel = taps
        x = self.x[samples, group, channel]
        starts, spans = [], []
        for axis, place, tap in zip(self.axes, out, kernel, strict=True):
            starts.append(place.start * axis.stride + tap.start * axis.dilation - axis.low)
            spans.append(_span(axis, place.stop - place.start, tap.stop - tap.start))
        inside = [slice(max(start, 0), max(start + span, 0)) for start, span in zip(starts, spans, strict=True)]
        part = x[(..., *inside)]
        if part.shape[3:] != tuple(spans):
            part = self._with_halo(part, starts, spans)
        strides = part.strides
        shape = (*part.shape[1:3], *map(_length, kernel), part.shape[0], *map(_length, out))
        view = self.xp.lib.stride_tricks.as_strided(
            part,
            shape,
            (
                *strides[1:3],
                *self._steps(strides[3:], shape[2:5], [axis.dilation for axis in self.axes]),
                strides[0],
                *self._steps(strides[3:], shape[6:9], [axis.stride for axis in self.axes]),
            ),
        )
        matrix = self.matrix[: math.prod(shape)].reshape(shape)
        matrix[...] = view
        return matrix.reshape(shape[0], math.prod(shape[1:5]), -1)

    @staticmethod
    def _steps(strides: Sizes, lengths: Sizes, factors: Sequence[int]) -> Iterator[int]:
        """Return byte strides of a step by `factors`; an axis of length 1 takes none, whose product could overflow."""
        for stride, length, factor in zip(strides, lengths, factors, strict=True):
            yield stride * factor if length > 1 else 0

    def _with_halo(self, part: Array, starts: list[int], spans: list[int]) -> Array:
        """Return `part` with zeros where the box leaves the input."""
        shape = (*part.shape[:3], *spans)
        halo = self.halo[: math.prod(shape)].reshape(shape)
        halo[...] = 0
        places = (
            slice(max(-start, 0), max(-start, 0) + size) for start, size in zip(starts, part.shape[3:], strict=True)
        )
        halo[(..., *places)] = part
        return halo


class _Tile(NamedTuple):
    """How much of each axis a block takes, and the cells of its matrix and of its halo."""

    outputs: Sizes
    taps: Sizes
    cells: int
    halo: int


def _tile(
    result: Sizes, taps: Sizes, axes: Sequence[Axis], itemsize: int, matrix_bytes: int | None, columns: int
) -> _Tile:
    """Choose block sizes so that matrix, halo and product each stay below `_BLOCK_BYTES`.

    Parameters
    ----------
    result
        (N, G, O, *out).
    taps
        (C, *k).
    axes
        The three spatial axes.
    itemsize
        Bytes per element of the computation.
    matrix_bytes
        Bound for a block of the weight, where it is converted or summed.
    columns
        Outputs per block below which channels and taps are split first.
    """
    rows = result[2]
    tile = [*result[:2], *result[3:], *taps]  # samples, groups, three outputs, channels, three taps
    limit = _BLOCK_BYTES // itemsize

    def cells() -> int:
        return math.prod(tile[1:])

    def halo() -> int:
        spans = (_span(axis, out, k) for axis, out, k in zip(axes, tile[2:5], tile[6:9], strict=True))
        return tile[0] * tile[1] * tile[5] * math.prod(spans)

    def excess() -> float:
        """How many times too large the block is."""
        sizes = (tile[0] * cells(), halo(), tile[0] * tile[1] * rows * math.prod(tile[2:5]))
        return max(sizes) / limit

    def shrink(axis: int, factor: float, least: int = 1) -> bool:
        size = max(least, min(int(tile[axis] / factor), tile[axis] - 1))
        changed = size < tile[axis]
        tile[axis] = min(size, tile[axis])
        return changed

    # Samples first, then groups, then rows of outputs; short blocks split channels and taps before they get shorter.
    while (factor := excess()) > 1:
        if any(shrink(axis, factor) for axis in (0, 1)):
            continue
        if any(
            shrink(axis, factor, least=-(-columns // max(math.prod(tile[2:5]) // tile[axis], 1))) for axis in (2, 3, 4)
        ):
            continue
        if not any(shrink(axis, factor) for axis in (5, 6, 7, 8, 2, 3, 4)):
            break
    while matrix_bytes is not None and (factor := tile[1] * rows * math.prod(tile[5:]) * itemsize / matrix_bytes) > 1:
        if not any(shrink(axis, factor) for axis in (1, 5, 6, 7, 8)):
            break
    whole = (*result[:2], *result[3:], *taps)
    tile = [-(-size // -(-size // part)) if part else 0 for size, part in zip(whole, tile, strict=True)]
    return _Tile(tuple(tile[:5]), tuple(tile[5:]), tile[0] * cells(), halo())


def _boxes(sizes: Sequence[int], tiles: Sequence[int]) -> Iterator[Box]:
    """Yield the boxes of a grid: one slice per axis, the last axis fastest."""
    return product(
        *(
            [slice(start, min(start + tile, size)) for start in range(0, size, max(tile, 1))]
            for size, tile in zip(sizes, tiles, strict=True)
        )
    )


def _phases(n: int, kernel: int, axis: Axis) -> list[tuple[slice, slice, Axis]]:
    """Split the transpose of a strided axis into stride-1 correlations of the gradient.

    Input i receives ``gradient[j] * weight[k]`` for every ``j * stride + k * dilation = i + low``. The inputs with
    ``i + low = r`` modulo the stride share the taps k0, k0 + step, ... with ``k * dilation = r``, where step is
    stride / gcd(stride, dilation); reversed, those taps slide over the gradient with dilation / gcd.

    Returns
    -------
    list of (places, taps, axis)
        The inputs of a residue, its taps in reversed order (none: the inputs receive nothing) and the correlation.
    """
    common = math.gcd(axis.stride, axis.dilation)
    step, dilation = axis.stride // common, axis.dilation // common
    phases = []
    for first in range(min(axis.stride, n)):
        residue = (first + axis.low) % axis.stride
        taps = [k for k in range(min(step, kernel)) if (k * axis.dilation - residue) % axis.stride == 0]
        places = slice(first, None, axis.stride)
        if not taps:
            phases.append((places, slice(0, 0), Axis(1, 1, 0)))
            continue
        count = len(range(taps[0], kernel, step))
        start = (first + axis.low - taps[0] * axis.dilation) // axis.stride
        reversed_taps = slice(taps[0] + (count - 1) * step, None, -step)
        phases.append((places, reversed_taps, Axis(1, dilation, (count - 1) * dilation - start)))
    return phases


def _grouped(array: Array, groups: int, axis: int = 1, flip: bool = False) -> Array:
    """View with three spatial axes and the channel axis split into (groups, channels); kernels can be flipped."""
    missing = 5 - array.ndim
    array = array[(slice(None), slice(None), *(None,) * missing)]
    if flip:
        array = array[..., ::-1, ::-1, ::-1]
    shape = array.shape
    return array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _interior(sizes: Sequence[int], pads: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    """Index the unpadded part of a padded array."""
    return (..., *(slice(low, low + n) for n, (low, _) in zip(sizes, pads, strict=True)))


def _span(axis: Axis, outputs: int, taps: int) -> int:
    """Cells between the first and the last one that a box of outputs and taps reads."""
    return (outputs - 1) * axis.stride + (taps - 1) * axis.dilation + 1


def _length(box: slice) -> int:
    return box.stop - box.start


def _lowest(dtype: Any) -> Any:
    """Return what never wins a maximum."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _native(dtype: Any) -> Any:
    return dtype.newbyteorder("=")


def _compute_dtype(dtype: Any) -> Any:
    return np.dtype(np.float32) if dtype.name in _LOW_PRECISION else dtype
