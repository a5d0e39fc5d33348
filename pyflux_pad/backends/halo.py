"""Padded copies in memory that is used again: most of what a padded copy costs is touching new memory.

A copy is only made here if nothing can keep it: plain tensors on the CPU in eager mode, no gradient recorded, forward
or backward, no transform of torch.func, no mode that sees every operator. The convolution has read it when it returns.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Any

import torch

from ..geometry import ConvPlan

LIMIT_BYTES = 64 << 20
"""Most memory that a thread keeps; a larger copy is made anew each time."""

LEAST_BYTES = 1 << 16
"""Least a copy must write to be worth looking for its buffer."""
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class _Held(threading.local):
    """The buffers of a thread: every one with the view of its middle, the one used last at the end."""

    def __init__(self) -> None:
        self.buffers: OrderedDict[Any, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()


_HELD = _Held()


def reused(plan: ConvPlan, x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor | None:
    """Return `x` with the plan's zeros around it, or None where something could keep the copy.

    The zeros of a buffer stay what they are; only the input is copied into their middle. `others` are the other
    operands of the convolution, one of which may record a gradient for which the copy would be kept.
    """
    if plan.copy_bytes < LEAST_BYTES or not is_forgotten(x, *others):
        return None
    lows, highs = plan.pads[-2::-2], plan.pads[::-2]
    shape = (*x.shape[:2], *[n + low + high for n, low, high in zip(x.shape[2:], lows, highs, strict=True)])
    is_last = x.ndim in _FORMATS and x.stride(1) == 1 and not x.is_contiguous()
    key = (shape, lows, x.dtype, is_last, torch.is_inference_mode_enabled())
    buffers = _HELD.buffers
    found = buffers.get(key)
    if found is None:
        if math.prod(shape) * x.element_size() > LIMIT_BYTES:
            return None
        memory_format = _FORMATS[x.ndim] if is_last else torch.contiguous_format
        buffer = torch.zeros(shape, dtype=x.dtype).contiguous(memory_format=memory_format)
        middle = buffer
        for axis, low in enumerate(lows):
            middle = middle.narrow(axis + 2, low, x.shape[axis + 2])
        found = buffers[key] = buffer, middle
        while sum(held.nbytes for held, _ in buffers.values()) > LIMIT_BYTES:
            buffers.popitem(last=False)
    else:
        buffers.move_to_end(key)
    buffer, middle = found
    middle.copy_(x)
    return buffer


_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


def is_forgotten(*tensors: torch.Tensor | None) -> bool:
    """Say whether nothing outlives a call on these operands that could keep what it computed on the way."""
    x = tensors[0]
    return (
        x is not None
        and x.device.type == "cpu"
        and all([type(tensor) in _PLAIN for tensor in tensors])
        and not (torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in tensors]))
        and not torch.compiler.is_compiling()
        and not torch._C._get_tracing_state()
        and torch._C._functorch.peek_interpreter_stack() is None  # pyright: ignore[reportAttributeAccessIssue]
        and torch.autograd.forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
    )
