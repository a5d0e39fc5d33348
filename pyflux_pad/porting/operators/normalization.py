"""Normalisations: by stored statistics, by those of an instance, a layer, groups of channels or neighbours."""

from __future__ import annotations

import math
from typing import Any

from ... import ops
from ..arrays import Array, Arrays
from .table import operator


def per_channel(ns: Arrays, array: Array, ndim: int) -> Array:
    """Shape a vector over the channels so that it broadcasts over (N, C, *spatial)."""
    return ns.reshape(array, (-1, *(1,) * (ndim - 2)))


@operator("BatchNormalization", parameters=(1, 2))
def batch_normalization(
    ns: Arrays, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Any:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) scale + bias per channel; in training mode the batch's own statistics.

    The running statistics are then ``old * momentum + batch * (1 - momentum)``, ONNX's convention.
    """
    if training_mode:
        axes = (0, *range(2, x.ndim))
        batch_mean = ns.mean(x, axes, False)
        batch_variance = _variance(ns, x, axes, False)
        y = batch_normalization(ns, x, scale, bias, batch_mean, batch_variance, epsilon=epsilon)
        running = [
            old * momentum + new * (1 - momentum) for old, new in ((mean, batch_mean), (variance, batch_variance))
        ]
        return y, *running
    factor = scale / ns.sqrt(variance + epsilon)
    return x * per_channel(ns, factor, x.ndim) + per_channel(ns, bias - mean * factor, x.ndim)


@operator("InstanceNormalization", parameters=(1, 2))
def instance_normalization(ns: Arrays, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Array:
    """Normalise every channel of every example by its own mean and variance."""
    y, _, _ = _normalized(ns, x, tuple(range(2, x.ndim)), epsilon)
    return y * per_channel(ns, scale, x.ndim) + per_channel(ns, bias, x.ndim)


@operator("GroupNormalization", parameters=(1, 2))
def group_normalization(
    ns: Arrays, x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Normalise every group of channels of every example; scale and bias per channel."""
    grouped = ns.reshape(x, (x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups))
    y, _, _ = _normalized(ns, grouped, (2,), epsilon)
    return ns.reshape(y, x.shape) * per_channel(ns, scale, x.ndim) + per_channel(ns, bias, x.ndim)


@operator("LayerNormalization", parameters=(1, 2))
def layer_normalization(
    ns: Arrays, x: Array, scale: Array, bias: Array | None = None, *,
    axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Normalise over the axes from `axis` on; returns the mean and 1 / deviation too."""
    y, mean, inverse = _normalized(ns, x, tuple(range(axis % x.ndim, x.ndim)), epsilon)
    y = y * scale
    return (y if bias is None else y + bias), mean, inverse


@operator("LRN")
def local_response_normalization(
    ns: Arrays, x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Array:
    """X / (bias + alpha mean(x^2))^beta, the mean over `size` neighbouring channels, zeros beyond the ends.

    An even `size` reaches one channel further up than down: a pool with its own padding on either side.
    """
    columns = ns.reshape(x * x, (x.shape[0], 1, x.shape[1], math.prod(x.shape[2:])))
    low = (size - 1) // 2
    mean = ops.avg_pool(
        columns, (size, 1), stride=1, padding=((low, size - 1 - low), (0, 0)), count_include_pad=True,
        backend=ns.backend,
    )  # fmt: skip
    return x / (ns.reshape(mean, x.shape) * alpha + bias) ** beta


def _normalized(ns: Arrays, x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    mean = ns.mean(x, axes, True)
    inverse = 1 / ns.sqrt(_variance(ns, x, axes, True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def _variance(ns: Arrays, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    centred = x - ns.mean(x, axes, True)
    return ns.mean(centred * centred, axes, keepdims)
