"""The convolutions that are measured: where asymmetric padding comes from in practice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..geometry import ConvGeometry, arguments, conv_geometry
from ..padding import Padding


class Case(NamedTuple):
    """A convolution in float32; x is (N, C_in, *spatial), weight (C_out, C_in / groups, *kernel)."""

    name: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.x) - 2

    @property
    def geometry(self) -> ConvGeometry:
        """Its integers."""
        given = arguments(self.name, self.ndim, self.stride, self.padding, self.dilation, self.groups, False)
        return conv_geometry(self.name, self.x, self.weight, given)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, C_out, *out)."""
        return self.geometry.output_shape

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the result."""
        return int(np.prod(self.output_shape, dtype=object) * np.prod(self.weight[1:], dtype=object))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return x, weight and a gradient of the output, normal random numbers."""
        random = np.random.default_rng(0)
        x, weight, gradient = (
            random.standard_normal(shape, np.float32) for shape in (self.x, self.weight, self.output_shape)
        )
        return x, weight, gradient


def _same(name: str, x: tuple[int, ...], weight: tuple[int, ...], stride: int, groups: int = 1) -> Case:
    """Return a case with TensorFlow's SAME padding."""
    padding = Padding.same("tf", x[2:], weight[2:], stride, 1)
    return Case(name, x, weight, padding.pairs, stride, 1, groups)


CASES = {
    case.name: case
    for case in (
        Case("causal k3 d8", (16, 64, 4096), (64, 64, 3), ((16, 0),), dilation=8),
        Case("causal k3", (8, 128, 2048), (128, 128, 3), ((2, 0),)),
        Case("even k2", (8, 64, 56, 56), (64, 64, 2, 2), ((0, 1), (0, 1))),
        Case("even k4", (8, 64, 56, 56), (64, 64, 4, 4), ((1, 2), (1, 2))),
        _same("SAME k3 s2, 3 channels", (8, 3, 224, 224), (32, 3, 3, 3), 2),
        _same("SAME k7 s2, 3 channels", (8, 3, 224, 224), (64, 3, 7, 7), 2),
        _same("SAME k3 s2", (8, 64, 112, 112), (64, 64, 3, 3), 2),
        _same("depthwise k3 s2", (8, 64, 112, 112), (64, 1, 3, 3), 2, 64),
        _same("depthwise k5 s2", (8, 144, 56, 56), (144, 1, 5, 5), 2, 144),
        Case("Flux k10", (20, 7, 100, 100), (3, 7, 10, 10), ((9, 0), (9, 0))),
        _same("3-D k3 s2", (2, 16, 16, 56, 56), (16, 16, 3, 3, 3), 2),
        _same("latency", (1, 16, 8, 8), (16, 16, 3, 3), 2),
    )
}
LATENCY = "latency"
"""The case whose time is the call itself: it is compared by microseconds, not by ratios."""
PASSES = ("forward", "input", "weight", "double")
"""The convolution, its gradient by the input and by the weight, and the gradient of both gradients."""
