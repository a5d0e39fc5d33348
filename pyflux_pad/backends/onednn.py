"""oneDNN's own (low, high) pads, where torch lends them: inference of dense float32 convolutions on the CPU.

torch's convolution passes one pad for both sides. Its transposed convolution passes two, since output_padding belongs
to one side only, and a convolution of stride 1 is a transposed one of the turned kernel: channels exchanged, taps
reversed, ``k - 1`` less the pads for its crops. torch's public functions bound output_padding; the one that compiled
programs call does not. It records nothing, so it serves where nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

from ..geometry import ConvPlan, transposed
from .halo import is_forgotten


@lru_cache(maxsize=1)
def lends_pairs() -> bool:
    """Say whether torch has the operator, it pads as it should, and the processor is of the kind it was measured on."""
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    with ThreadPoolExecutor(1) as thread:  # of its own: no mode, trace or autocast of the caller's is in force there
        return thread.submit(_pads_as_it_should).result()


def _pads_as_it_should() -> bool:
    x = torch.arange(80, dtype=torch.float32, device="cpu").reshape(1, 16, 5)
    weight = torch.arange(768, dtype=torch.float32, device="cpu").reshape(16, 16, 3) % 7
    try:
        found = _transpose(x, weight.flip(2), None, [0], [-2])
    except (AttributeError, RuntimeError):  # a torch that has another operator, or none
        return False
    return torch.equal(found, torch.conv1d(torch.nn.functional.pad(x, (2, 0)), weight))  # small integers: exact


def conv(plan: ConvPlan, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return the convolution of a plan that leaves its pairs to the engine, or None where something could record it."""
    geometry = plan.geometry
    if not (
        torch._C._get_mkldnn_enabled()
        and x.dtype == torch.float32
        and x.is_contiguous()
        and weight.is_contiguous()  # else the result takes the weight's layout
        and not torch.is_autocast_enabled("cpu")
        and is_forgotten(x, weight, bias)
    ):
        return None
    rows, crops, extras = transposed(geometry)
    if not geometry.flip_kernel:
        weight = weight.flip(list(range(2, weight.ndim)))
    if rows == 1:
        return _transpose(x, weight, bias, crops, extras)
    return _transpose(x.unflatten(2, (-1, rows)), weight.unsqueeze(3), bias, crops, extras).flatten(2)


def _transpose(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, crops: Sequence[int], extras: Sequence[int]
) -> torch.Tensor:
    """Return the transposed convolution of stride 1 with a weight (C_out, C_in, *kernel), cropped and extended."""
    ones = [1] * len(crops)
    return torch.ops.mkldnn._convolution_transpose_pointwise(
        x,
        weight.transpose(0, 1),
        None if bias is None else bias.contiguous(),  # oneDNN would read it as if it were
        crops,
        extras,
        ones,
        ones,
        1,
        "none",
        [],
        "",
    )
