"""CuPy's own convolutions: the reference engine on CuPy's views and cuBLAS, for every dtype and any pads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from ...geometry import ConvGeometry, plan_conv
from ..numpy import NumpyEngine
from .device import Array


class Arrays(NumpyEngine):
    """The provider without cuDNN; it gathers windows block by block and multiplies them."""

    name = "arrays"
    pairs = True
    # A block that fills a GPU; the reference engine's fits a cache.
    block_bytes = 1 << 28

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp

    def takes(self, dtype: Any) -> bool:
        """Say whether a dtype is computed: every one that the engine accepts is."""
        return True

    def plan(
        self, operator: str, geometry: ConvGeometry, first: Array, second: Array, out: Array | None, allow_tf32: bool
    ) -> Callable[[], Array]:
        """Return the call that computes an operator."""
        if operator == "conv":
            return partial(self.conv, plan_conv(geometry, native=True), first, second, out=out)
        return partial(self.conv_input if operator == "conv_input" else self.conv_weight, geometry, first, second)
