"""Padding modes, pools, columns and their gradients: tables of integers for the kernels of gather.cu and pools.cu."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from ...geometry import AdaptiveGeometry, PadGeometry, PoolGeometry, Sizes, covering_bounds, window_bounds
from ..numpy.blocks import compute_dtype
from ..numpy.windows import PadsAndPools
from .device import Array, Cache, Device, on_device, source_of

Windows = PoolGeometry | AdaptiveGeometry
Table = tuple[tuple[int, ...], Sequence[int]]
"""What follows the sizes of the result in a kernel's plan, and what follows the plan."""

Tables = Callable[..., Table]
Sources = Callable[[Any, int], np.ndarray]
"""The cell of a geometry's input that every cell of an axis of the result shows, -1 for none."""

_TABLES = 256
"""Tables kept on a device."""
_NARROW = 2**30
"""Cells that 32-bit integers count, those that a last block of threads has too many included."""


class WindowKernels(PadsAndPools):
    """What the CuPy engine does with windows, a kernel each, on arrays of any strides; mixed into it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._tables: Cache[Array] = Cache(_TABLES, device.forget)

    @on_device
    def pad(self, geometry: PadGeometry, x: Array, value: complex = 0.0) -> Array:
        """Return the padded array."""
        return self._gather(geometry.output_size, _pad_sources, geometry, x, value)

    @on_device
    def pad_transpose(self, geometry: PadGeometry, grad_output: Array) -> Array:
        """Return the transpose of `pad`: each cell is the sum of those that show it, low precision in float32."""
        return self._gather_transpose(_pad_sources, geometry, grad_output)

    @on_device
    def unfold(self, geometry: PoolGeometry, x: Array) -> Array:
        """Return the cells of every window, (N, C, *kernel, *out), zeros outside the input."""
        ndim, pairs = geometry.ndim, list(zip(geometry.kernel_size, geometry.output_size, strict=True))
        columns = self._gather(tuple([k * out for k, out in pairs]), _column_sources, geometry, x, 0)
        columns = columns.reshape(*x.shape[:2], *(size for pair in pairs for size in pair))
        return columns.transpose(0, 1, *range(2, 2 * ndim + 2, 2), *range(3, 2 * ndim + 2, 2))

    @on_device
    def fold(self, geometry: PoolGeometry, columns: Array) -> Array:
        """Return the transpose of `unfold`: overlapping cells are added, low precision in float32."""
        ndim, pairs = geometry.ndim, zip(geometry.kernel_size, geometry.output_size, strict=True)
        order = [axis + 2 for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        columns = columns.transpose(0, 1, *order).reshape(*columns.shape[:2], *(k * out for k, out in pairs))
        return self._gather_transpose(_column_sources, geometry, columns)

    @on_device
    def avg_pool(self, geometry: Windows, x: Array, include_pad: bool, divisor: int | None) -> Array:
        """Return the sum of every window over its divisor, low precision in float32."""
        y = self._empty(x, geometry.output_size, x.dtype)
        self._pool("avg_pool", x.dtype, _windows_of, (geometry, include_pad, divisor), x, y, y)
        return y

    @on_device
    def avg_pool_transpose(
        self, geometry: Windows, grad_output: Array, include_pad: bool, divisor: int | None
    ) -> Array:
        """Return the transpose of `avg_pool`."""
        dx = self._empty(grad_output, geometry.input_size, grad_output.dtype)
        key = geometry, include_pad, divisor
        self._pool("avg_pool_transpose", dx.dtype, _covers_of, key, grad_output, dx, dx)
        return dx

    @on_device
    def lp_pool(self, geometry: Windows, x: Array, power: float) -> Array:
        """Return ``(sum |x|^p)^(1/p)`` over the cells of every window that lie in the input."""
        y = self._empty(x, geometry.output_size, x.dtype)
        self._pool("lp_pool", x.dtype, _windows_of, (geometry,), x, y, y, power)
        return y

    @on_device
    def lp_pool_gradient(self, geometry: Windows, x: Array, grad_output: Array, power: float) -> Array:
        """Return ``sign(x) |x|^(p-1) * sum over windows of grad y^(1-p)``, 0 where a window is all zero."""
        x, grad = self.xp.ascontiguousarray(x), self.xp.ascontiguousarray(grad_output)
        shares, dx = self._empty(x, geometry.output_size, compute_dtype(x.dtype)), self.xp.empty_like(x)
        self._pool("lp_pool_shares", x.dtype, _windows_of, (geometry,), x, shares, grad, shares, power)
        self._pool("lp_pool_gradient", x.dtype, _covers_of, (geometry,), shares, dx, x, dx, power)
        return dx

    @on_device
    def max_pool(self, geometry: Windows, x: Array, with_indices: bool = True) -> tuple[Array, Array | None]:
        """Return the maxima and their flat indices: first on ties, last on NaN, -1 for a window without input cells."""
        y = self._empty(x, geometry.output_size, x.dtype)
        index = self._empty(x, geometry.output_size, np.int64) if with_indices else None
        self._pool("max_pool", x.dtype, _windows_of, (geometry,), x, y, y, 0 if index is None else index)
        return y, index

    @on_device
    def max_pool_transpose(self, shape: Sizes, index: Array, grad_output: Array) -> Array:
        """Send every gradient to the cell that won; the order in which those of one cell are added is not fixed."""
        xp, dtype = self.xp, grad_output.dtype
        index, grad = xp.ascontiguousarray(index), xp.ascontiguousarray(grad_output)
        sums = xp.zeros(shape, np.uint64 if dtype.kind in "iu" else compute_dtype(dtype))
        if grad.size:
            sizes = grad.size, math.prod(grad.shape[2:]), math.prod(shape[2:])
            text = pools_text(dtype, np.dtype(np.int64))
            self.device.launch(text, "max_pool_transpose", grad.size, index, grad, sums, *sizes)
        return sums.astype(dtype, copy=False)

    def _empty(self, like: Array, size: Sizes, dtype: Any) -> Array:
        return self.xp.empty((*like.shape[:2], *size), dtype)

    def _gather(self, size: Sizes, sources: Sources, geometry: Any, x: Array, value: complex) -> Array:
        """Return an array whose cells each show a cell of x, or `value`; `sources` says which, axis by axis."""
        result, bits = self._empty(x, size, x.dtype), np.zeros(2, np.int64)
        bits.view(x.dtype)[0] = value if x.dtype.kind == "c" else value.real
        self._launch(gather_text, "gather", x.dtype, _vectors, (sources, geometry), x, result, result, *map(int, bits))
        return result

    def _gather_transpose(self, sources: Sources, geometry: Any, grad_output: Array) -> Array:
        """Return the transpose of `_gather` without its constant."""
        grad, dx = grad_output, self._empty(grad_output, geometry.input_size, grad_output.dtype)
        self._launch(sums_text, "gather_transpose", dx.dtype, _lists, (sources, geometry), grad, dx, dx)
        return dx

    def _pool(
        self, kernel: str, dtype: Any, tables: Tables, key: tuple[Any, ...], source: Array, result: Array, *rest: Any
    ) -> None:
        """Run a kernel of pools.cu, in which every cell of `result` reads a box of `source`."""
        self._launch(pools_text, kernel, dtype, tables, key, source, result, *rest)

    def _launch(
        self, text: Callable[[Any, Any], str], kernel: str, dtype: Any, tables: Tables, key: tuple[Any, ...],
        source: Array, result: Array, *rest: Any,
    ) -> None:  # fmt: skip
        """Run a kernel with a thread for every cell of `result` on its plan, `source` and the rest of its arguments."""
        if result.size == 0:
            return
        if any(stride % source.itemsize for stride in source.strides):
            source = self.xp.ascontiguousarray(source)
        strides = [stride // source.itemsize for stride in source.strides]
        reach = sum((n - 1) * abs(stride) for n, stride in zip(source.shape, strides, strict=True))
        place = np.dtype(np.int32 if max(result.size, reach) < _NARROW else np.int64)

        def plan() -> Array:
            header, table = tables(*key)
            sizes = (result.size, result.shape[1], *_lift(result.shape[2:], 1))
            return self.device.upload(np.array([*sizes, *header, *strides[:2], *_lift(strides[2:], 0), *table], place))

        entry = tables, key, result.shape, tuple(strides), place, self.device.of(source)
        self.device.launch(text(dtype, place), kernel, result.size, self._tables.get(entry, plan), source, *rest)


# ---------------------------------------------------------------------- tables: what the kernels read, integers only


def _lift(values: Sequence[int], fill: int) -> tuple[int, ...]:
    return (fill,) * (3 - len(values)) + tuple(values)


def _windows_of(geometry: Windows, include_pad: bool = False, divisor: int | None = None) -> Table:
    """Return source sizes and steps, then the cells and the divisor of every window."""
    bounds = [window_bounds(geometry, axis) for axis in range(geometry.ndim)]
    header = (*_lift(geometry.input_size, 1), *_lift(geometry.step, 1))
    return header, [*_boxes(bounds), *_divisors(geometry, include_pad, divisor)]


def _covers_of(geometry: Windows, include_pad: bool = False, divisor: int | None = None) -> Table:
    """Return source sizes and steps, then the windows that cover every input cell, and the divisor of every window."""
    covers = [covering_bounds(geometry, axis) for axis in range(geometry.ndim)]
    header = (*_lift(geometry.output_size, 1), *_lift([step for _, _, step in covers], 1))
    return header, [*_boxes([cover[:2] for cover in covers]), *_divisors(geometry, include_pad, divisor)]


def _boxes(bounds: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """Return (first, count) of every cell, axis after axis."""
    table = [0, 1] * (3 - len(bounds))
    for firsts, counts in bounds:
        table += [entry for pair in zip(firsts, counts, strict=True) for entry in pair]
    return table


def _divisors(geometry: Windows, include_pad: bool, divisor: int | None) -> list[int]:
    """Return the factors of every window's divisor, axis after axis; a window without cells keeps its 0."""
    table = [1] * (3 - geometry.ndim)
    for axis, size in enumerate(geometry.output_size):
        if divisor is not None:
            table += [divisor if axis == 0 else 1] * size
        else:
            table += [max(int(count), 1) for count in geometry.counts(axis, include_pad, np.arange)]
    return table


def _pad_sources(geometry: PadGeometry, axis: int) -> np.ndarray:
    """Return the input cell that every cell of a padded axis shows, -1 for a constant."""
    return geometry.sources(axis, np.arange, np.where)


def _column_sources(geometry: PoolGeometry, axis: int) -> np.ndarray:
    """Return the input cell of every tap and output of an axis, outputs fastest, -1 outside the input."""
    cells = geometry.cells(axis, np.arange).ravel() - geometry.padding[axis][0]
    inside = (cells >= 0) & (cells < geometry.cut_size[axis])
    return np.where(inside, cells + geometry.cuts[axis][0], -1)


def _vectors(sources: Sources, geometry: Any) -> Table:
    """Return the source of every cell, axis after axis."""
    vectors = [sources(geometry, axis).tolist() for axis in range(len(geometry.input_size))]
    return (), [*(0,) * (3 - len(vectors)), *(cell for vector in vectors for cell in vector)]


def _lists(sources: Sources, geometry: Any) -> Table:
    """Return, axis after axis, where the list of every input cell ends, from 0, and the cells that show it."""
    table = [0, 1, 0] * (3 - len(geometry.input_size))
    for axis, size in enumerate(geometry.input_size):
        lists: list[list[int]] = [[] for _ in range(size)]
        for cell, source in enumerate(sources(geometry, axis).tolist()):
            if source >= 0:
                lists[source].append(cell)
        table += [0, *accumulate(map(len, lists)), *(cell for shown in lists for cell in shown)]
    return (), table


# ---------------------------------------------------------------------- texts: the types that the CUDA files leave open

_FLOATS = {
    "float16": ("#include <cuda_fp16.h>", "__half", "float"),
    "bfloat16": ("#include <cuda_bf16.h>", "__nv_bfloat16", "float"),
    "float32": ("", "float", "float"),
    "float64": ("", "double", "double"),
}
_BITS = {1: "char", 2: "short", 4: "int", 8: "long long"}
_PAIR = "struct Pair { long long low, high; };"
_COMPLEX = """
template <class Real> struct Complex {
    Real real, imaginary;
    __device__ Complex &operator+=(const Complex &other)
    {
        real += other.real;
        imaginary += other.imaginary;
        return *this;
    }
};
"""


@cache
def pools_text(dtype: Any, place: Any) -> str:
    """Return pools.cu for arrays of a dtype."""
    if dtype.name in _FLOATS:
        include, scalar, total = _FLOATS[dtype.name]
        return _text("pools.cu", place, scalar, total, include, total, LOWEST="(-1.0 / 0.0)", FLOATING=1)
    scalar = f"{'un' * (dtype.kind == 'u')}signed {_BITS[dtype.itemsize]}"
    lowest = f"({np.iinfo(dtype).min + 1} - 1)" if dtype.kind == "i" else "0"
    return _text("pools.cu", place, scalar, scalar, "", "unsigned long long", LOWEST=lowest, FLOATING=0)


@cache
def gather_text(dtype: Any, place: Any) -> str:
    """Return gather.cu for copies of elements of a dtype's size."""
    if dtype.itemsize == 16:
        return _text("gather.cu", place, "Pair", "Pair", _PAIR, SUMS=0)
    scalar = _BITS[dtype.itemsize]
    return _text("gather.cu", place, scalar, scalar, SUMS=0)


@cache
def sums_text(dtype: Any, place: Any) -> str:
    """Return gather.cu for sums of a dtype; integers are added modulo 2^bits."""
    if dtype.name in _FLOATS:
        include, scalar, total = _FLOATS[dtype.name]
        return _text("gather.cu", place, scalar, total, include, SUMS=1)
    if dtype.kind == "c":
        scalar = f"Complex<{'float' if dtype.itemsize == 8 else 'double'}>"
        return _text("gather.cu", place, scalar, scalar, _COMPLEX, SUMS=1)
    scalar = f"unsigned {_BITS[dtype.itemsize]}"
    return _text("gather.cu", place, scalar, scalar, SUMS=1)


def _text(
    name: str, place: Any, scalar: str, total: str, declared: str = "", plane_sum: str = "", **defined: Any
) -> str:
    """Return a file's text after the types and constants that it leaves open."""
    types = {"place": _BITS[place.itemsize], "scalar": scalar, "total": total}
    if plane_sum:
        types["plane_sum"] = plane_sum
    lines = [f"typedef {meaning} {alias};" for alias, meaning in types.items()]
    return "\n".join([declared, *lines, *(f"#define {key} {value}" for key, value in defined.items()), source_of(name)])
