"""Torch's operators on shapes, and its constructors, in the neutral vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .builder import Builder, Handler, Ref, dtype_of, handles

_MOST = 2**63 - 1
"""How torch writes "to the end"."""


@handles("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def _reshape(b: Builder, result: Any, x: Ref, **_: Any) -> Ref:
    return b.reshape(x, tuple(result.shape))


@handles("permute")
def _permute(b: Builder, result: Any, x: Ref, dims: Sequence[int]) -> Ref:
    return b.transpose(x, [axis % x.ndim for axis in dims])


@handles("transpose", "t", "numpy_T")
def _transpose(b: Builder, result: Any, x: Ref, dim0: int = 0, dim1: int = -1) -> Ref:
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return b.transpose(x, order)


@handles("expand")
def _expand(b: Builder, result: Any, x: Ref, **_: Any) -> Ref:
    shape = tuple(result.shape)
    return x if shape == x.shape else b.node("Expand", [x, b.constant(shape)], shape)


@handles("cat")
def _cat(b: Builder, result: Any, tensors: Sequence[Ref], dim: int) -> Ref:
    return b.node("Concat", [b.cast(x, dtype_of(result)) for x in tensors], result.shape, axis=dim)


@handles("stack")
def _stack(b: Builder, result: Any, tensors: Sequence[Ref], dim: int) -> Ref:
    shape = list(result.shape)
    shape[dim] = 1
    parts = [b.reshape(b.cast(x, dtype_of(result)), shape) for x in tensors]
    return b.node("Concat", parts, result.shape, axis=dim)


@handles("split", "split_with_sizes", "chunk", "tensor_split")
def _split(b: Builder, result: Any, x: Ref, dim: int, **_: Any) -> tuple[Ref, ...]:
    shapes = [tuple(part.shape) for part in result]
    return b.many("Split", [x, b.constant([shape[dim] for shape in shapes])], shapes, axis=dim)


@handles("unbind")
def _unbind(b: Builder, result: Any, x: Ref, dim: int) -> tuple[Ref, ...]:
    return tuple(_picked(b, x, dim, index) for index in range(x.shape[dim]))


@handles("select")
def _select(b: Builder, result: Any, x: Ref, dim: int, index: int) -> Ref:
    return _picked(b, x, dim, index)


def _picked(b: Builder, x: Ref, dim: int, index: int) -> Ref:
    axis = dim % x.ndim
    return b.node("Gather", [x, b.constant(index)], (*x.shape[:axis], *x.shape[axis + 1 :]), axis=axis)


@handles("slice")
def _slice(b: Builder, result: Any, x: Ref, dim: int, start: int | None, end: int | None, step: int) -> Ref:
    bounds = [b.constant([value]) for value in (start or 0, _MOST if end is None else end, dim, step)]
    return b.node("Slice", [x, *bounds], result.shape)


@handles("narrow")
def _narrow(b: Builder, result: Any, x: Ref, dim: int, start: int, length: int) -> Ref:
    return _slice(b, result, x, dim, start, start + length, 1)


@handles("index_select")
def _index_select(b: Builder, result: Any, x: Ref, dim: int, index: Ref) -> Ref:
    return b.node("Gather", [x, index], result.shape, axis=dim)


@handles("_to_copy", "to", "type_as")
def _convert(b: Builder, result: Any, x: Ref, **_: Any) -> Ref:
    return b.cast(x, dtype_of(result))


def _filled(value: float) -> Handler:
    def handler(b: Builder, result: Any, **_: Any) -> Ref:
        return b.constant(np.full(tuple(result.shape), value), dtype_of(result))

    return handler


for _name, _value in {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}.items():
    handles(_name)(_filled(_value))


@handles("full", "full_like", "new_full")
def _full(b: Builder, result: Any, fill_value: Any, **_: Any) -> Ref:
    return b.constant(np.full(tuple(result.shape), fill_value), dtype_of(result))


@handles("scalar_tensor")
def _scalar_tensor(b: Builder, result: Any, s: Any, **_: Any) -> Ref:
    return b.constant(s, dtype_of(result))


@handles("arange")
def _arange(b: Builder, result: Any, end: Any, start: Any = 0, step: Any = 1, **_: Any) -> Ref:
    return b.constant(start + np.arange(result.shape[0]) * step, dtype_of(result))
