"""Resize: every axis on its own, as a few taps per output whose places and weights are plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Array, Arrays
from .table import operator

# Output place j, scale, input size, output size before it is rounded down, region -> place on the input axis.
Rule = Callable[[np.ndarray, float, int, float, tuple[float, float]], np.ndarray]


def _align_corners(j: np.ndarray, scale: float, n: int, out: float, region: tuple[float, float]) -> np.ndarray:
    return j * (n - 1) / (out - 1) if out > 1 else j * 0


def _crop_and_resize(j: np.ndarray, scale: float, n: int, out: float, region: tuple[float, float]) -> np.ndarray:
    start, end = region
    if out > 1:
        return start * (n - 1) + j * (end - start) * (n - 1) / (out - 1)
    return 0.5 * (start + end) * (n - 1) + j * 0


_PLACES: dict[str, Rule] = {
    "half_pixel": lambda j, scale, n, out, region: (j + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda j, scale, n, out, region: n / 2 * (1 - int(out) / out) + (j + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda j, scale, n, out, region: (j + 0.5) / scale - 0.5 if out > 1 else j * 0,
    "align_corners": _align_corners,
    "asymmetric": lambda j, scale, n, out, region: j / scale,
    "tf_crop_and_resize": _crop_and_resize,
}
_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_KNOWN = {
    "coordinate_transformation_mode": tuple(_PLACES),
    "nearest_mode": tuple(_NEAREST),
    "mode": ("nearest", "linear", "cubic"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
}


def _check(attributes: Mapping[str, Any]) -> str:
    for name, known in _KNOWN.items():
        if attributes[name] not in known:
            return f"Resize with {name}={attributes[name]!r} is not carried; there are {', '.join(known)}"
    return ""


@operator("Resize", host=(1, 2, 3), check=_check)
def resize(
    ns: Arrays, x: Array, roi: Any = None, scales: Any = None, sizes: Any = None, *, mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0, antialias: int = 0,
    keep_aspect_ratio_policy: str = "stretch", axes: tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Resample by `scales` or to `sizes`, for `axes` or all of them."""
    for axis, factor, places in places_of(
        x.shape, roi, scales, sizes, rule=coordinate_transformation_mode, policy=keep_aspect_ratio_policy, axes=axes
    ):
        n = x.shape[axis]
        if mode == "nearest":
            x = ns.take(x, nearest_cells(places, n, nearest_mode), axis)
        else:
            taps, weights = _taps(places, mode, factor if antialias else 1.0, cubic_coeff_a)
            x = _weighted(ns, x, axis, taps, weights, bool(exclude_outside))
        outside = (places < 0) | (places > n - 1)
        if coordinate_transformation_mode == "tf_crop_and_resize" and outside.any():
            mask = outside.reshape(-1, *(1,) * (x.ndim - 1 - axis))
            x = ns.where(ns.asarray(mask, x), extrapolation_value, x)
    return x


def places_of(
    shape: Sequence[int], roi: Any, scales: Any, sizes: Any, *, rule: str, policy: str, axes: tuple[int, ...] | None
) -> Iterator[tuple[int, float, np.ndarray]]:
    """Yield every axis that changes, its scale, and where each output cell lies on the input, counted from 0."""
    chosen = range(len(shape)) if axes is None else [axis % len(shape) for axis in axes]
    factors, lengths = _lengths(shape, chosen, scales, sizes, policy)
    regions = [(0.0, 1.0)] * len(factors)
    if rule == "tf_crop_and_resize":
        regions = list(zip(map(float, roi[: len(factors)]), map(float, roi[len(factors) :]), strict=True))
    for axis, factor, length, region in zip(chosen, factors, lengths, regions, strict=True):
        n = shape[axis]
        if factor != 1 or length != n or region != (0.0, 1.0):
            exact = factor * n if sizes is None else float(length)
            yield axis, factor, _PLACES[rule](np.arange(length, dtype=float), factor, n, exact, region)


def nearest_cells(places: np.ndarray, n: int, mode: str) -> np.ndarray:
    """Return the input cells that are nearest to some places."""
    return np.clip(_NEAREST[mode](places), 0, n - 1).astype(np.int64)


def _lengths(shape: Any, axes: Any, scales: Any, sizes: Any, policy: str) -> tuple[list[float], list[int]]:
    """Return the scale and the output size of every chosen axis."""
    if scales is not None and len(scales):
        factors = [float(scale) for scale in scales]
        return factors, [math.floor(shape[axis] * factor) for axis, factor in zip(axes, factors, strict=True)]
    if sizes is None:
        raise ValueError("Resize needs scales or sizes")
    factors = [int(size) / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return factors, [int(size) for size in sizes]
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(factors), [math.floor(shape[axis] * factor + 0.5) for axis in axes]


def _taps(places: np.ndarray, mode: str, scale: float, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the input cells of every output and their weights, both (out, taps); a scale below 1 widens them."""
    shrink = min(scale, 1.0)
    reach = (1 if mode == "linear" else 2) / shrink
    first = np.floor(places).astype(np.int64)
    offsets = np.arange(math.floor(-reach) + 1, math.ceil(reach) + 1)
    taps = first[:, None] + offsets
    distance = np.abs(taps - places[:, None]) * shrink
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, a)
    return taps, weights / weights.sum(1, keepdims=True) if shrink < 1 else weights


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    """Return Keys' cubic kernel."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _weighted(ns: Arrays, x: Array, axis: int, taps: np.ndarray, weights: np.ndarray, excludes: bool) -> Array:
    """Sum the taps; those outside show the border cell, or are left out and the rest weigh the more."""
    n = x.shape[axis]
    if excludes:
        weights = np.where((taps < 0) | (taps >= n), 0.0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    cells = np.clip(taps, 0, n - 1)
    shape = (-1, *(1,) * (x.ndim - 1 - axis))
    total = None
    for cell, weight in zip(cells.T, weights.T, strict=True):
        if not weight.any():
            continue
        factor = ns.asarray(weight.reshape(shape).astype(ns.dtype(x)), x)
        part = ns.take(x, cell, axis) * factor
        total = part if total is None else total + part
    return total
