"""The reference engine: NumPy arrays, BLAS on cache-sized blocks, a pair of pads on every axis.

One kernel does everything. It gathers the inputs of a block of outputs into a small matrix, zeros where a window
leaves the input, and multiplies. The gradient by the input is the same kernel: with stride s and dilation d, the inputs
of one residue modulo s are a stride-1 correlation of the gradient with every (s / gcd(s, d))-th tap, reversed. The
gradient by the weight multiplies the gathered matrix from the other side. No array of im2col's size is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from ...geometry import ConvGeometry, ConvPlan
from .blocks import (
    BLOCK_BYTES,
    COLUMNS,
    LOW_PRECISION,
    MATRIX_BYTES,
    Array,
    Axis,
    Gather,
    as_matrix,
    boxes,
    choose_tile,
    compute_dtype,
    grouped,
    leading,
    moves_of,
    multiply,
    narrow,
    native,
    phases,
    reach,
    scatters,
)
from .windows import PadsAndPools

_DTYPES = (
    *LOW_PRECISION, "float32", "float64", "complex64", "complex128",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)  # fmt: skip


@lru_cache(maxsize=64)  # NumPy makes a dtype's name anew each time
def _is_known(dtype: Any) -> bool:
    return dtype.name in _DTYPES


class NumpyEngine(PadsAndPools):
    """Convolutions of NumPy arrays, written against an array module so that CuPy can inherit them."""

    name = "numpy"
    family = "numpy"
    native_padding = True
    takes_out = True
    xp: ModuleType = np
    block_bytes = BLOCK_BYTES
    """Size of a gathered matrix, and of its halo and its product."""

    def check(self, operation: str, arrays: dict[str, Array]) -> None:
        """Raise TypeError for unknown dtypes and for mixtures; byte order does not matter."""
        (first, array), *others = arrays.items()
        if not _is_known(array.dtype):
            raise TypeError(
                f"{operation}: {first} has dtype {array.dtype.name}, which is not one of {', '.join(_DTYPES)}; "
                f"convert it with {first}.astype(...)"
            )
        for name, other in others:
            if other.dtype != array.dtype and native(other.dtype) != native(array.dtype):
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

    def takes_dense_pairs(self, dtype: str, device: str) -> bool:
        """Say no: every convolution takes them."""
        return False

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
        dtype = native(grad_output.dtype)
        axes = (0, *range(2, grad_output.ndim))
        return grad_output.sum(axis=axes, dtype=compute_dtype(dtype)).astype(dtype, copy=False)

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
        x = narrow(x, plan.cuts)
        if plan.pads:
            x = self.xp.pad(x, ((0, 0), (0, 0), *(axis.pad for axis in plan.axes)))
        computed = (geometry.batch, geometry.out_channels, *(axis.computed for axis in plan.axes))
        result = out if out is not None and not plan.keeps else self.xp.empty(computed, native(x.dtype))
        axes = tuple(Axis(*axis) for axis in zip(geometry.stride, geometry.dilation, plan.native_low, strict=True))
        self._correlate(
            grouped(x, geometry.groups),
            grouped(weight, geometry.groups, axis=0, flip=geometry.flip_kernel),
            grouped(result, geometry.groups),
            (Axis(1, 1, 0),) * (3 - len(axes)) + axes,
            bias,
        )
        result = narrow(result, plan.keeps)
        if out is None:
            return self.xp.ascontiguousarray(result) if contiguous else result
        if result is not out:
            out[...] = result
        return out

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input: a stride-1 correlation for each residue of the input modulo the stride.

        With few input channels the products are scattered instead, tap by tap.

        ``j * stride + k * dilation = i + low`` is symmetric in gradient and kernel. The shorter of them slides over
        the longer one, so that a kernel as large as the input costs no more than its transpose.
        """
        result = self.xp.empty(geometry.input_shape, native(grad_output.dtype))
        if scatters(geometry) and compute_dtype(result.dtype) == result.dtype:
            result[...] = 0 if bias is None else bias.reshape(-1, *(1,) * geometry.ndim)
            self._scatter(geometry, grad_output, weight, result)
            return result
        still = grouped(grad_output, geometry.groups)  # (N, G, O, *out)
        sliding = grouped(weight, geometry.groups, axis=0, flip=geometry.flip_kernel).swapaxes(1, 2)  # (G, C, O, *k)
        target = grouped(result, geometry.groups)  # (N, G, C, *in)
        lifted = geometry.lifted()
        steps = zip(lifted.stride, lifted.dilation, strict=True)
        # Swapped, the channels of the result are where the batch was: the bias is added afterwards, a second rounding.
        rounds = bias is not None and compute_dtype(result.dtype) != result.dtype
        swap = not rounds and math.prod(geometry.kernel_size) > math.prod(geometry.output_size)
        if swap:
            still, sliding, target = sliding.swapaxes(0, 1), still.swapaxes(0, 1), target.swapaxes(0, 2)
            steps = zip(lifted.dilation, lifted.stride, strict=True)
        splits = (
            phases(n, taps, Axis(*step, low))
            for n, taps, step, (low, _) in zip(target.shape[3:], sliding.shape[3:], steps, lifted.padding, strict=True)
        )
        inner_bias = None if swap else bias
        for phase in product(*splits):
            places, taps, axes = zip(*phase, strict=True)
            self._correlate(still, sliding[(..., *taps)], target[(..., *places)], axes, inner_bias)
        if bias is not None and swap:
            result += bias.reshape(-1, *(1,) * geometry.ndim)
        return result

    def _scatter(self, geometry: ConvGeometry, grad_output: Array, weight: Array, result: Array) -> None:
        """Add what every block of outputs sends to the input.

        The inputs of one residue modulo the strides are neighbours in `sums`, and rows of outputs are made as long as
        its rows: every tap then adds one run of memory to another. Only the last step writes with the strides.
        """
        xp = self.xp
        gradient = grouped(grad_output, geometry.groups)  # (N, G, O, *out)
        kernel = grouped(weight, geometry.groups, axis=0, flip=geometry.flip_kernel)  # (G, O, C, *k)
        target = grouped(result, geometry.groups)  # (N, G, C, *in)
        matrix = kernel.reshape(*kernel.shape[:2], -1).swapaxes(1, 2)
        batch, _, _, *outputs = gradient.shape
        lifted = geometry.lifted()
        axes = [Axis(s, d, low) for s, d, (low, _) in zip(lifted.stride, lifted.dilation, lifted.padding, strict=True)]
        residues, moves = moves_of(axes, kernel.shape[3:])
        extras = [max(move[1][axis] for move in moves) for axis in range(3)]
        cells = self.block_bytes // (matrix.shape[0] * matrix.shape[1] * result.itemsize)
        wide = leading((batch, *outputs[:2], outputs[2] + extras[2]), cells)
        for samples, *out in boxes((batch, *outputs), wide):
            part = gradient[(samples, slice(None), slice(None), *out)]
            planes, height, width = [size + extra for size, extra in zip(part.shape[3:], extras, strict=True)]
            rows = xp.zeros((*part.shape[:5], width), result.dtype)
            rows[..., : part.shape[5]] = part
            run = part.shape[4] * width
            sent = xp.matmul(matrix, rows.reshape(*part.shape[:3], -1))
            sent = sent.reshape(*part.shape[:2], kernel.shape[2], len(moves), part.shape[3], run)
            sums = xp.zeros((*sent.shape[:3], len(residues), planes, (height + 1) * width), result.dtype)
            for tap, (place, (plane, row, column)) in enumerate(moves):
                start = row * width + column
                reached = sums[:, :, :, place, plane : plane + part.shape[3], start : start + run]
                xp.add(reached, sent[:, :, :, tap], out=reached)
            sums = sums[..., : height * width].reshape(*sums.shape[:5], height, width)
            for place, rest in enumerate(residues):
                ends = [
                    reach(axis, slice(box.start, box.start + length), offset, n)
                    for axis, box, length, offset, n in zip(
                        axes, out, (planes, height, width), rest, target.shape[3:], strict=True
                    )
                ]
                places, sources = zip(*ends, strict=True)
                target[(samples, slice(None), slice(None), *places)] += sums[:, :, :, place][(..., *sources)]

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight: the gradient times the gathered inputs, summed over batch and outputs."""
        xp, dtype = self.xp, native(x.dtype)
        compute = compute_dtype(dtype)
        result = xp.zeros(geometry.weight_shape, dtype)
        if x.size == 0 or grad_output.size == 0 or result.size == 0:
            return result
        target = grouped(result, geometry.groups, axis=0, flip=geometry.flip_kernel)
        x, gradient = grouped(x, geometry.groups), grouped(grad_output, geometry.groups)
        lifted = geometry.lifted()
        axes = tuple(
            Axis(s, d, low) for s, d, (low, _) in zip(lifted.stride, lifted.dilation, lifted.padding, strict=True)
        )
        (batch, groups, _, *outputs), (channels, *kernel) = gradient.shape, target.shape[2:]
        tile = choose_tile(
            gradient.shape, (channels, *kernel), axes, compute.itemsize, MATRIX_BYTES, 2 * COLUMNS, self.block_bytes
        )
        gather = Gather(xp, x, axes, compute, tile)
        for group, *taps in boxes((groups, channels, *kernel), (tile.outputs[1], *tile.taps)):
            place = target[(group, slice(None), *taps)]
            total = xp.zeros((place.shape[0], place.shape[1], math.prod(place.shape[2:])), compute)
            for samples, *out in boxes((batch, *outputs), (tile.outputs[0], *tile.outputs[2:])):
                rows = gradient[(samples, group, slice(None), *out)].transpose(1, 2, 0, 3, 4, 5)
                rows = rows.astype(compute, copy=False).reshape(*total.shape[:2], -1)
                total += xp.matmul(rows, gather((samples, group, *out), taps).swapaxes(1, 2))
            place[...] = total.reshape(place.shape)
        return result

    def _correlate(self, x: Array, kernel: Array, result: Array, axes: Sequence[Axis], bias: Array | None) -> None:
        """Write the correlation of `x` with `kernel`, plus `bias`, into `result`.

        Shapes: x (N, G, C, *in), kernel (G, O, C, *k), result (N, G, O, *out), bias (G * O,). Windows that leave x
        read zeros. Low precision is summed in float32 and rounded once.
        """
        xp, compute = self.xp, compute_dtype(result.dtype)
        batch, groups, rows, *outputs = result.shape
        if bias is not None:
            bias = bias.reshape(groups, rows, 1).astype(compute)
        if x.size == 0 or kernel.size == 0 or result.size == 0:
            result[...] = 0 if bias is None else bias[..., None, None]
            return
        matrix_bytes = MATRIX_BYTES if compute != kernel.dtype else None
        tile = choose_tile(
            result.shape, kernel.shape[2:], axes, compute.itemsize, matrix_bytes, COLUMNS, self.block_bytes
        )
        gather = Gather(xp, x, axes, compute, tile)
        for samples, group, *out in boxes((batch, groups, *outputs), tile.outputs):
            place = result[(samples, group, slice(None), *out)]
            target = as_matrix(place, compute)
            total: Array = None
            for taps in boxes(kernel.shape[2:], tile.taps):
                matrix = kernel[(group, slice(None), *taps)].astype(compute, copy=False)
                matrix, columns = matrix.reshape(*matrix.shape[:2], -1), gather((samples, group, *out), taps)
                if total is None:
                    total = multiply(xp, matrix, columns, out=target)
                else:
                    total += multiply(xp, matrix, columns)
            if bias is not None:
                total += bias[group]
            if target is None:
                place = place.transpose(1, 2, 0, 3, 4, 5)
                place[...] = total.reshape(place.shape)


ENGINE = NumpyEngine()
