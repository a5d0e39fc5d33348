"""The sizes of a convolution, checked once. Integers only, no arrays.

Per axis, with input n, kernel k, stride s, dilation d, pads (lo, hi) and extent ke = d(k-1) + 1, a convolution has
``out = (n + lo + hi - ke) // s + 1`` outputs, and output j reads the inputs ``j*s + i*d - lo`` for i in 0..k-1.
Its transpose by the input is described by the same geometry read backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..padding import GeometryError, Padding, Pairs, apply_rule, as_int, parse, per_axis, split_total

Sizes = tuple[int, ...]

_MAX_ELEMENTS = 2**63 - 1


@dataclass(frozen=True)
class ConvGeometry:
    """Every integer of a convolution ``x (N, C, *input_size)``, ``weight (O, C/groups, *kernel_size)``.

    Attributes
    ----------
    batch, in_channels, out_channels, groups
        N, C, O and the number of groups.
    input_size, kernel_size, output_size, stride, dilation
        One int per spatial axis, first spatial axis first.
    padding
        One ``(low, high)`` pair per spatial axis; negative entries crop.
    flip_kernel
        False for cross-correlation (torch, ONNX, JAX), True for true convolution (NNlib, Flux).
    padding_from_sizes
        Whether a "same" rule computed the pads: where sizes are symbolic, such pads are too.
    """

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    input_size: Sizes
    kernel_size: Sizes
    output_size: Sizes
    stride: Sizes
    dilation: Sizes
    padding: Pairs
    flip_kernel: bool
    padding_from_sizes: bool = False

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel_size)

    @property
    def input_shape(self) -> Sizes:
        """Shape of x."""
        return (self.batch, self.in_channels, *self.input_size)

    @property
    def weight_shape(self) -> Sizes:
        """Shape of the weight."""
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    @property
    def output_shape(self) -> Sizes:
        """Shape of the output."""
        return (self.batch, self.out_channels, *self.output_size)

    @property
    def extent(self) -> Sizes:
        """Cells that a dilated kernel spans: d(k-1) + 1 per axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    @property
    def slack(self) -> Pairs:
        """Per axis the lowest and the highest high pad that give this very result: ``(q, q + s - 1)``.

        ``q = (out-1)s + ke - n - lo`` lets the last window end exactly at the padded border; up to s - 1 further cells
        are never read.
        """
        lowest = tuple(
            (out - 1) * s + ke - n - low
            for out, s, ke, n, (low, _) in zip(
                self.output_size, self.stride, self.extent, self.input_size, self.padding, strict=True
            )
        )
        return tuple((q, q + s - 1) for q, s in zip(lowest, self.stride, strict=True))

    @property
    def symmetric_equivalent(self) -> Sizes | None:
        """One pad per axis that gives the same result on both sides, or None where there is none.

        The first window fixes the low pad, so the only candidate is ``lo``, and it serves if the slack holds it.
        """
        if all(q <= low <= top for (q, top), (low, _) in zip(self.slack, self.padding, strict=True)):
            return tuple(low for low, _ in self.padding)
        return None

    def lifted(self) -> ConvGeometry:
        """Return the same convolution with three spatial axes: leading axes of size 1 are added."""
        missing = 3 - self.ndim
        if missing == 0:
            return self
        ones = (1,) * missing
        return replace(
            self,
            input_size=ones + self.input_size,
            kernel_size=ones + self.kernel_size,
            output_size=ones + self.output_size,
            stride=ones + self.stride,
            dilation=ones + self.dilation,
            padding=((0, 0),) * missing + self.padding,
        )


# ---------------------------------------------------------------------- geometry of a convolution


class ConvArguments(NamedTuple):
    """The arguments of a convolution after they have been checked and brought to one form."""

    stride: Sizes
    padding: Pairs | str
    dilation: Sizes
    groups: int
    flip_kernel: bool


def arguments(
    operation: str, ndim: int, stride: Any, padding: Any, dilation: Any, groups: Any, flip_kernel: Any
) -> ConvArguments:
    """Check the arguments of a convolution that do not depend on sizes."""
    try:
        groups = as_int(groups, "groups")
        if groups < 1:
            raise GeometryError(f"groups must be at least 1, got {groups}")
        if type(flip_kernel) is not bool:
            raise TypeError(f"flip_kernel must be True or False, got {flip_kernel!r}")
        return ConvArguments(
            per_axis(stride, ndim, "stride", minimum=1),
            parse(padding, ndim),
            per_axis(dilation, ndim, "dilation", minimum=1),
            groups,
            flip_kernel,
        )
    except (GeometryError, TypeError) as error:
        raise type(error)(f"{operation}: {error}") from None


_cached_arguments = lru_cache(maxsize=1024, typed=True)(arguments)


def quick_arguments(
    operation: str, ndim: int, stride: Any, padding: Any, dilation: Any, groups: Any, flip_kernel: Any
) -> ConvArguments:
    """Return `arguments` from a cache where equal values mean the same: True and 1.0 equal 1, and are refused."""
    if are_exact(stride, padding, dilation, groups, flip_kernel):
        return _cached_arguments(operation, ndim, stride, padding, dilation, groups, flip_kernel)
    return arguments(operation, ndim, stride, padding, dilation, groups, flip_kernel)


def are_exact(stride: Any, padding: Any, dilation: Any, groups: Any, flip_kernel: Any) -> bool:
    """Say whether arguments can be the key of a cache: none of them equals another one that means something else."""
    return (
        type(groups) is int
        and type(flip_kernel) is bool
        and _is_exact(stride)
        and _is_exact(padding)
        and _is_exact(dilation)
    )


def _is_exact(value: Any) -> bool:
    """Say whether a value is an int, a string, a Padding, or tuples of ints, all of exactly these types."""
    if type(value) is not tuple:
        return type(value) in (int, str, Padding)
    for entry in value:
        if type(entry) is tuple:
            for number in entry:
                if type(number) is not int:
                    return False
        elif type(entry) is not int:
            return False
    return True


def spatial_ndim(operation: str, name: str, shape: Sizes) -> int:
    """Return the number of spatial axes of a weight, which says what kind of convolution it is."""
    ndim = len(shape) - 2
    if ndim not in (1, 2, 3):
        raise GeometryError(
            f"{operation}: {name} must have 1 to 3 spatial axes after (channels_out, channels_in/groups), "
            f"got {len(shape)} axes in all: {shape}"
        )
    return ndim


def shape_of(operation: str, name: str, shape: Any) -> Sizes:
    """Check a shape that was passed as an argument."""
    try:
        sizes = tuple(as_int(size, name) for size in shape)
    except TypeError as error:
        raise TypeError(f"{operation}: {name} takes one int per axis; {error}") from None
    if any(size < 0 for size in sizes):
        raise GeometryError(f"{operation}: {name} must not be negative, got {sizes}")
    return sizes


def _with_context(build: Callable[..., ConvGeometry]) -> Callable[..., ConvGeometry]:
    """Let inner code raise the short fact; add operation, shapes and arguments once, here."""

    def wrapped(operation: str, x_shape: Sizes, weight_shape: Sizes, args: ConvArguments, *rest: Any) -> ConvGeometry:
        try:
            return build(x_shape, weight_shape, args, *rest)
        except GeometryError as error:
            raise GeometryError(
                f"{operation}: {error}\n  x {tuple(x_shape)}, weight {tuple(weight_shape)}, stride={args.stride}, "
                f"padding={args.padding}, dilation={args.dilation}, groups={args.groups}"
            ) from None

    return wrapped


@_with_context
def conv_geometry(x_shape: Sizes, weight_shape: Sizes, args: ConvArguments) -> ConvGeometry:
    """Return the checked geometry of ``conv(x, weight)``.

    The decorated function takes the operation's name first. Raises GeometryError where ranks, channels or groups do
    not fit, or the kernel is larger than the padded input.
    """
    _check_rank(x_shape, weight_shape)
    out_channels, group_channels, *kernel = weight_shape
    batch, in_channels, *spatial = x_shape
    if in_channels != group_channels * args.groups:
        raise GeometryError(
            f"x has {in_channels} channels, but weight (O, C/groups, ...) wants {group_channels} in each of "
            f"{args.groups} groups, i.e. {group_channels * args.groups}"
        )
    _check_groups(out_channels, args.groups, "output channels (weight axis 0)")
    input_size, kernel_size = tuple(spatial), tuple(kernel)
    _check_kernel(kernel_size)
    padding, same = args.padding, args.padding in ("same", "same_lower")
    if isinstance(padding, str):
        padding = apply_rule(padding, input_size, kernel_size, args.stride, args.dilation)
    output_size = []
    for axis, (n, k, s, d, (low, high)) in enumerate(
        zip(input_size, kernel_size, args.stride, args.dilation, padding, strict=True)
    ):
        span, extent = n + low + high, d * (k - 1) + 1
        if not (same and n > 0) and span < extent:
            raise GeometryError(
                f"no output on spatial axis {axis}: the kernel spans {extent} cells (dilation {d} x (kernel {k} - 1) "
                f"+ 1), the padded input has {span} (input {n} + padding ({low}, {high})); "
                f"pad {extent - span} more, or use a smaller kernel or dilation"
            )
        output_size.append(-(-n // s) if same and n > 0 else (span - extent) // s + 1)
    geometry = ConvGeometry(
        batch, in_channels, out_channels, args.groups, input_size, kernel_size, tuple(output_size),
        args.stride, args.dilation, padding, args.flip_kernel, same,
    )  # fmt: skip
    _check_overflow(("x", geometry.input_shape), ("the output", geometry.output_shape))
    return geometry


@_with_context
def transposed_geometry(
    x_shape: Sizes, weight_shape: Sizes, args: ConvArguments, output_padding: Sizes, output_size: Sizes | None
) -> ConvGeometry:
    """Return the geometry of the convolution whose transpose is ``conv_transpose(x, weight)``.

    Its input is the result of the transposed convolution and its output is `x`. Per axis the full result has
    ``full = (n-1)s + ke`` cells; pads crop it (negative ones append zeros), `output_padding` adds at the high side and
    `output_size` fixes the result. The high pad is chosen so that the windows of the convolution end exactly at the
    border: ``hi = full - lo - out``. The decorated function takes the operation's name first.
    """
    _check_rank(x_shape, weight_shape)
    in_channels, group_channels, *kernel = weight_shape
    batch, channels, *spatial = x_shape
    if channels != in_channels:
        raise GeometryError(f"x has {channels} channels, but weight (C_in, C_out/groups, ...) wants {in_channels}")
    _check_groups(in_channels, args.groups, "input channels (weight axis 0)")
    size, kernel_size = tuple(spatial), tuple(kernel)
    _check_kernel(kernel_size)
    extent = tuple(d * (k - 1) + 1 for k, d in zip(kernel_size, args.dilation, strict=True))
    full = tuple((n - 1) * s + ke for n, s, ke in zip(size, args.stride, extent, strict=True))
    _check_output_padding(output_padding, args, output_size)
    result, padding = [], []
    for axis, total in enumerate(full):
        low, high, out = _crop(
            args.padding, axis, total, size[axis], args.stride[axis], extent[axis], output_padding[axis], output_size
        )
        if out < 1:
            raise GeometryError(
                f"no output on spatial axis {axis}: the full result has {total} cells and the padding crops "
                f"({low}, {high}) of them; crop less"
            )
        result.append(out)
        padding.append((low, high))
    geometry = ConvGeometry(
        batch, group_channels * args.groups, in_channels, args.groups, tuple(result), kernel_size, size,
        args.stride, args.dilation, tuple(padding), args.flip_kernel,
    )  # fmt: skip
    _check_overflow(("x", geometry.output_shape), ("the output", geometry.input_shape))
    return geometry


def _crop(
    padding: Pairs | str, axis: int, full: int, n: int, s: int, extent: int, extra: int, output_size: Sizes | None
) -> tuple[int, int, int]:
    """Return (low crop, high crop, output) of one axis of a transposed convolution."""
    wanted = None if output_size is None else output_size[axis]
    if padding in ("same", "same_lower"):
        out = n * s if wanted is None else wanted
        total = full + extra - out
        if wanted is not None or extent + extra < s:
            total = (total + abs(total)) // 2
        low = split_total(total, lower=padding == "same_lower")[0]
        return low, full - low - out, out
    if padding == "causal":
        raise GeometryError(
            "padding='causal' has no meaning for a transposed convolution; crop the end with ((0, p), ...)"
        )
    low, high = (0, 0) if isinstance(padding, str) else padding[axis]
    out = full - low - high + extra
    if wanted is not None:
        out = wanted
    return low, full - low - out if wanted is not None else high - extra, out


def _check_output_padding(output_padding: Sizes, args: ConvArguments, output_size: Sizes | None) -> None:
    if output_size is not None and any(output_padding) and args.padding not in ("same", "same_lower"):
        raise GeometryError(
            f"output_padding={output_padding} and output_size={output_size} both fix the result; give one of them"
        )
    for axis, (extra, s, d) in enumerate(zip(output_padding, args.stride, args.dilation, strict=True)):
        if not 0 <= extra < max(s, d):
            raise GeometryError(
                f"output_padding must be at least 0 and smaller than stride or dilation, got {extra} with stride {s} "
                f"and dilation {d} on spatial axis {axis}; a negative high pad appends any number of zeros"
            )


def _check_rank(x_shape: Sizes, weight_shape: Sizes) -> None:
    if len(x_shape) != len(weight_shape):
        hint = "; add a batch axis, x[None]" if len(x_shape) == len(weight_shape) - 1 else ""
        raise GeometryError(
            f"x must have {len(weight_shape)} axes (N, C, *spatial) as weight has, got {len(x_shape)}{hint}"
        )


def _check_groups(channels: int, groups: int, what: str) -> None:
    if channels % groups:
        raise GeometryError(f"{what} must be divisible by groups, got {channels} channels and {groups} groups")


def _check_kernel(kernel_size: Sizes) -> None:
    for axis, k in enumerate(kernel_size):
        if k < 1:
            raise GeometryError(f"the kernel must have at least 1 cell per axis, got {k} on spatial axis {axis}")


def _check_overflow(*shapes: tuple[str, Sizes]) -> None:
    for name, shape in shapes:
        if type(shape[-1]) is int and all(type(size) is int for size in shape) and math.prod(shape) > _MAX_ELEMENTS:
            raise GeometryError(f"{name} would have {math.prod(shape)} elements, more than 64 bits can count: {shape}")


cached_conv_geometry = lru_cache(maxsize=1024)(conv_geometry)
cached_transposed_geometry = lru_cache(maxsize=1024)(transposed_geometry)
