"""torch's own kernels: every call is composed of torch's differentiable operators, as the plan says.

The exception is inference of what oneDNN pads itself, see `onednn`; what something could record is composed too.
Autograd of any order, forward mode, vmap, compile, export and autocast therefore work as they do for torch itself, on
any device. NumPy arrays run here through an adapter, without a copy where torch can alias them.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ..geometry import (
    AdaptiveGeometry,
    ConvGeometry,
    ConvPlan,
    PadGeometry,
    PoolGeometry,
    cached_padded_plan,
    plan_conv,
    plan_padded,
)
from ..padding import source_index
from . import Engine, onednn
from .halo import reused
from .numpy import NumpyEngine

Array = Any
Windows = PoolGeometry | AdaptiveGeometry


def _is_static(size: Any) -> bool:
    """Say under compile, where symbolic sizes look like ints, whether one is known to be constant."""
    try:  # imported here, because it brings sympy with it, which takes longer than the rest of this module
        from torch.fx.experimental.symbolic_shapes import has_static_value
    except ImportError:  # older torch cannot tell
        return False
    return has_static_value(size)


_without_pairs = lru_cache(maxsize=1024)(
    lambda geometry, itemsize, training, contiguous: plan_conv(
        geometry, native=False, itemsize=itemsize, training=training, contiguous=contiguous
    )
)
"""The next best plan, for a call whose pairs oneDNN does not take after all, because something could record it."""
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_ADAPTIVE_AVG = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
_ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class TorchEngine:
    """Convolutions of torch tensors, composed of torch's operators."""

    name = "torch"
    family = "torch"
    native_padding = False
    takes_out = False

    def check(self, operation: str, arrays: dict[str, Array]) -> None:
        """Raise TypeError for mixed dtypes (autocast settles them itself) and mixed devices."""
        (first, array), *others = arrays.items()
        if array.layout != torch.strided:
            raise TypeError(f"{operation}: {first} has the layout {array.layout}; make it dense, {first}.to_dense()")
        for name, other in others:
            if other.device != array.device:
                raise TypeError(
                    f"{operation}: {first} is on {array.device} but {name} is on {other.device}; "
                    f"move one of them, {name}.to({first}.device)"
                )
            if other.dtype != array.dtype and not autocasts(array.device.type):
                raise TypeError(
                    f"{operation}: {first} is {array.dtype} but {name} is {other.dtype}; nothing is converted "
                    f"silently outside autocast, so convert one of them: {name}.to({first}.dtype)"
                )

    def symbolic(self, *arrays: Array) -> bool:
        """Say whether a size is symbolic, or cannot be told from a symbolic one."""
        if torch.compiler.is_compiling():
            return not all([_is_static(size) for array in arrays for size in array.shape])
        try:
            hash(tuple([array.shape for array in arrays]))  # a symbolic size has no hash: quicker than asking each
        except TypeError:
            return True
        return False

    def traced(self) -> bool:
        """Say whether torch.compile or torch.export is tracing."""
        return torch.compiler.is_compiling()

    def itemsize(self, array: Array) -> int:
        """Bytes per element."""
        return array.element_size()

    def takes_dense_pairs(self, dtype: str, device: str) -> bool:
        """Say whether oneDNN lends its own."""
        return dtype == "float32" and device == "cpu" and onednn.lends_pairs()

    def records(self, *arrays: Array) -> bool:
        """Say whether autograd records a gradient by one of the tensors."""
        return torch.is_grad_enabled() and any(array.requires_grad for array in arrays)

    def conv(
        self,
        plan: ConvPlan,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        contiguous: bool = True,
        out: Array | None = None,
    ) -> Array:
        """Return the convolution: oneDNN's own, or views, zeros and dropped outputs around torch's symmetric one."""
        geometry = plan.geometry
        if plan.is_empty:
            return _zeros(geometry.output_shape, x, weight, bias)
        if plan.axes[0].strategy == "native":
            y = onednn.conv(plan, x, weight, bias)
            if y is not None:
                return y
            plan = _without_pairs(geometry, x.element_size(), self.records(x, weight), contiguous)
        if geometry.flip_kernel:
            weight = _flip(weight)
        x = cut(plan, x)
        if plan.pads:
            again = reused(plan, x, weight, bias)
            x = F.pad(x, plan.pads) if again is None else again
        y = _CONV[len(geometry.stride)](
            x, weight, bias, geometry.stride, plan.native_low, geometry.dilation, geometry.groups
        )
        return keep(plan, y, contiguous) if plan.keeps else y

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input: torch's transposed convolution, cropped or extended on each side."""
        if _nothing_to_sum(geometry):
            return _zeros(geometry.input_shape, grad_output, weight, bias)
        if geometry.flip_kernel:
            weight = _flip(weight)
        symbolic, recorded = self.symbolic(grad_output, weight), self.records(grad_output, weight)
        axes = [
            _symbolic_crop(geometry, axis) if symbolic else _crop(geometry, axis, extends=not recorded)
            for axis in range(geometry.ndim)
        ]
        plain = all([crop.offset is None and crop.extend == (0, 0) for crop in axes])
        y = _CONV_TRANSPOSE[geometry.ndim](
            grad_output,
            weight,
            bias if plain else None,
            geometry.stride,
            tuple([crop.padding for crop in axes]),
            tuple([crop.output_padding for crop in axes]),
            geometry.groups,
            geometry.dilation,
        )
        if plain:
            return y
        memory_format = _memory_format(y)
        if any([crop.extend != (0, 0) for crop in axes]):
            y = F.pad(y, [entry for crop in reversed(axes) for entry in crop.extend])
        for index, crop in enumerate(axes):
            if crop.offset is not None:
                y = y.narrow(index + 2, crop.offset, geometry.input_size[index])
        if bias is not None:
            return y + bias.to(y.dtype).reshape(-1, *(1,) * geometry.ndim)
        return y.contiguous(memory_format=memory_format)

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight: torch's own weight gradient of the padded input."""
        if _nothing_to_sum(geometry):
            return _zeros(geometry.weight_shape, x, grad_output, None)
        x, grad_output = autocast(x.device.type, x, grad_output)  # convolution_backward has no autocast rule
        if x.is_complex():  # torch has no complex convolution_backward on the CPU; the operator is bilinear
            (xr, xi), (gr, gi) = (torch.view_as_real(t.resolve_conj()).unbind(-1) for t in (x, grad_output))
            real = self.conv_weight(geometry, xr, gr) - self.conv_weight(geometry, xi, gi)
            return torch.complex(real, self.conv_weight(geometry, xr, gi) + self.conv_weight(geometry, xi, gr))
        symbolic = self.symbolic(x, grad_output)
        plan = plan_padded(geometry, symbolic) if symbolic or self.traced() else cached_padded_plan(geometry)
        result = torch.ops.aten.convolution_backward(
            grad_output,
            prepare(plan, x),
            grad_output.new_empty(1).expand(geometry.weight_shape),  # only its shape is read
            None,
            geometry.stride,
            [axis.native[0] for axis in plan.axes],
            geometry.dilation,
            False,
            [0],
            geometry.groups,
            (False, True, False),
        )[1]
        return _flip(result) if geometry.flip_kernel else result

    def pad(self, geometry: PadGeometry, x: Array, value: complex = 0.0) -> Array:
        """Return the padded tensor; detached cells are copies without history beside the tensor itself."""
        for axis, ((low, high), size) in enumerate(zip(geometry.cuts, geometry.cut_size, strict=True)):
            if low or high:
                x = x.narrow(axis + 2, low, size)
        sources = self._sources(geometry, x.device)
        for axis, index in sources:
            if not geometry.detached:
                x = x.index_select(axis, index)
                continue
            low, n = geometry.pads[axis - 2][0], x.shape[axis]
            before, after = (x.detach().index_select(axis, part) for part in (index[:low], index[low + n :]))
            x = torch.cat([before, x, after], axis)
        pads = _constant_pads(geometry)
        if any(pads) and isinstance(value, complex):
            return torch.complex(F.pad(x.real, pads, value=value.real), F.pad(x.imag, pads, value=value.imag))
        if any(pads):
            return F.pad(x, pads, value=value.real)
        return x if sources else x.clone()  # never the input itself

    def pad_transpose(self, geometry: PadGeometry, grad_output: Array) -> Array:
        """Return the transpose of `pad`: the exact adjoint, differentiable in turn."""
        pads = _constant_pads(geometry)
        total = F.pad(grad_output, [-entry for entry in pads]) if any(pads) else grad_output
        for axis, index in reversed(self._sources(geometry, total.device)):
            shape = (*total.shape[:axis], geometry.cut_size[axis - 2], *total.shape[axis + 1 :])
            total = total.new_zeros(shape).index_add(axis, index, total)
        cuts = [entry for pair in reversed(geometry.cuts) for entry in pair]
        return F.pad(total, cuts) if any(cuts) else total

    def _sources(self, geometry: PadGeometry, device: torch.device) -> list[tuple[int, Array]]:
        """Return (tensor axis, index vector) of each axis that is padded by a mode other than constant."""
        sources = []
        for axis, (mode, n, (low, high)) in enumerate(
            zip(geometry.modes, geometry.cut_size, geometry.pads, strict=True)
        ):
            if mode != "constant" and (low, high) != (0, 0):
                positions = torch.arange(-low, n + high, device=device)
                sources.append((axis + 2, source_index(positions, n, mode)))
        return sources

    def avg_pool(self, geometry: Windows, x: Array, include_pad: bool, divisor: int | None) -> Array:
        """Return the sum of every window over its divisor."""
        if isinstance(geometry, AdaptiveGeometry):
            return _ADAPTIVE_AVG[geometry.ndim](x, geometry.output_size)
        total = _pool_sum(geometry, _widened(x))
        if divisor is not None:
            return (total / divisor).to(x.dtype)
        counts = torch.ones((), dtype=torch.int64, device=x.device)
        for axis in range(geometry.ndim):
            axis_counts = geometry.counts(axis, include_pad, partial(torch.arange, device=x.device))
            counts = counts[..., None] * axis_counts
        return (total / counts.clip(min=1).to(total.dtype)).to(x.dtype)

    def lp_pool(self, geometry: PoolGeometry, x: Array, power: float) -> Array:
        """Return ``(sum |x|^p)^(1/p)``, with gradient 0 where a window is all zero."""
        total = _pool_sum(geometry, _widened(x).abs() ** power)
        empty = total == 0
        return torch.where(empty, torch.zeros_like(total), torch.where(empty, 1, total) ** (1 / power)).to(x.dtype)

    def max_pool(self, geometry: Windows, x: Array, with_indices: bool = True) -> tuple[Array, Array | None]:
        """Return the maxima and their flat indices: first on ties, last on NaN, -1 for a window without input cells."""
        if x.shape[0] == 0 or x.shape[1] == 0:
            shape = (*x.shape[:2], *geometry.output_size)
            return x.new_zeros(shape) + x.sum().to(x.dtype), torch.zeros(shape, dtype=torch.int64, device=x.device)
        if isinstance(geometry, AdaptiveGeometry):
            return _ADAPTIVE_MAX[geometry.ndim](x, geometry.output_size, return_indices=True)
        if not with_indices and x.is_floating_point():
            x = F.pad(_cut(geometry, x), _reach(geometry), value=-math.inf)
            return _MAX[geometry.ndim](x, geometry.kernel_size, geometry.stride, 0, geometry.dilation), None
        index = _argmax(geometry, x.detach())
        places = index.clip(min=0).flatten(2)
        y = x.flatten(2).gather(2, places).reshape(index.shape)
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        return torch.where(index < 0, torch.full_like(y, lowest), y), index

    def unfold(self, geometry: PoolGeometry, x: Array) -> Array:
        """Return the cells of every window, (N, C, *kernel, *out), zeros outside the input."""
        x = F.pad(_cut(geometry, x), _reach(geometry))
        for axis in range(geometry.ndim):
            cells = geometry.cells(axis, partial(torch.arange, device=x.device))
            x = x.index_select(2 + 2 * axis, cells.flatten()).unflatten(2 + 2 * axis, tuple(cells.shape))
        return x.permute(0, 1, *range(2, x.ndim, 2), *range(3, x.ndim, 2))

    def fold(self, geometry: PoolGeometry, columns: Array) -> Array:
        """Return the transpose of `unfold`: overlapping cells are added."""
        ndim = geometry.ndim
        order = [axis + 2 for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
        total = columns.permute(0, 1, *order)
        for axis in reversed(range(ndim)):
            cells = geometry.cells(axis, partial(torch.arange, device=columns.device)).flatten()
            place, (low, high) = 2 + 2 * axis, geometry.reach[axis]
            total = total.flatten(place, place + 1)
            shape = (*total.shape[:place], geometry.cut_size[axis] + low + high, *total.shape[place + 1 :])
            total = total.new_zeros(shape).index_add(place, cells, total)
        crop = [-entry for entry in _reach(geometry)]
        cuts = [entry for pair in reversed(geometry.cuts) for entry in pair]
        return F.pad(F.pad(total, crop), cuts)


ENGINE = TorchEngine()


def _cut(geometry: PoolGeometry, x: Array) -> Array:
    """Cut what negative padding asks for."""
    for axis, ((low, high), size) in enumerate(zip(geometry.cuts, geometry.cut_size, strict=True)):
        if low or high:
            x = x.narrow(axis + 2, low, size)
    return x


def _reach(geometry: PoolGeometry) -> list[int]:
    """Return the padding that holds every window, ceil overhang included, pairs, last axis first."""
    return [entry for pair in reversed(geometry.reach) for entry in pair]


def _windows(geometry: PoolGeometry, axis: int, x: Array) -> Array:
    """View of a padded tensor with the cells of each window along one axis as last axis."""
    extent = geometry.dilation[axis] * (geometry.kernel_size[axis] - 1) + 1
    return x.unfold(axis + 2, extent, geometry.stride[axis])[..., :: geometry.dilation[axis]]


def _widened(x: Array) -> Array:
    """Return low precision as float32: sums are rounded once."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _pool_sum(geometry: PoolGeometry, x: Array) -> Array:
    x = F.pad(_cut(geometry, x), _reach(geometry))
    for axis in range(geometry.ndim):
        x = _windows(geometry, axis, x).sum(-1)
    return x


def _argmax(geometry: PoolGeometry, x: Array) -> Array:
    """Return the flat index of every window's maximum, one axis after the other; -1 for no cell."""
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    index = torch.arange(math.prod(x.shape[2:]), device=x.device).reshape(x.shape[2:]).expand(x.shape)
    x = F.pad(_cut(geometry, x), _reach(geometry), value=lowest)
    index = F.pad(_cut(geometry, index), _reach(geometry), value=-1)
    for axis in reversed(range(geometry.ndim)):
        values, sources = _windows(geometry, axis, x), _windows(geometry, axis, index)
        is_nan = values.isnan()
        wins = (values == values.amax(-1, keepdim=True)) & (sources >= 0)
        last_nan = values.shape[-1] - 1 - is_nan.flip(-1).to(torch.uint8).argmax(-1)
        winner = torch.where(is_nan.any(-1), last_nan, wins.to(torch.uint8).argmax(-1)).unsqueeze(-1)
        has_cell = (sources >= 0).any(-1)
        x = values.gather(-1, winner).squeeze(-1)
        index = torch.where(has_cell, sources.gather(-1, winner).squeeze(-1), -1)
    return index


def _constant_pads(geometry: PadGeometry) -> list[int]:
    """Return what mode "constant" adds, pairs, last axis first."""
    pairs = [pair if mode == "constant" else (0, 0) for mode, pair in zip(geometry.modes, geometry.pads, strict=True)]
    return [entry for pair in reversed(pairs) for entry in pair]


class _Crop(NamedTuple):
    """How one axis of a transposed convolution is cut out of torch's: zeros added, then a slice from `offset`."""

    padding: int
    output_padding: int
    extend: tuple[int, int]
    offset: int | None


def _crop(geometry: ConvGeometry, axis: int, extends: bool) -> _Crop:
    """Let torch crop the smaller side; an excess of the low crop below the stride is torch's output_padding.

    That one is used only where `extends` allows it: torch's third derivative with an output_padding is an error.
    """
    low, (high, _) = geometry.padding[axis][0], geometry.slack[axis]
    s, d = geometry.stride[axis], geometry.dilation[axis]
    if low >= 0 and (low == high or (extends and 0 < low - high < max(s, d))):
        return _Crop(low, low - high, (0, 0), None)
    both = max(min(low, high), 0)
    extend = (max(-low, 0), max(-high, 0))
    has_spare = low > both or high > both
    return _Crop(both, 0, extend, max(low, 0) - both if has_spare else None)


def _symbolic_crop(geometry: ConvGeometry, axis: int) -> _Crop:
    """Crop without comparing sizes: s - 1 zeros more than the pads ask for always hold the last cell.

    Pads from a "same" rule are symbolic too; the low one is never negative, the high one at least 1 - s.
    """
    (low, high), s = geometry.padding[axis], geometry.stride[axis]
    if geometry.padding_from_sizes:
        return _Crop(0, 0, (0, 2 * (s - 1)), low)
    return _Crop(0, 0, (max(-low, 0), max(s - 1 - high, 0)), max(low, 0))


def autocasts(device: str) -> bool:
    """Say whether autocast is on for a device; not every device (meta) has it."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def autocast(device: str, *tensors: Array) -> list[Array]:
    """Follow conv2d's rule: under autocast everything of float32 or lower precision takes the autocast dtype."""
    if not autocasts(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [
        tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
        for tensor in tensors
    ]


def cut(plan: ConvPlan, x: Array) -> Array:
    """Return a view of what the plan takes of the input."""
    for axis, start, length in plan.cuts:
        x = x.narrow(axis, start, length)
    return x


def prepare(plan: ConvPlan, x: Array) -> Array:
    """Cut the input (views) and pad it with zeros (a copy)."""
    x = cut(plan, x)
    return F.pad(x, plan.pads) if plan.pads else x


def keep(plan: ConvPlan, y: Array, contiguous: bool) -> Array:
    """Drop the outputs that a crop computes too many, as a view or copied to be contiguous in y's layout."""
    memory_format = _memory_format(y)
    for axis, start, length in plan.keeps:
        y = y.narrow(axis, start, length)
    return y.contiguous(memory_format=memory_format) if contiguous else y


def _flip(weight: Array) -> Array:
    return weight.flip(list(range(2, weight.ndim)))


def _memory_format(y: Array) -> torch.memory_format:
    """Return the layout to restore after a slice; asked by strides, since vmap cannot answer for channels_last."""
    if y.ndim in _CHANNELS_LAST and y.stride(1) == 1 and not y.is_contiguous():
        return _CHANNELS_LAST[y.ndim]
    return torch.contiguous_format


def _nothing_to_sum(geometry: ConvGeometry) -> bool:
    """Say whether batch or channels are empty, which torch's kernels refuse."""
    return any([size == 0 for size in (geometry.batch, geometry.in_channels, geometry.out_channels)])


def _zeros(shape: tuple[int, ...], first: Array, second: Array, bias: Array | None) -> Array:
    """Return zeros plus bias, with gradients: either the result or both operands are empty, so the sums add nothing."""
    y = first.new_zeros(shape) + (first.sum() + second.sum()).to(first.dtype)
    return y if bias is None else y + bias.reshape(-1, *(1,) * (len(shape) - 2))


# ---------------------------------------------------------------------- NumPy arrays on torch


class NumpyOnTorch(NumpyEngine):
    """NumPy arrays on torch's CPU kernels; no copy if an array is aligned, native and has no negative stride."""

    name = "torch"
    native_padding = False
    takes_out = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def takes_dense_pairs(self, dtype: str, device: str) -> bool:
        """Say whether torch's kernels do."""
        return self.engine.takes_dense_pairs(dtype, device)

    def conv(
        self,
        plan: ConvPlan,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        contiguous: bool = True,
        out: Array | None = None,
    ) -> Array:
        """Return the convolution."""
        return self._run("conv", plan, x, weight, bias, contiguous=contiguous)

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input."""
        return self._run("conv_input", geometry, grad_output, weight, bias)

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight."""
        return self._run("conv_weight", geometry, x, grad_output)

    def pad(self, geometry: PadGeometry, x: Array, value: complex = 0.0) -> Array:
        """Return the padded array."""
        return self._run("pad", geometry, x, value=value)

    def pad_transpose(self, geometry: PadGeometry, grad_output: Array) -> Array:
        """Return the transpose of the padding."""
        return self._run("pad_transpose", geometry, grad_output)

    def unfold(self, geometry: PoolGeometry, x: Array) -> Array:
        """Return the cells of every window."""
        return self._run("unfold", geometry, x)

    def fold(self, geometry: PoolGeometry, columns: Array) -> Array:
        """Return the transpose of `unfold`."""
        return self._run("fold", geometry, columns)

    def _run(
        self,
        method: str,
        geometry: ConvPlan | ConvGeometry | PadGeometry | PoolGeometry,
        *arrays: Array,
        **options: Any,
    ) -> Array:
        tensors = [None if array is None else to_torch(array) for array in arrays]
        with torch.no_grad():
            return to_numpy(getattr(self.engine, method)(geometry, *tensors, **options), arrays[0].dtype)


class _Alias:
    """A writable view of an array's memory, so that torch does not warn of a read-only one; nothing writes to it."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def to_torch(array: Array) -> torch.Tensor:
    """Return a tensor on the array's own memory where torch can, else on a copy."""
    if array.dtype.name == "bfloat16":
        return to_torch(array.view(np.int16)).view(torch.bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.aligned or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = np.ascontiguousarray(array).copy()
    if not array.flags.writeable:
        array = np.asarray(_Alias(array))
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor, dtype: Any) -> Array:
    """Return an array on the tensor's memory; `dtype` tells NumPy of bfloat16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.resolve_conj().resolve_neg().numpy()
