"""The 1d, 2d and 3d pools, with torch's argument order; they check the rank and take unbatched arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .call import Array, Ints, PaddingLike, array_shape, check_rank, publish
from .pools import PoolCall, bind_adaptive, bind_pool


def _max_pool_nd(ndim: int) -> Callable[..., Any]:
    operation = f"max_pool{ndim}d"

    def build(
        input: Array,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: PaddingLike = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
        *,
        backend: str | None = None,
    ) -> PoolCall:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        return bind_pool(
            operation, "input", input, backend, "max", kernel_size=kernel_size, stride=stride, padding=padding,
            dilation=dilation, ceil_mode=ceil_mode, return_indices=return_indices, batched=batched,
        )  # fmt: skip

    return publish(build, operation, "max_pool", ndim, ("input",))


def _avg_pool_nd(ndim: int) -> Callable[..., Any]:
    operation = f"avg_pool{ndim}d"

    def build(
        input: Array,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: PaddingLike = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        dilation: Ints = 1,
        backend: str | None = None,
    ) -> PoolCall:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        return bind_pool(
            operation, "input", input, backend, "avg", kernel_size=kernel_size, stride=stride, padding=padding,
            dilation=dilation, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
            divisor_override=divisor_override, batched=batched,
        )  # fmt: skip

    return publish(build, operation, "avg_pool", ndim, ("input",))


def _lp_pool_nd(ndim: int) -> Callable[..., Any]:
    operation = f"lp_pool{ndim}d"

    def build(
        input: Array,
        norm_type: float,
        kernel_size: Ints,
        stride: Ints | None = None,
        ceil_mode: bool = False,
        *,
        padding: PaddingLike = 0,
        dilation: Ints = 1,
        backend: str | None = None,
    ) -> PoolCall:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        return bind_pool(
            operation, "input", input, backend, "lp", kernel_size=kernel_size, stride=stride, padding=padding,
            dilation=dilation, ceil_mode=ceil_mode, norm_type=norm_type, batched=batched,
        )  # fmt: skip

    return publish(build, operation, "lp_pool", ndim, ("input",))


def _adaptive_avg_pool_nd(ndim: int) -> Callable[..., Any]:
    operation = f"adaptive_avg_pool{ndim}d"

    def build(input: Array, output_size: Any, *, backend: str | None = None) -> PoolCall:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        return bind_adaptive(operation, "input", input, output_size, backend, "avg", batched=batched)

    return publish(build, operation, "adaptive_avg_pool", ndim, ("input",))


def _adaptive_max_pool_nd(ndim: int) -> Callable[..., Any]:
    operation = f"adaptive_max_pool{ndim}d"

    def build(input: Array, output_size: Any, return_indices: bool = False, *, backend: str | None = None) -> PoolCall:
        batched = check_rank(operation, ndim, "input", array_shape(operation, "input", input))
        return bind_adaptive(
            operation, "input", input, output_size, backend, "max", return_indices=return_indices, batched=batched
        )

    return publish(build, operation, "adaptive_max_pool", ndim, ("input",))


max_pool1d, max_pool2d, max_pool3d = map(_max_pool_nd, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool_nd, (1, 2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool_nd, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg_pool_nd, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max_pool_nd, (1, 2, 3))
