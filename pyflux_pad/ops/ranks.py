"""The 1d, 2d and 3d forms, with torch's argument order; they check the rank and take unbatched arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..geometry import shape_of
from ..padding import GeometryError
from .call import (
    Array,
    Call,
    Ints,
    Modes,
    PaddingLike,
    array_shape,
    bind_adjoint,
    bind_conv,
    bind_transpose,
    check_rank,
    publish,
)


def _weight_rank(operation: str, ndim: int, shape: Any) -> None:
    if len(shape) != ndim + 2:
        raise GeometryError(f"{operation}: weight must have {ndim + 2} axes, got {len(shape)}: {tuple(shape)}")


def _conv_nd(ndim: int) -> Callable[..., Array]:
    operation = f"conv{ndim}d"

    def build(
        input: Array,
        weight: Array,
        bias: Array | None = None,
        stride: Ints = 1,
        padding: PaddingLike = 0,
        dilation: Ints = 1,
        groups: int = 1,
        *,
        padding_mode: Modes = "zeros",
        detach_padding: bool = False,
        flip_kernel: bool = False,
        backend: str | None = None,
        contiguous: bool = True,
        out: Array | None = None,
    ) -> Call:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        _weight_rank(operation, ndim, array_shape(operation, "weight", weight))
        return bind_conv(
            operation, ("input", "weight"), input, weight, bias, backend, contiguous, out, batched,
            stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
            padding_mode=padding_mode, detach_padding=detach_padding,
        )  # fmt: skip

    return publish(build, operation, "conv", ndim, ("input", "weight", "bias"))


def _conv_transpose_nd(ndim: int) -> Callable[..., Array]:
    operation = f"conv_transpose{ndim}d"

    def build(
        input: Array,
        weight: Array,
        bias: Array | None = None,
        stride: Ints = 1,
        padding: PaddingLike = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        dilation: Ints = 1,
        *,
        output_size: Ints | None = None,
        padding_mode: Modes = "zeros",
        flip_kernel: bool = False,
        backend: str | None = None,
    ) -> Call:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        _weight_rank(operation, ndim, array_shape(operation, "weight", weight))
        return bind_transpose(
            operation, ("input", "weight"), input, weight, bias, output_padding, output_size, backend, batched,
            stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
            padding_mode=padding_mode,
        )  # fmt: skip

    return publish(build, operation, "conv_transpose", ndim, ("input", "weight", "bias"))


def _conv_input_nd(ndim: int) -> Callable[..., Array]:
    operation = f"conv{ndim}d_input"

    def build(
        input_size: Sequence[int],
        weight: Array,
        grad_output: Array,
        stride: Ints = 1,
        padding: PaddingLike = 0,
        dilation: Ints = 1,
        groups: int = 1,
        *,
        flip_kernel: bool = False,
        backend: str | None = None,
    ) -> Call:
        input_shape = shape_of(operation, "input_size", input_size)
        batched = check_rank(operation, ndim, "input_size", input_shape)
        weight_shape = array_shape(operation, "weight", weight)
        _weight_rank(operation, ndim, weight_shape)
        return bind_adjoint(
            operation, "conv_input", input_shape, weight_shape, ("grad_output", "weight"), grad_output, weight,
            backend, batched,
            stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
        )  # fmt: skip

    return publish(build, operation, "conv_input", ndim, ("weight", "grad_output"))


def _conv_weight_nd(ndim: int) -> Callable[..., Array]:
    operation = f"conv{ndim}d_weight"

    def build(
        input: Array,
        weight_size: Sequence[int],
        grad_output: Array,
        stride: Ints = 1,
        padding: PaddingLike = 0,
        dilation: Ints = 1,
        groups: int = 1,
        *,
        flip_kernel: bool = False,
        backend: str | None = None,
    ) -> Call:
        x_shape = array_shape(operation, "input", input)
        batched = check_rank(operation, ndim, "input", x_shape)
        weight_shape = shape_of(operation, "weight_size", weight_size)
        _weight_rank(operation, ndim, weight_shape)
        return bind_adjoint(
            operation, "conv_weight", x_shape, weight_shape, ("input", "grad_output"), input, grad_output,
            backend, batched,
            stride=stride, padding=padding, dilation=dilation, groups=groups, flip_kernel=flip_kernel,
        )  # fmt: skip

    return publish(build, operation, "conv_weight", ndim, ("input", "grad_output"))


conv1d, conv2d, conv3d = map(_conv_nd, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose_nd, (1, 2, 3))
conv1d_input, conv2d_input, conv3d_input = map(_conv_input_nd, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_conv_weight_nd, (1, 2, 3))
