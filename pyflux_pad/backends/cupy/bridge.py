"""torch's cuDNN on the memory of CuPy arrays: handed over by DLPack, on CuPy's stream, one pad per axis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from ...geometry import ConvGeometry
from .device import Array, Device
from .layouts import FIRST, layout_of, settled
from .providers import Missing

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_FLAGS = threading.Lock()
"""torch's flags belong to the whole process."""


def load() -> ModuleType:
    """Import torch with its cuDNN.

    Raises
    ------
    Missing
        If there is no torch, or it has no GPU or no cuDNN.
    """
    try:
        import torch
    except ImportError as error:
        raise Missing(f"torch cannot be imported ({error}); pip install 'pyflux-pad[torch]'") from error
    if not torch.cuda.is_available():
        raise Missing(f"torch {torch.__version__} finds no GPU; install a torch that was built for CUDA")
    if not torch.backends.cudnn.is_available():
        raise Missing(f"torch {torch.__version__} has no cuDNN; install a torch that was built with it")
    return torch


@contextmanager
def on_cupys_stream(torch: Any, device: Device, number: int) -> Iterator[None]:
    """Let torch work on CuPy's current stream of a device: nothing then waits, and memory is given back in order."""
    address, cuda = device.stream().ptr, torch.cuda
    stream = cuda.ExternalStream(address, number) if address else cuda.default_stream(number)
    with cuda.device(number), cuda.stream(stream):
        yield


class _TorchsStream:
    """A torch stream in the protocol that CuPy reads; torch's own class has it in recent versions only."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol and the address."""
        return 0, self.address


@contextmanager
def on_torchs_stream(device: Device, torch: Any, place: Any) -> Iterator[None]:
    """Let CuPy work on torch's current stream of a torch device, as the other way round."""
    number = torch.cuda.current_device() if place.index is None else place.index
    address, cuda = torch.cuda.current_stream(number).cuda_stream, device.xp.cuda
    with device.on(number):
        if address == 0:
            stream = cuda.Stream.null
        elif hasattr(cuda.Stream, "from_external"):
            stream = cuda.Stream.from_external(_TorchsStream(address))
        else:  # CuPy 13
            stream = cuda.ExternalStream(address, number)
        with stream:
            yield


class Bridge:
    """The provider on top of torch; `place` lets it work where an array is."""

    name = "torch"
    pairs = False

    def __init__(self, device: Device, torch: Any, place: Callable[..., Any] = on_cupys_stream) -> None:
        self.device, self.torch, self.place = device, torch, place

    def takes(self, dtype: Any) -> bool:
        """Say whether cuDNN convolves a dtype."""
        return dtype.name in _DTYPES

    def plan(
        self, operator: str, geometry: ConvGeometry, first: Array, second: Array, out: Array | None, allow_tf32: bool
    ) -> Callable[[], Array]:
        """Return the call that computes an operator; torch plans it itself, and writes into memory of its own."""
        return partial(self._run, operator, geometry, first, second, allow_tf32)

    def _run(self, operator: str, geometry: ConvGeometry, first: Array, second: Array, allow_tf32: bool) -> Array:
        torch, xp, aten = self.torch, self.device.xp, self.torch.ops.aten
        layout = layout_of(first) or FIRST
        first, second = settled(xp, first, layout), settled(xp, second, layout)
        pads = [low for low, _ in geometry.padding]
        settings = geometry.stride, pads, geometry.dilation, False, [0] * geometry.ndim, geometry.groups
        with self.place(torch, self.device, self.device.of(first)), torch.no_grad(), self._ieee(first, allow_tf32):
            first, second = torch.from_dlpack(first), torch.from_dlpack(second)
            if operator == "conv":
                result = aten.convolution(first, second, None, *settings)
            elif operator == "conv_input":
                like = first.new_empty(1).expand(geometry.input_shape)  # only its shape is read
                result = aten.convolution_backward(first, like, second, None, *settings, (True, False, False))[0]
            else:
                like = first.new_empty(1).expand(geometry.weight_shape)
                result = aten.convolution_backward(second, first, like, None, *settings, (False, True, False))[1]
            return xp.from_dlpack(result)

    @contextmanager
    def _ieee(self, array: Array, allow_tf32: bool) -> Iterator[None]:
        """Let torch round float32 to TF32 only where that is allowed, whatever its own flag says."""
        if array.dtype.name != "float32":
            yield
            return
        cudnn = self.torch.backends.cudnn
        with (
            _FLAGS,
            cudnn.flags(
                enabled=True, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=allow_tf32
            ),
        ):
            yield
