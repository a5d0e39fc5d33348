"""Blocks of a correlation: how large they are, what they gather, and how a transpose splits into correlations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...geometry import ConvGeometry

Array = Any
Sizes = tuple[int, ...]
Box = tuple[slice, ...]

BLOCK_BYTES = 1 << 21
"""Size of a gathered matrix, and of its halo and its product: together they stay in a last-level cache."""
MATRIX_BYTES = 1 << 22
"""Size of a block of weights that is converted or summed."""
COLUMNS = 128
"""Outputs in a block below which the channels are split instead: BLAS wants both sides of a product long."""
LOW_PRECISION = ("float16", "bfloat16")


class Axis(NamedTuple):
    """One axis of a correlation: output j reads the inputs ``j * stride + tap * dilation - low``."""

    stride: int
    dilation: int
    low: int


class Gather:
    """Copies the inputs that a block of outputs reads into a matrix, through buffers that every block reuses."""

    def __init__(self, xp: ModuleType, x: Array, axes: Sequence[Axis], dtype: Any, tile: Tile) -> None:
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


class Tile(NamedTuple):
    """How much of each axis a block takes, and the cells of its matrix and of its halo."""

    outputs: Sizes
    taps: Sizes
    cells: int
    halo: int


def choose_tile(
    result: Sizes,
    taps: Sizes,
    axes: Sequence[Axis],
    itemsize: int,
    matrix_bytes: int | None,
    columns: int,
    block_bytes: int = BLOCK_BYTES,
) -> Tile:
    """Choose block sizes so that matrix, halo and product each stay below `block_bytes`.

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
    block_bytes
        Bound for each of the three.
    """
    rows = result[2]
    tile = [*result[:2], *result[3:], *taps]  # samples, groups, three outputs, channels, three taps
    limit = block_bytes // itemsize

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
    return Tile(tuple(tile[:5]), tuple(tile[5:]), tile[0] * cells(), halo())


def boxes(sizes: Sequence[int], tiles: Sequence[int]) -> Iterator[Box]:
    """Yield the boxes of a grid: one slice per axis, the last axis fastest."""
    return product(
        *(
            [slice(start, min(start + tile, size)) for start in range(0, size, max(tile, 1))]
            for size, tile in zip(sizes, tiles, strict=True)
        )
    )


def phases(n: int, kernel: int, axis: Axis) -> list[tuple[slice, slice, Axis]]:
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


def scatters(geometry: ConvGeometry) -> bool:
    """Say whether the transpose by the input costs less by adding products than by gathering gradients.

    Gathering copies a gradient of every output channel per tap; adding reads, adds and writes one product of every
    input channel per tap. The rows of outputs are lengthened by what the kernel spans, at most to twice their length.
    """
    spans = zip(geometry.kernel_size, geometry.dilation, geometry.stride, geometry.output_size, strict=True)
    if any([(k - 1) * d // s > out for k, d, s, out in spans]):
        return False
    return 3 * geometry.in_channels < geometry.out_channels and geometry.batch > 0 and geometry.in_channels > 0


def leading(sizes: Sequence[int], cells: int) -> list[int]:
    """Return the tile of about so many cells that is as long as it can be on the last axes."""
    tile = list(sizes)
    for axis in range(len(tile)):
        tile[axis] = max(1, min(tile[axis], cells // math.prod(tile[axis + 1 :])))
    return tile


def moves_of(axes: Sequence[Axis], taps: Sizes) -> tuple[list[Sizes], list[tuple[int, Sizes]]]:
    """Return the residues modulo the strides that taps reach, and of every tap the number of its residue and its steps.

    Along an axis, tap k of output j reaches ``(j + step) * stride + residue``, where these are the quotient and the
    remainder of ``k * dilation`` by the stride.
    """
    divided = [
        [divmod(k * axis.dilation, axis.stride) for k in range(count)] for axis, count in zip(axes, taps, strict=True)
    ]
    reached = [zip(*tap, strict=True) for tap in product(*divided)]
    moves = [(rest, steps) for steps, rest in reached]
    residues = sorted({rest for rest, _ in moves})
    numbers = {rest: number for number, rest in enumerate(residues)}
    return residues, [(numbers[rest], steps) for rest, steps in moves]


def multiply(xp: ModuleType, matrix: Array, columns: Array, out: Array | None = None) -> Array:
    """Return the matrix product; of an inner length of 1, as in depthwise gradients, matmul takes five times longer."""
    return (xp.multiply if matrix.shape[-1] == 1 else xp.matmul)(matrix, columns, out=out)


def as_matrix(place: Array, dtype: Any) -> Array | None:
    """View a block (1, G, O, *out) of a result as (G, O, outputs), for BLAS to write into, if there is such a view."""
    if place.shape[0] != 1 or place.dtype != dtype:
        return None
    length = place.itemsize
    if place.strides[2] < 0:
        return None
    for size, stride in zip(place.shape[:2:-1], place.strides[:2:-1], strict=True):
        if size > 1 and stride != length:
            return None
        length *= size
    return place.reshape(*place.shape[1:3], -1)  # a view, since the outputs are one run of memory


def reach(axis: Axis, outputs: slice, offset: int, n: int) -> tuple[slice, slice]:
    """Return the inputs that lie `offset` after the start of a box of outputs, and the outputs they belong to."""
    start = outputs.start * axis.stride + offset - axis.low
    first = max(-(start // axis.stride), 0)
    stop = min((n - 1 - start) // axis.stride + 1, outputs.stop - outputs.start)
    if stop <= first:
        return slice(0, 0), slice(0, 0)
    begin = start + first * axis.stride
    return slice(begin, begin + (stop - first - 1) * axis.stride + 1, axis.stride), slice(first, stop)


def grouped(array: Array, groups: int, axis: int = 1, flip: bool = False) -> Array:
    """View with three spatial axes and the channel axis split into (groups, channels); kernels can be flipped."""
    missing = 5 - array.ndim
    array = array[(slice(None), slice(None), *(None,) * missing)]
    if flip:
        array = array[..., ::-1, ::-1, ::-1]
    shape = array.shape
    return array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _span(axis: Axis, outputs: int, taps: int) -> int:
    """Cells between the first and the last one that a box of outputs and taps reads."""
    return (outputs - 1) * axis.stride + (taps - 1) * axis.dilation + 1


def _length(box: slice) -> int:
    return box.stop - box.start


def narrow(array: Array, slices: Sequence[tuple[int, int, int]]) -> Array:
    """Return a view: a plan's `cuts` or `keeps`, (array axis, start, length) each."""
    for axis, start, length in slices:
        array = array[(slice(None),) * axis + (slice(start, start + length),)]
    return array


@lru_cache(maxsize=64)
def native(dtype: Any) -> Any:
    """Return a dtype in the machine's byte order."""
    return dtype.newbyteorder("=")


@lru_cache(maxsize=64)  # NumPy makes a dtype's name anew each time
def compute_dtype(dtype: Any) -> Any:
    """Return the dtype to sum in: float32 for low precision."""
    return np.dtype(np.float32) if dtype.name in LOW_PRECISION else dtype
