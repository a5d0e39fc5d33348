"""Torch's convolutions, pools, pads, normalisations, linear and recurrent layers in the neutral vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...padding import Padding
from ..graph import Pads
from .builder import Builder, Ref, handles

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _per_axis(value: Any, ndim: int) -> tuple[int, ...]:
    entries = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return entries * ndim if len(entries) == 1 else entries


def _batched(b: Builder, x: Ref, ndim: int) -> None:
    if x.ndim != ndim + 2:
        raise b.refuse(f"it takes (N, C, *spatial) with {ndim} spatial axes, got the shape {x.shape}; add a batch axis")


def _symmetric(padding: Sequence[int]) -> Pads:
    return Pads.explicit((entry, entry) for entry in padding)


# ---------------------------------------------------------------------- convolutions


@handles("conv1d", "conv2d", "conv3d")
def _convolution(
    b: Builder, result: Any, x: Ref, weight: Ref, bias: Ref | None, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Ref:  # fmt: skip
    ndim = weight.ndim - 2
    _batched(b, x, ndim)
    kernel, strides, dilations = weight.shape[2:], _per_axis(stride, ndim), _per_axis(dilation, ndim)
    if padding == "same":
        pads = Pads.explicit(Padding.same("torch", kernel, kernel, strides, dilations))
    else:
        pads = _symmetric(_per_axis(0 if padding == "valid" else padding, ndim))
    return b.node(
        "Conv", [x, weight, bias], result.shape, kernel_shape=kernel, pads=pads, strides=strides, dilations=dilations,
        group=groups,
    )  # fmt: skip


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(
    b: Builder, result: Any, x: Ref, weight: Ref, bias: Ref | None, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Ref:  # fmt: skip
    ndim = weight.ndim - 2
    _batched(b, x, ndim)
    crops = zip(_per_axis(padding, ndim), _per_axis(output_padding, ndim), strict=True)
    return b.node(
        "ConvTranspose", [x, weight, bias], result.shape, kernel_shape=weight.shape[2:],
        pads=Pads.explicit((crop, crop - extra) for crop, extra in crops), strides=_per_axis(stride, ndim),
        dilations=_per_axis(dilation, ndim), group=groups,
    )  # fmt: skip


@handles("convolution")
def _any_convolution(
    b: Builder, result: Any, x: Ref, weight: Ref, bias: Ref | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Ref:  # fmt: skip
    if transposed:
        return _transposed_convolution(b, result, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(b, result, x, weight, bias, stride, padding, dilation, groups)


# ---------------------------------------------------------------------- pools and pads


@handles("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    b: Builder, result: Any, x: Ref, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Ref:
    ndim = x.ndim - 2
    _batched(b, x, ndim)
    kernel = _per_axis(kernel_size, ndim)
    return b.node(
        "MaxPool", [x], result.shape, kernel_shape=kernel, strides=_per_axis(stride, ndim) if stride else kernel,
        pads=_symmetric(_per_axis(padding, ndim)), dilations=_per_axis(dilation, ndim), ceil_mode=int(ceil_mode),
    )  # fmt: skip


@handles("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_first(b: Builder, result: Any, **given: Any) -> tuple[Ref, None]:
    return _max_pool(b, result[0], **given), None


@handles("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    b: Builder, result: Any, x: Ref, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None = None,
) -> Ref:  # fmt: skip
    ndim = x.ndim - 2
    _batched(b, x, ndim)
    kernel = _per_axis(kernel_size, ndim)
    if divisor_override is not None:
        raise b.refuse(f"divisor_override={divisor_override} has no counterpart; multiply the average instead")
    return b.node(
        "AveragePool", [x], result.shape, kernel_shape=kernel, strides=_per_axis(stride, ndim) if stride else kernel,
        pads=_symmetric(_per_axis(padding, ndim)), dilations=(1,) * ndim, ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )  # fmt: skip


@handles("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_avg_pool(b: Builder, result: Any, x: Ref, output_size: Any) -> Ref:
    return _adaptive(b, x, tuple(result.shape[2:]), "AveragePool")


@handles("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(b: Builder, result: Any, x: Ref, output_size: Any) -> tuple[Ref, None]:
    return _adaptive(b, x, tuple(result[0].shape[2:]), "MaxPool"), None


def _adaptive(b: Builder, x: Ref, out: tuple[int, ...], op: str) -> Ref:
    """Adaptive windows are those of a plain pool where the output divides the input."""
    size = x.shape[2:]
    _batched(b, x, len(out))
    if all(entry == 1 for entry in out):
        return b.node(f"Global{op}", [x], (*x.shape[:2], *out))
    if any(n % o for n, o in zip(size, out, strict=True)):
        raise b.refuse(f"windows from {size} to {out} have unequal sizes; choose an output that divides the input")
    kernel = tuple(n // o for n, o in zip(size, out, strict=True))
    none = _symmetric((0,) * len(out))
    return b.node(
        op, [x], (*x.shape[:2], *out), kernel_shape=kernel, strides=kernel, pads=none, dilations=(1,) * len(out)
    )


@handles("pad", "constant_pad_nd")
def _pad(b: Builder, result: Any, x: Ref, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Ref:
    return b.node(
        "Pad", [x], result.shape, pads=Pads.explicit(Padding.from_torch(pad, x.ndim)), mode=MODES[mode],
        constant_value=float(value or 0),
    )  # fmt: skip


@handles("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample_nearest(b: Builder, result: Any, x: Ref, output_size: Any, scale_factors: Any) -> Ref:
    return _resized(
        b, result, x, scale_factors, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


@handles("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
def _upsample_linear(b: Builder, result: Any, x: Ref, output_size: Any, align_corners: bool, scale_factors: Any) -> Ref:
    places = "align_corners" if align_corners else "half_pixel"
    mode = "cubic" if "bicubic" in b.operator else "linear"
    return _resized(b, result, x, scale_factors, mode=mode, coordinate_transformation_mode=places)


def _resized(b: Builder, result: Any, x: Ref, scale_factors: Any, **given: Any) -> Ref:
    scales = b.constant((1.0, 1.0, *scale_factors), "float32") if scale_factors else None
    sizes = None if scale_factors else b.constant(tuple(result.shape))
    return b.node("Resize", [x, None, scales, sizes], result.shape, **given)


@handles("pixel_shuffle")
def _pixel_shuffle(b: Builder, result: Any, x: Ref, upscale_factor: int) -> Ref:
    return b.node("DepthToSpace", [x], result.shape, blocksize=upscale_factor, mode="CRD")


# ---------------------------------------------------------------------- normalisations


def _weights(b: Builder, weight: Ref | None, bias: Ref | None, shape: Sequence[int], dtype: str) -> tuple[Ref, Ref]:
    """Return scale and bias; ones and zeros where a layer has none."""
    return weight or b.constant(np.ones(shape), dtype), bias or b.constant(np.zeros(shape), dtype)


@handles("_native_batch_norm_legit_no_training")
def _batch_norm(
    b: Builder, result: Any, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref, running_var: Ref,
    momentum: float, eps: float,
) -> tuple[Ref, None, None]:  # fmt: skip
    parts = [*_weights(b, weight, bias, x.shape[1:2], x.dtype), running_mean, running_var]
    return b.node("BatchNormalization", [x, *parts], x.shape, epsilon=eps, momentum=1 - momentum), None, None


@handles("batch_norm")
def _batch_norm_in_one(
    b: Builder, result: Any, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref | None,
    running_var: Ref | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Ref:  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise b.refuse("it normalises by the batch; call module.eval(), and let the layer track its statistics")
    return _batch_norm(b, result, x, weight, bias, running_mean, running_var, momentum, eps)[0]


@handles("instance_norm")
def _instance_norm(
    b: Builder, result: Any, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref | None,
    running_var: Ref | None, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Ref:  # fmt: skip
    scale, shift = _weights(b, weight, bias, x.shape[1:2], x.dtype)
    if use_input_stats:
        return b.node("InstanceNormalization", [x, scale, shift], x.shape, epsilon=eps)
    return b.node("BatchNormalization", [x, scale, shift, running_mean, running_var], x.shape, epsilon=eps)


@handles("group_norm")
def _group_norm(
    b: Builder, result: Any, x: Ref, num_groups: int, weight: Ref | None, bias: Ref | None, eps: float,
    cudnn_enabled: bool,
) -> Ref:  # fmt: skip
    scale, shift = _weights(b, weight, bias, x.shape[1:2], x.dtype)
    return b.node("GroupNormalization", [x, scale, shift], x.shape, num_groups=num_groups, epsilon=eps)


@handles("layer_norm")
def _layer_norm(
    b: Builder, result: Any, x: Ref, normalized_shape: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float,
    cudnn_enable: bool,
) -> Ref:  # fmt: skip
    scale, shift = _weights(b, weight, bias, normalized_shape, x.dtype)
    return b.node("LayerNormalization", [x, scale, shift], x.shape, axis=-len(normalized_shape), epsilon=eps)


# ---------------------------------------------------------------------- products of matrices


@handles("linear")
def _linear(b: Builder, result: Any, x: Ref, weight: Ref, bias: Ref | None) -> Ref:
    rows = b.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    y = b.node("Gemm", [rows, weight, bias], (rows.shape[0], weight.shape[0]), transB=1)
    return b.reshape(y, tuple(result.shape))


@handles("addmm")
def _addmm(b: Builder, result: Any, x: Ref, mat1: Ref, mat2: Ref, beta: float, alpha: float) -> Ref:
    return b.node("Gemm", [mat1, mat2, x], result.shape, alpha=float(alpha), beta=float(beta))


@handles("matmul", "mm", "bmm")
def _matmul(b: Builder, result: Any, x: Ref, **other: Ref) -> Ref:
    (y,) = other.values()
    return b.node("MatMul", [x, y], result.shape)


@handles("embedding")
def _embedding(b: Builder, result: Any, weight: Ref, indices: Ref, **_: Any) -> Ref:
    return b.node("Gather", [weight, indices], result.shape, axis=0)


# ---------------------------------------------------------------------- recurrent layers


@handles("lstm.input")
def _lstm(
    b: Builder, result: Any, x: Ref, hx: Sequence[Ref], params: Sequence[Ref], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Ref, ...]:  # fmt: skip
    # torch's gates are i, f, g, o; ONNX's are i, o, f, c.
    return _recurrent(b, "LSTM", (0, 3, 1, 2), x, hx, params, has_biases, num_layers, bidirectional, batch_first)


@handles("gru.input")
def _gru(
    b: Builder, result: Any, x: Ref, hx: Ref, params: Sequence[Ref], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Ref, ...]:  # fmt: skip
    # torch's gates are r, z, n; ONNX's are z, r, h.
    return _recurrent(
        b, "GRU", (1, 0, 2), x, [hx], params, has_biases, num_layers, bidirectional, batch_first, linear_before_reset=1
    )


def _recurrent(
    b: Builder, op: str, gates: tuple[int, ...], x: Ref, initial: Sequence[Ref], params: Sequence[Ref],
    has_biases: bool, layers: int, bidirectional: bool, batch_first: bool, **given: Any,
) -> tuple[Ref, ...]:  # fmt: skip
    """Every layer of torch's stack becomes a node; its weights are reordered once, under names of their own."""
    directions, per_direction = 1 + bidirectional, 4 if has_biases else 2
    if len(params) != layers * directions * per_direction:
        raise b.refuse("projections have no counterpart in ONNX; use proj_size=0")
    if batch_first:
        x = b.transpose(x, (1, 0, 2))
    steps, batch = x.shape[:2]
    finals: list[list[Ref]] = [[] for _ in initial]
    for layer in range(layers):
        chunk = params[layer * directions * per_direction : (layer + 1) * directions * per_direction]
        weights = _gathered(b, chunk, per_direction, len(gates), gates)
        hidden = weights[1].shape[2]
        states = [_rows(b, state, layer * directions, directions) for state in initial]
        shapes = [(steps, directions, batch, hidden), *((directions, batch, hidden),) * len(initial)]
        inputs = [x, *weights, None, *states] if has_biases else [x, *weights, None, None, *states]
        direction = "bidirectional" if bidirectional else "forward"
        y, *last = b.many(op, inputs, shapes, hidden_size=hidden, direction=direction, **given)
        for final, state in zip(finals, last, strict=True):
            final.append(state)
        x = b.reshape(b.transpose(y, (0, 2, 1, 3)), (steps, batch, directions * hidden))
    ends = [
        states[0] if layers == 1 else
        b.node("Concat", states, (layers * directions, *states[0].shape[1:]), axis=0) for states in finals
    ]  # fmt: skip
    return (b.transpose(x, (1, 0, 2)) if batch_first else x), *ends


def _rows(b: Builder, state: Ref, start: int, count: int) -> Ref:
    if state.shape[0] == count:
        return state
    bounds = [b.constant([value]) for value in (start, start + count, 0)]
    return b.node("Slice", [state, *bounds], (count, *state.shape[1:]))


def _gathered(b: Builder, params: Sequence[Ref], per_direction: int, count: int, gates: tuple[int, ...]) -> list[Ref]:
    """Return W, R and, if there are biases, B of one layer in ONNX's order."""

    def reordered(ref: Ref) -> np.ndarray:
        array = b.arrays[ref.name]
        return array.reshape(count, -1, *array.shape[1:])[list(gates)].reshape(array.shape)

    refs = []
    for label, places in (("W", (0,)), ("R", (1,)), ("B", (2, 3)))[: 3 if per_direction == 4 else 2]:
        parts = [
            np.concatenate([reordered(params[start + place]) for place in places])
            for start in range(0, len(params), per_direction)
        ]
        first = params[places[0]]
        name = b.fresh(f"{first.name.rpartition('.')[0] or b.current}.{label}")
        b.arrays[name] = np.stack(parts)
        if first.name in b.parameters:
            b.parameters.add(name)
        refs.append(Ref(name, b.arrays[name].shape, first.dtype))
    return refs
