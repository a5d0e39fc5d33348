"""NNlib's kernels, through juliacall: NumPy arrays reach Julia on their own memory, results are written into ours.

Julia sees dense arrays of float32, float64, complex64 and complex128; whatever else comes (other byte order, strides,
alignment, float16, bfloat16) is copied first. What NNlib gets wrong is repaired on the way: an empty batch, gradients
that conjugate, NaN in a maximum, pool gradients under windows that reach into both borders.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...geometry import AdaptiveGeometry, ConvGeometry, ConvPlan, PadGeometry, PoolGeometry, window_bounds
from ..numpy import NumpyEngine
from ..numpy.blocks import compute_dtype, narrow, native
from .runtime import running

Array = Any
Windows = PoolGeometry | AdaptiveGeometry

_CODES = {"float32": 1, "float64": 2, "complex64": 3, "complex128": 4}
"""Number of each element type, from 1, in the order of PyFluxPad.TYPES."""


class JuliaEngine(NumpyEngine):
    """NumPy arrays on NNlib. Padding and maxima of integers, unfold and fold are the reference engine's."""

    name = "julia"
    takes_out = False

    def conv(
        self,
        plan: ConvPlan,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        contiguous: bool = True,
        out: Array | None = None,
    ) -> Array:
        """Return the convolution; a forced strategy cuts, pads and drops outputs as it says."""
        geometry = plan.geometry
        if plan.pads or plan.keeps:
            x = narrow(x, plan.cuts)
            if plan.pads:
                x = np.pad(x, ((0, 0), (0, 0), *(axis.pad for axis in plan.axes)))
            geometry = replace(
                geometry,
                input_size=x.shape[2:],
                output_size=tuple([axis.computed for axis in plan.axes]),
                padding=tuple([axis.native for axis in plan.axes]),
            )
        y = _convolve("conv", geometry, geometry.output_shape, x, weight, bias)
        y = narrow(y, plan.keeps)
        return np.ascontiguousarray(y) if plan.keeps and contiguous else y

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input."""
        return _convolve("conv_input", geometry, geometry.input_shape, grad_output, weight, bias)

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight."""
        return _convolve("conv_weight", geometry, geometry.weight_shape, x, grad_output, None)

    def pad(self, geometry: PadGeometry, x: Array, value: complex = 0.0) -> Array:
        """Return the padded array."""
        if not _code(x.dtype):
            return super().pad(geometry, x, value)
        x, dtype = _dense(x), native(x.dtype)
        index = _pad_index(geometry)
        result = np.empty((*x.shape[:2], *geometry.output_size), x.dtype)
        _call(
            "pad", _planes(x, geometry.input_size, geometry.output_size), result, x, index, np.array([value], x.dtype)
        )
        return result.astype(dtype, copy=False)

    def pad_transpose(self, geometry: PadGeometry, grad_output: Array) -> Array:
        """Return the transpose of `pad`."""
        if not _code(grad_output.dtype):
            return super().pad_transpose(geometry, grad_output)
        grad, dtype = _dense(grad_output), native(grad_output.dtype)
        result = np.empty((*grad.shape[:2], *geometry.input_size), grad.dtype)
        integers = _planes(grad, geometry.input_size, geometry.output_size)
        _call("pad_transpose", integers, result, grad, _pad_index(geometry))
        return result.astype(dtype, copy=False)

    def max_pool(self, geometry: Windows, x: Array, with_indices: bool = True) -> tuple[Array, Array]:
        """Return the maxima and their flat indices: first on ties, last on NaN, -1 for a window without input cells."""
        if not _code(x.dtype):
            return super().max_pool(geometry, x, with_indices)
        x, dtype = _dense(x), native(x.dtype)
        steps, places = _places(geometry)
        shape = (*x.shape[:2], *geometry.output_size)
        result, index = np.empty(shape, x.dtype), np.empty(shape, np.int64)
        integers = _planes(x, geometry.input_size, geometry.output_size, steps)
        _call("max_pool", integers, result, index, x, places)
        return result.astype(dtype, copy=False), index

    def max_pool_transpose(self, shape: tuple[int, ...], index: Array, grad_output: Array) -> Array:
        """Send every gradient to the cell that won."""
        if not _code(grad_output.dtype):
            return super().max_pool_transpose(shape, index, grad_output)
        grad, dtype = _dense(grad_output), native(grad_output.dtype)
        result = np.empty(shape, grad.dtype)
        index = np.ascontiguousarray(index, np.int64)
        _call("max_pool_transpose", _planes(grad, shape[2:], grad.shape[2:]), result, index, grad)
        return result.astype(dtype, copy=False)

    def _pool_sum(self, geometry: Windows, x: Array) -> Array:
        x = _dense(x)
        steps, places = _places(geometry)
        result = np.empty((*x.shape[:2], *geometry.output_size), x.dtype)
        _call("pool_sum", _planes(x, geometry.input_size, geometry.output_size, steps), result, x, places)
        return result

    def _pool_sum_transpose(self, geometry: Windows, grad_output: Array) -> Array:
        grad = _dense(grad_output)
        steps, places = _places(geometry)
        result = np.empty((*grad.shape[:2], *geometry.input_size), grad.dtype)
        integers = _planes(grad, geometry.input_size, geometry.output_size, steps)
        _call("pool_sum_transpose", integers, result, grad, places)
        return result


@lru_cache(maxsize=64)  # NumPy makes a dtype's name anew each time
def _code(dtype: Any) -> int:
    """Return the number of the element type that Julia computes a dtype in; 0 if it does not."""
    return _CODES.get(compute_dtype(native(dtype)).name, 0)


def _dense(array: Array) -> Array:
    """Return C-contiguous, aligned, native memory of a type that Julia computes; the array itself if it is so."""
    dtype, flags = compute_dtype(native(array.dtype)), array.flags
    if flags.c_contiguous and flags.aligned and array.dtype == dtype:
        return array
    dense = np.ascontiguousarray(array, dtype)
    return dense if dense.flags.aligned else dense.copy()


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def _call(name: str, integers: Array, *arrays: Array) -> None:
    """Call an entry point; the arrays are dense and stay alive until it returns."""
    if arrays[0].size:
        running().call(name, _address(integers), *map(_address, arrays))


def _convolve(
    name: str, geometry: ConvGeometry, shape: tuple[int, ...], first: Array, second: Array, bias: Array | None
) -> Array:
    """Return an operator's result plus bias; low precision is computed in float32 and rounded once."""
    dtype, code = native(first.dtype), _code(first.dtype)
    if not code:
        raise TypeError(
            f"{name}: the arrays are {dtype.name}; backend 'julia' convolves float16, bfloat16, {', '.join(_CODES)}: "
            f"convert them with astype(...), or use backend='numpy'"
        )
    first, second = _dense(first), _dense(second)
    result = np.empty(shape, first.dtype)
    if first.size and second.size and result.size:
        integers, address = _conv_integers(geometry, code)
        running().call(name, address, _address(result), _address(first), _address(second))
        del integers  # alive until here, whatever the cache does meanwhile
    else:
        result.fill(0)  # NNlib throws, or leaves the memory as it was
    if bias is not None:
        result += bias.reshape(-1, *(1,) * geometry.ndim)
    return result if result.dtype == dtype else result.astype(dtype)


@lru_cache(maxsize=1024)
def _conv_integers(geometry: ConvGeometry, code: int) -> tuple[Array, int]:
    """Return the integers of PyFluxPad.ConvGeometry, and their address."""
    lifted = geometry.lifted()
    integers = np.array(
        [
            code, lifted.batch, lifted.in_channels, lifted.out_channels, lifted.groups, *lifted.input_size,
            *lifted.kernel_size, *lifted.output_size, *lifted.stride, *lifted.dilation,
            *(entry for pair in lifted.padding for entry in pair), lifted.flip_kernel,
        ],
        np.int64,
    )  # fmt: skip
    return integers, _address(integers)


def _planes(
    array: Array, inputs: tuple[int, ...], outputs: tuple[int, ...], steps: tuple[int, ...] = (1, 1, 1)
) -> Array:
    """Return the integers of PyFluxPad.Planes, and the steps of its windows."""
    planes = array.shape[0] * array.shape[1]
    return np.array([_code(array.dtype), planes, *_lift(inputs), *_lift(outputs), *steps], np.int64)


def _lift(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (3 - len(sizes)) + tuple(sizes)


@lru_cache(maxsize=1024)
def _pad_index(geometry: PadGeometry) -> Array:
    """Return the input cell that every cell of the result shows, axis after axis; -1 where it shows a constant."""
    ndim = len(geometry.modes)
    vectors = [geometry.sources(axis, np.arange, np.where) for axis in range(ndim)]
    return np.concatenate([np.zeros(3 - ndim, np.int64), *vectors]).astype(np.int64)


@lru_cache(maxsize=1024)
def _places(geometry: Windows) -> tuple[tuple[int, ...], Array]:
    """Return the step of every axis, and first cell and number of cells of every window: starts first, then counts."""
    bounds = [([0], [1])] * (3 - geometry.ndim) + [window_bounds(geometry, axis) for axis in range(geometry.ndim)]
    starts, counts = zip(*bounds, strict=True)
    return _lift(geometry.step), np.concatenate(starts + counts).astype(np.int64)


ENGINE = JuliaEngine()
