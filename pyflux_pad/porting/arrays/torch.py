"""The operators' array library on torch: differentiable, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...backends.torch import to_numpy, to_torch
from .numpy import NumpyArrays

Array = Any


class TorchArrays:
    """Torch tensors; results keep the dtype and device of what went in."""

    def __init__(self, backend: str | None) -> None:
        self.backend = backend
        self.host = NumpyArrays(None)

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    expm1 = staticmethod(torch.expm1)
    log1p = staticmethod(torch.log1p)
    sqrt = staticmethod(torch.sqrt)
    abs = staticmethod(torch.abs)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    erf = staticmethod(torch.erf)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    matmul = staticmethod(torch.matmul)

    def asarray(self, array: Array, like: Array) -> Array:
        """Return a tensor on the array's memory where torch can, else on a copy."""
        return as_tensor(array).to(like.device)

    def dtype(self, x: Array) -> str:
        """Return NumPy's name of the dtype."""
        return dtype_name(x)

    def astype(self, x: Array, dtype: str) -> Array:
        """Convert."""
        return x.to(getattr(torch, dtype))

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """Choose."""
        return torch.where(condition, x, y)

    def divide(self, x: Array, y: Array) -> Array:
        """Divide; integers towards zero."""
        return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")

    def power(self, x: Array, y: Array) -> Array:
        """Return the power in the dtype of x."""
        return torch.pow(x, y).to(x.dtype)

    def sum(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Sum in the dtype of x."""
        return x.sum(tuple(axes), keepdim=keepdims, dtype=x.dtype) if axes else x

    def mean(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Average; integers towards zero."""
        if not axes:
            return x
        y = x if x.is_floating_point() else x.double()
        return y.mean(tuple(axes), keepdim=keepdims).to(x.dtype)

    def max(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Return the maximum."""
        return _extreme(torch.amax, 0, x, axes, keepdims)

    def min(self, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
        """Return the minimum."""
        return _extreme(torch.amin, 1, x, axes, keepdims)

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        """Reshape."""
        return x.reshape(tuple(shape))

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """Permute."""
        return x.permute(tuple(axes))

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        """Expand."""
        return x.expand(tuple(shape))

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along an axis."""
        return torch.cat(list(arrays), axis)

    def stack(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along a new axis."""
        return torch.stack(list(arrays), axis)

    def take(self, x: Array, index: Array, axis: int) -> Array:
        """Select along an axis."""
        if not isinstance(index, torch.Tensor):
            index = self.asarray(np.asarray(index), x)
        flat = index.reshape(-1).long()
        flat = torch.where(flat < 0, flat + x.shape[axis], flat)
        axis %= x.ndim
        return x.index_select(axis, flat).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        """Return zeros."""
        return like.new_zeros(tuple(shape))


def dtype_name(x: torch.Tensor) -> str:
    """Return NumPy's name of a tensor's dtype."""
    return str(x.dtype).removeprefix("torch.")


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor on the array's memory where torch can, else on a copy."""
    return to_torch(array) if array.ndim else to_torch(array.reshape(1))[0]


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a NumPy array on the tensor's memory."""
    dtype: Any = None
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes  # comes with onnx, without which no model has this dtype

        dtype = ml_dtypes.bfloat16
    return to_numpy(tensor.detach().cpu(), dtype)


def _extreme(reduce: Callable[..., Array], side: int, x: Array, axes: Sequence[int], keepdims: bool) -> Array:
    """Reduce; over an axis without cells to the end of the dtype's range that loses to every value."""
    if not axes:
        return x
    if all(x.shape[axis] for axis in axes):
        return reduce(x, tuple(axes), keepdim=keepdims)
    if x.dtype == torch.bool:
        ends: tuple[Any, Any] = (False, True)
    elif x.is_floating_point():
        ends = (-math.inf, math.inf)
    else:
        ends = (torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
    shape = list(x.shape)
    for axis in axes:
        shape[axis] = 1
    full = x.new_full(shape, ends[side])
    return full if keepdims else full.squeeze(tuple(axes))
