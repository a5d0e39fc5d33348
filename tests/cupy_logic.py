"""The CuPy engine on NumPy arrays, with providers whose cuDNN is the reference engine: its logic, not a GPU.

Their names are backends while a test of a module that has the fixture `registered` runs.
"""

import functools
from typing import Any

import pytest
from cupy_host import HostDevice
from engines import Engine

from pyflux_pad import backends
from pyflux_pad.backends.cupy import CupyEngine
from pyflux_pad.backends.cupy.bridge import Bridge
from pyflux_pad.backends.numpy import NumpyEngine
from pyflux_pad.geometry import plan_conv


class Symmetric:
    """A cuDNN of one pad per axis: it raises if it is ever given a pair, a negative pad or a flipped kernel."""

    name = "symmetric"
    pairs = False

    def __init__(self, pairs=False):
        self.pairs, self.reference, self.calls = pairs, NumpyEngine(), []

    def takes(self, dtype):
        return True

    def plan(self, operator, geometry, first, second, out, allow_tf32):
        for low, high in geometry.padding:
            assert self.pairs or low == high, f"a pair of pads reached a symmetric engine: {geometry.padding}"
            assert min(low, high) >= 0, f"a negative pad reached an engine: {geometry.padding}"
        assert not geometry.flip_kernel
        assert min(geometry.input_size) >= 1, f"an empty input reached an engine: {geometry.input_size}"
        shapes = {"conv": (geometry.input_shape, geometry.weight_shape),
                  "conv_input": (geometry.output_shape, geometry.weight_shape),
                  "conv_weight": (geometry.input_shape, geometry.output_shape)}
        assert (first.shape, second.shape) == shapes[operator]
        for n, k, s, d, (low, high), out_size in zip(
                geometry.input_size, geometry.kernel_size, geometry.stride, geometry.dilation, geometry.padding,
                geometry.output_size, strict=True):
            assert out_size == (n + low + high - d * (k - 1) - 1) // s + 1, f"cuDNN would refuse {geometry}"
        self.calls.append((operator, geometry))
        if operator == "conv":
            return functools.partial(self.reference.conv, plan_conv(geometry, native=True), first, second)
        function = self.reference.conv_input if operator == "conv_input" else self.reference.conv_weight
        return functools.partial(function, geometry, first, second)


class LogicEngine(CupyEngine):
    """The engine on NumPy arrays."""

    family = "numpy"


REGISTRATIONS = {}
MADE: dict[str, Any] = {}
"""The engines by name."""


def engine(name, makers, provider=None, device=None):
    """Make an engine on NumPy arrays with a name; return the way to call it that tests share."""
    made = LogicEngine(device or HostDevice(), provider, makers=makers)
    made.name = name
    MADE[name] = made
    REGISTRATIONS[name] = backends.Registration(lambda: made, "numpy", "", True, ("numpy",), "")
    return Engine(name, "numpy", tensors=False, backend=name)


@pytest.fixture(autouse=True, scope="module")
def registered():
    """Let `backend=` find the engines made here, in this module alone."""
    backends._REGISTRY.update(REGISTRATIONS)
    yield
    for name in REGISTRATIONS:
        del backends._REGISTRY[name]


class TorchCpu(Bridge):
    """torch's kernels of the CPU in the place of its cuDNN."""

    def __init__(self, device):
        import contextlib

        import torch

        super().__init__(device, torch, lambda torch, device, number: contextlib.nullcontext())
