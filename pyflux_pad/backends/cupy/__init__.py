"""CuPy arrays: cuDNN's convolutions with a pair of pads per axis where it has a plan, pre-padded where it has not.

CuPy itself has had no cuDNN since version 14. The convolutions come from a chain of providers (`providers`), padding
modes and pools from kernels of this package (`windows`). Everything runs on the current stream of the arrays' device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import cast

from ...geometry import ConvGeometry, ConvPlan
from .. import BackendUnavailable, get
from ..numpy import NumpyEngine
from ..numpy.blocks import narrow
from . import bridge, frontend
from .arrays import Arrays
from .device import Array, CupyDevice, Device, on_device
from .layouts import FIRST, empty, layout_of
from .prepad import PrePadding, pre_padding, prepad, unpad
from .providers import NAMES, VARIABLE, Chain, Provider, result_shape
from .windows import WindowKernels

__all__ = ["CupyEngine", "PrePadding", "configure", "load", "pre_padding", "prepad", "unpad"]


class CupyEngine(WindowKernels, NumpyEngine):
    """Convolutions, pads and pools of CuPy arrays, written against a `Device`.

    Parameters
    ----------
    device
        Where the arrays are.
    provider
        Name of the only provider to use, by default the first that can.
    allow_tf32
        Whether float32 may be rounded to TF32 before it is multiplied.
    makers
        The providers by name, in order, each made at its first use.
    """

    name = "cupy"
    family = "cupy"

    def __init__(
        self,
        device: Device,
        provider: str | None = None,
        allow_tf32: bool = False,
        makers: dict[str, Callable[[], Provider]] | None = None,
    ) -> None:
        super().__init__(device)
        self.xp = device.xp
        self.chain = Chain(device, makers or _makers(device))
        self.configure(provider, allow_tf32)

    def configure(self, provider: str | None, allow_tf32: bool) -> None:
        """Choose the provider, None for the first that can, and whether float32 may become TF32."""
        if provider is not None and provider not in self.chain.makers:
            raise ValueError(f"provider={provider!r} is none of {', '.join(self.chain.makers)}")
        if type(allow_tf32) is not bool:
            raise TypeError(f"allow_tf32 must be True or False, got {allow_tf32!r}")
        self.provider, self.allow_tf32 = provider, allow_tf32

    def check(self, operation: str, arrays: dict[str, Array]) -> None:
        """Raise TypeError for unknown dtypes, mixtures, and arrays on different devices."""
        super().check(operation, arrays)
        (first, array), *others = arrays.items()
        number = self.device.of(array)
        for name, other in others:
            if self.device.of(other) != number:
                raise TypeError(
                    f"{operation}: {first} is on device {number} but {name} is on device {self.device.of(other)}; copy "
                    f"one of them, with cupy.cuda.Device({number}): {name} = cupy.array({name})"
                )

    @on_device
    def conv(
        self,
        plan: ConvPlan,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        contiguous: bool = True,
        out: Array | None = None,
    ) -> Array:
        """Return the convolution; a forced strategy cuts, pads and drops outputs as it says."""
        geometry = plan.geometry
        if plan.pads or plan.keeps:
            x = narrow(x, plan.cuts)
            if plan.pads:
                x = self.xp.pad(x, ((0, 0), (0, 0), *(axis.pad for axis in plan.axes)))
            geometry = replace(
                geometry,
                input_size=tuple(x.shape[2:]),
                output_size=tuple([axis.computed for axis in plan.axes]),
                padding=tuple([axis.native for axis in plan.axes]),
            )
        y = self._convolve("conv", geometry, x, weight, None if plan.keeps else out)
        y = narrow(y, plan.keeps)
        if out is not None and y is not out:
            out[...] = y
            y = out
        elif plan.keeps and contiguous:
            y = _dense(self.xp, y)
        return _add(y, bias)

    @on_device
    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input; where the input was pre-padded, a view of the padded gradient."""
        return _add(self._convolve("conv_input", geometry, grad_output, weight), bias)

    @on_device
    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight."""
        return self.xp.ascontiguousarray(self._convolve("conv_weight", geometry, x, grad_output))

    def bias_gradient(self, grad_output: Array) -> Array:
        """Sum over the batch and the spatial axes, low precision in float32."""
        with self.device.on(self.device.of(grad_output)):
            return super().bias_gradient(grad_output)

    def _convolve(
        self, operator: str, geometry: ConvGeometry, first: Array, second: Array, out: Array | None = None
    ) -> Array:
        """Return an operator's result; providers see no flipped kernel, no empty array and no idle third axis."""
        if _is_flat(geometry) and out is None:
            # What torch's operators lift: cuDNN is better at two axes than at three.
            return self._convolve(operator, _flat(geometry), first[:, :, 0], second[:, :, 0])[:, :, None]
        if 0 in (geometry.batch, geometry.in_channels, geometry.out_channels):
            return self.xp.zeros(result_shape(operator, geometry), first.dtype)
        flips = geometry.flip_kernel
        if flips:
            geometry = replace(geometry, flip_kernel=False)
        if flips and operator != "conv_weight":
            second = _flipped(second)
        result = self.chain.run(operator, geometry, first, second, out, self.allow_tf32, self.provider)
        return _flipped(result) if flips and operator == "conv_weight" else result


def _is_flat(geometry: ConvGeometry) -> bool:
    """Say whether the first of three axes has one cell everywhere."""
    sizes = geometry.input_size[0], geometry.kernel_size[0], geometry.output_size[0]
    return geometry.ndim == 3 and sizes == (1, 1, 1) and geometry.padding[0] == (0, 0)


def _flat(geometry: ConvGeometry) -> ConvGeometry:
    """Return the convolution without its first axis."""
    names = "input_size", "kernel_size", "output_size", "stride", "dilation", "padding"
    return replace(geometry, **{name: getattr(geometry, name)[1:] for name in names})


def _flipped(weight: Array) -> Array:
    return weight[(..., *(slice(None, None, -1),) * (weight.ndim - 2))]


def _dense(xp: ModuleType, y: Array) -> Array:
    """Return a slice without gaps, in its own layout."""
    copy = empty(xp, y.shape, y.dtype, layout_of(y) or FIRST)
    copy[...] = y
    return copy


def _add(y: Array, bias: Array | None) -> Array:
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


def _makers(device: Device) -> dict[str, Callable[[], Provider]]:
    """Return the providers of a device, in order; the two of cuDNN's frontend share their plans."""
    graphs = cache(lambda: frontend.Graphs(device, frontend.load()))
    makers: tuple[Callable[[], Provider], ...] = (
        lambda: frontend.Frontend("frontend", graphs(), pairs=True),
        lambda: frontend.Frontend("prepad", graphs(), pairs=False),
        lambda: bridge.Bridge(device, bridge.load()),
        lambda: Arrays(device.xp),
    )
    return dict(zip(NAMES, makers, strict=True))


def load(cupy: ModuleType) -> CupyEngine:
    """Return the engine of CuPy arrays.

    Raises
    ------
    BackendUnavailable
        If CuPy finds no driver or no device, with the reason and the remedy.
    ValueError
        If the environment names a provider that there is not.
    """
    if not cupy.cuda.is_available():
        raise BackendUnavailable(f"backend 'cupy' cannot run: CuPy {cupy.__version__} {_no_device(cupy)}")
    provider = os.environ.get(VARIABLE) or None
    if provider is not None and provider not in NAMES:
        raise ValueError(f"the environment variable {VARIABLE}={provider!r} is none of {', '.join(NAMES)}")
    return CupyEngine(CupyDevice(cupy), provider)


def _no_device(cupy: ModuleType) -> str:
    """Say why CuPy has no device, and what to do."""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:
        return f"finds no CUDA driver that fits it ({error}); install one, or a CuPy built for the driver that is there"
    return f"finds {count} devices; let this process see one, e.g. with CUDA_VISIBLE_DEVICES"


def configure(*, provider: str | None = None, allow_tf32: bool = False) -> None:
    """Choose what computes the convolutions of CuPy arrays, and of tensors with ``backend="cupy"``, in this process.

    Parameters
    ----------
    provider
        "frontend" (cuDNN's graphs, pairs of pads), "prepad" (the same, one pad per axis, after pre-padding), "torch"
        (its cuDNN, after pre-padding), "arrays" (CuPy alone); None for the first of them that can. The environment
        variable PYFLUX_PAD_CUDNN_PROVIDER says the same.
    allow_tf32
        Whether float32 may be rounded to TF32 before it is multiplied, which is several times as fast.

    Raises
    ------
    BackendUnavailable
        If CuPy cannot run here.
    ValueError
        For an unknown provider.
    """
    cast(CupyEngine, get("cupy")).configure(provider, allow_tf32)
