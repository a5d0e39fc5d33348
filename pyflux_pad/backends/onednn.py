"""oneDNN's own (low, high) pads, where torch lends them: inference of dense float32 convolutions on the CPU.

torch's convolution passes one pad for both sides. Its transposed convolution passes two, since output_padding belongs
to one side only, and a convolution of stride 1 is a transposed one of the turned kernel: channels exchanged, taps
reversed, ``k - 1`` less the pads for its crops. torch's public functions bound output_padding; the one that compiled
programs call does not. It records nothing, so it serves where nothing is recorded.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

from ..geometry import ConvPlan
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
        found = _transposed(x, weight, None, ((2, 0),), False)
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
    (dilation, *others), padding = geometry.dilation, geometry.padding
    if dilation == 1:
        return _transposed(x, weight, bias, padding, geometry.flip_kernel)
    # Taps `dilation` apart are neighbours along the first axis of x seen as (n / dilation, dilation).
    assert not others
    low, high = padding[0]
    pairs = (low // dilation, high // dilation), (0, 0)
    x = x.unflatten(2, (-1, dilation))
    return _transposed(x, weight.unsqueeze(3), bias, pairs, geometry.flip_kernel).flatten(2)


def _transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: tuple[tuple[int, int], ...],
    flip_kernel: bool,
) -> torch.Tensor:
    turned = (weight if flip_kernel else weight.flip(list(range(2, weight.ndim)))).transpose(0, 1)
    ones = [1] * len(padding)
    return torch.ops.mkldnn._convolution_transpose_pointwise(
        x,
        turned,
        None if bias is None else bias.contiguous(),  # oneDNN would read it as if it were
        [k - 1 - low for k, (low, _) in zip(weight.shape[2:], padding, strict=True)],
        [high - low for low, high in padding],
        ones,
        ones,
        1,
        "none",
        [],
        "",
    )
