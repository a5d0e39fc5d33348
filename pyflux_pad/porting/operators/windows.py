"""Convolutions, pools and pads: this package's own functions, on any engine, with attributes read as ONNX's.

`pads` is a `Pads`; where it is not resolved, the rule goes to the function, which resolves it by the sizes it meets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import ops
from ...padding import GeometryError, Padding
from ..arrays import Array, Arrays
from ..graph import Pads
from .table import operator

Ints = tuple[int, ...]
RULES = {"same_upper": "same", "same_lower": "same_lower", "valid": "valid"}
MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
"""ONNX's names of padding modes, and ours."""


def _padding(pads: Pads) -> Padding | str:
    return RULES[pads.rule] if pads.padding is None else pads.padding


@operator("Conv", parameters=(1, 2))
def conv(
    ns: Arrays, x: Array, weight: Array, bias: Array | None = None, *,
    kernel_shape: Ints, pads: Pads, strides: Ints, dilations: Ints, group: int = 1,
) -> Array:  # fmt: skip
    """Cross-correlation, weight (C_out, C_in/group, *kernel)."""
    return ops.conv(
        x, weight, bias, stride=strides, padding=_padding(pads), dilation=dilations, groups=group, backend=ns.backend
    )


@operator("ConvTranspose", parameters=(1, 2))
def conv_transpose(
    ns: Arrays, x: Array, weight: Array, bias: Array | None = None, *,
    kernel_shape: Ints, pads: Pads, strides: Ints, dilations: Ints, group: int = 1,
    output_padding: Ints | None = None, output_shape: Ints | None = None,
) -> Array:  # fmt: skip
    """Transposed convolution, weight (C_in, C_out/group, *kernel); resolved pads crop and hold everything else."""
    options: dict[str, Any] = {"stride": strides, "dilation": dilations, "groups": group, "backend": ns.backend}
    if pads.padding is not None:
        return ops.conv_transpose(x, weight, bias, padding=pads.padding, **options)
    rule = "same" if pads.rule.endswith("upper") else "same_lower"
    return ops.conv_transpose(
        x, weight, bias, padding=rule, output_padding=output_padding or 0, output_size=output_shape, **options
    )


@operator("MaxPool")
def max_pool(
    ns: Arrays, x: Array, *, kernel_shape: Ints, pads: Pads, strides: Ints, dilations: Ints, ceil_mode: int = 0,
    storage_order: int = 0, wanted: int = 1,
) -> Any:  # fmt: skip
    """Maximum of every window, and its flat index in the whole array if `wanted` is 2."""
    options: dict[str, Any] = {
        "kernel_size": kernel_shape, "stride": strides, "padding": _padding(pads), "dilation": dilations,
        "ceil_mode": bool(ceil_mode), "backend": ns.backend,
    }  # fmt: skip
    if wanted == 1:
        return ops.max_pool(x, **options)
    y, index = ops.max_pool(x, return_indices=True, **options)
    if storage_order and x.ndim == 4:  # the plane is counted column by column
        rows, columns = index // x.shape[3], index % x.shape[3]
        index = rows + columns * x.shape[2]
    planes = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
    return y, index + ns.asarray(planes * math.prod(x.shape[2:]), x)


@operator("AveragePool")
def average_pool(
    ns: Arrays, x: Array, *, kernel_shape: Ints, pads: Pads, strides: Ints, dilations: Ints, ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Array:  # fmt: skip
    """Average of every window; declared padding counts if `count_include_pad`, the overhang of ceil mode never."""
    return ops.avg_pool(
        x, kernel_shape, stride=strides, padding=_padding(pads), dilation=dilations, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad), backend=ns.backend,
    )  # fmt: skip


@operator("LpPool")
def lp_pool(
    ns: Arrays, x: Array, *, kernel_shape: Ints, pads: Pads, strides: Ints, dilations: Ints, ceil_mode: int = 0,
    p: float = 2,
) -> Array:  # fmt: skip
    """(sum |x|^p)^(1/p) of every window."""
    return ops.lp_pool(
        x, kernel_shape, norm_type=p, stride=strides, padding=_padding(pads), dilation=dilations,
        ceil_mode=bool(ceil_mode), backend=ns.backend,
    )  # fmt: skip


@operator("GlobalAveragePool")
def global_average_pool(ns: Arrays, x: Array) -> Array:
    """Average of every channel."""
    return ops.adaptive_avg_pool(x, 1, backend=ns.backend)


@operator("GlobalMaxPool")
def global_max_pool(ns: Arrays, x: Array) -> Array:
    """Maximum of every channel."""
    return ops.adaptive_max_pool(x, 1, backend=ns.backend)


@operator("GlobalLpPool")
def global_lp_pool(ns: Arrays, x: Array, *, p: float = 2) -> Array:
    """(sum |x|^p)^(1/p) of every channel."""
    size = tuple(x.shape[2:])
    return ops.lp_pool(x, size, norm_type=p, stride=1, backend=ns.backend)


def _check_pad(attributes: Mapping[str, Any]) -> str:
    mode = attributes["mode"]
    return "" if mode in MODES else f"mode={mode!r} is no padding mode; there are {', '.join(MODES)}"


@operator("Pad", host=(1, 2, 3), check=_check_pad)
def pad(
    ns: Arrays, x: Array, amounts: Any = None, value: Any = None, axes: Any = None, *, pads: Pads,
    mode: str = "constant", constant_value: float = 0.0,
) -> Array:  # fmt: skip
    """Pad every axis by its own amounts; negative ones crop. The inputs speak where the pads are only computed."""
    padding = pads.padding
    if padding is None:
        padding = every_axis(amounts, axes, x.ndim)
        constant_value = 0.0 if value is None or value.size == 0 else value.item()
    padded = [axis for axis, pair in enumerate(padding) if pair != (0, 0)]
    options: dict[str, Any] = {"mode": MODES[mode], "value": constant_value, "backend": ns.backend}
    if all(axis >= 2 for axis in padded) and 3 <= x.ndim <= 5:
        return ops.pad(x, padding.pairs[2:], **options)
    for axis in padded:  # every mode works on one axis at a time
        shape = tuple(x.shape)
        lifted = ns.reshape(x, (1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])))
        lifted = ops.pad(lifted, (padding[axis], (0, 0)), **options)
        x = ns.reshape(lifted, (*shape[:axis], -1, *shape[axis + 1 :]))
    return x


def every_axis(amounts: Any, axes: Any, ndim: int) -> Padding:
    """Return ONNX's `pads` for `axes` (all if None) as one pair for every array axis."""
    pairs = [(0, 0)] * ndim
    chosen = range(ndim) if axes is None else [int(axis) % ndim for axis in axes]
    given = Padding.from_onnx(amounts)
    if len(given) != len(chosen):
        raise GeometryError(f"pads={given.to_onnx()} are for {len(given)} axes, but there are {len(chosen)} to pad")
    for axis, pair in zip(chosen, given, strict=True):
        pairs[axis] = pair
    return Padding(tuple(pairs))
