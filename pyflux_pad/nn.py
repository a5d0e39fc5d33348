"""torch's layers with a padding of their own on every side.

Each layer is a subclass of torch's layer of the same name and takes its arguments; parameters, state_dict, repr and
initialisation are torch's. Beyond torch, `padding` of a convolution or pool is an int, one int per axis, one
``(low, high)`` pair per axis, a `Padding`, or a rule ("valid", "same", "same_lower", "causal"), and these keywords:

- `backend`: name of the engine that computes; by default the tensor's own.
- `detach_padding` (convolutions and padding layers): the padded cells send no gradient back; see `pyflux_pad.pad`.

What torch can express runs torch's own forward: the same bits, errors and speed. Everything else runs the function of
`pyflux_pad` that the layer is named for, and so does a layer with ``backend="torch"``, to pad beyond what torch allows.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.modules import conv as _conv
from torch.nn.modules import pooling as _pooling

from .backends import default_name
from .ops import avg_pool, conv, conv_transpose, lp_pool, max_pool, pad
from .padding import MODES, GeometryError, Padding, explicit, parse, parse_modes

_M = TypeVar("_M", bound=torch.nn.Module)
_REPLACES: dict[type[torch.nn.Module], type[_Layer]] = {}
"""Our layer for each of torch's."""


class _Layer(torch.nn.Module):
    """What all layers share: torch's constructor, and the choice between torch's forward and the package's function.

    Attributes
    ----------
    _function, _options
        The function of this package, and which attributes of the layer are its arguments.
    _extras
        Keywords beyond torch's constructor, with their defaults.
    """

    _ndim: ClassVar[int]
    _torch: ClassVar[type[torch.nn.Module]]
    _function: ClassVar[Callable[..., Any]]
    _options: ClassVar[tuple[str, ...]]
    _extras: ClassVar[dict[str, Any]] = {"backend": None}
    backend: str | None
    padding: Any

    def __init_subclass__(cls, ndim: int = 0, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = None  # that of a subclass elsewhere follows from its own constructor
        if ndim:
            cls._ndim, cls._torch = ndim, cls.__bases__[1]
            signature = inspect.signature(cls._torch)
            keyword = inspect.Parameter.KEYWORD_ONLY
            extras = [inspect.Parameter(name, keyword, default=value) for name, value in cls._extras.items()]
            cls.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extras])
            _REPLACES[cls._torch] = cls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        extras = {name: kwargs.pop(name, default) for name, default in self._extras.items()}
        try:
            given = inspect.signature(self._torch).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        try:
            beyond = self._take_beyond_torch(given, extras)
        except (GeometryError, TypeError) as error:
            raise type(error)(f"{type(self).__name__}: {error}") from None
        super().__init__(**given)
        for name, value in (extras | beyond).items():
            setattr(self, name, value)

    def _take_beyond_torch(self, given: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
        """Check the padding, and take from torch's arguments those that its constructor cannot read."""
        given["padding"] = _normal(given.get("padding", 0), self._ndim)
        return {} if _is_ints(given["padding"]) else {"padding": given.pop("padding")}

    def _torch_runs(self) -> bool:
        """Say whether torch's own forward serves this layer as it is set now."""
        return self.backend is None and default_name() in (None, "torch") and self._torch_can()

    def _torch_can(self) -> bool:
        """Say whether torch can express the layer."""
        raise NotImplementedError

    def _pads(self) -> Padding:
        """Return the pads of a layer that torch can express."""
        return Padding(explicit(_normal(self.padding, self._ndim), self._ndim))

    def _run(self, input: Tensor, *operands: Any, **more: Any) -> Any:
        """Call the package's function, with a batch axis if `input` has none."""
        if input.dim() not in (self._ndim + 1, self._ndim + 2):
            raise GeometryError(
                f"{type(self).__name__}: input must have {self._ndim + 2} axes (N, C, *spatial), or {self._ndim + 1} "
                f"without batch, got {input.dim()}: {tuple(input.shape)}"
            )
        options = {name: getattr(self, name) for name in self._options if hasattr(self, name)}
        function = type(self)._function
        if input.dim() == self._ndim + 2:
            return function(input, *operands, **options, **more)
        result = function(input[None], *operands, **options, **more)
        return tuple(part[0] for part in result) if isinstance(result, tuple) else result[0]

    def extra_repr(self) -> str:
        """Return torch's text, and the extras that are set."""
        shown = [f"{name}={getattr(self, name)}" for name, default in self._extras.items()
                 if getattr(self, name) != default]  # fmt: skip
        return ", ".join([super().extra_repr(), *shown])


def _is_ints(padding: Any) -> bool:
    """Say whether a padding has torch's form: an int, or one int per axis."""
    entries = padding if isinstance(padding, (tuple, list)) else (padding,)
    return all(isinstance(entry, int) for entry in entries)


def _each(value: Any, ndim: int = 1) -> tuple[Any, ...]:
    """Return one entry per axis, as torch reads an int or a tuple of one int."""
    entries = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return entries * ndim if len(entries) == 1 else entries


def _normal(padding: Any, ndim: int) -> Any:
    """Return a checked padding: ints as they were given, ints per axis for symmetric pairs, pairs, or a rule."""
    parsed = parse(_each(padding, ndim) if _is_ints(padding) else padding, ndim)
    if isinstance(parsed, str) or _is_ints(padding):
        return padding
    return tuple(low for low, _ in parsed) if Padding(parsed).is_symmetric else parsed


class _SymmetricPadNd(torch.nn.Module):
    """What torch would have."""

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = padding

    def extra_repr(self) -> str:
        """Return the padding."""
        return f"{self.padding}"


def _layers(kind: type[_M], name: str, text: str, **attributes: Any) -> tuple[type[_M], type[_M], type[_M]]:
    """Return the 1-D, 2-D and 3-D layers of a kind whose classes differ in nothing else."""
    first, second, third = [
        types.new_class(
            f"{name}{ndim}d",
            (kind, getattr(torch.nn, f"{name}{ndim}d", _SymmetricPadNd)),
            {"ndim": ndim},
            lambda body: body.update(attributes, __module__=__name__, __doc__=f"torch's `{name}` with {text}."),
        )
        for ndim in (1, 2, 3)
    ]
    return first, second, third


# ---------------------------------------------------------------------- convolutions


class _Conv(_Layer, _conv._ConvNd):
    _function = staticmethod(conv)
    _options = ("stride", "padding", "dilation", "groups", "padding_mode", "detach_padding", "backend")
    _extras: ClassVar[dict[str, Any]] = {"detach_padding": False, "backend": None}
    _modes: ClassVar[tuple[str, ...]] = ("zeros", *MODES[1:])
    _torch_modes: ClassVar[tuple[str, ...]] = ("zeros", "reflect", "replicate", "circular")
    detach_padding: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.padding == "same":  # as torch does, for its own forward
            self._reversed_padding_repeated_twice = list(self._pads().to_torch())

    def _take_beyond_torch(self, given: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
        beyond = super()._take_beyond_torch(given, extras)
        mode = given.get("padding_mode", "zeros")
        modes = parse_modes(mode, self._ndim, "padding_mode", self._modes)
        if mode not in self._torch_modes:
            beyond["padding_mode"] = modes[0] if len(set(modes)) == 1 else modes
            given.pop("padding_mode")
        return beyond

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight, bias) if self._torch_runs() else self._run(input, weight, bias)

    def _torch_can(self) -> bool:
        if self.padding_mode not in (("zeros",) if self.detach_padding else self._torch_modes):
            return False
        if isinstance(self.padding, str) and not self.transposed:
            return self.padding == "valid" or (self.padding == "same" and set(_each(self.stride)) == {1})
        return _is_ints(self.padding) and min(_each(self.padding)) >= 0

    def _pads(self) -> Padding:
        if self.padding == "same":
            return Padding.same("torch", self.kernel_size, self.kernel_size, 1, self.dilation)
        return Padding(explicit(0, self._ndim)) if self.padding == "valid" else super()._pads()


class Conv1d(_Conv, torch.nn.Conv1d, ndim=1):
    """`torch.nn.Conv1d` with a padding of its own on every side; see `pyflux_pad.conv`."""


class Conv2d(_Conv, torch.nn.Conv2d, ndim=2):
    """`torch.nn.Conv2d` with a padding of its own on every side; see `pyflux_pad.conv`.

    `padding_mode` may be "symmetric", and one mode per axis, as for a panorama: ``padding_mode=("zeros", "circular")``.

    Examples
    --------
    >>> Conv2d(3, 8, 3, stride=2, padding=((0, 1), (0, 1)))
    Conv2d(3, 8, kernel_size=(3, 3), stride=(2, 2), padding=((0, 1), (0, 1)))
    """


class Conv3d(_Conv, torch.nn.Conv3d, ndim=3):
    """`torch.nn.Conv3d` with a padding of its own on every side; see `pyflux_pad.conv`."""


class LazyConv1d(_Conv, torch.nn.LazyConv1d, ndim=1):
    """`Conv1d` that learns `in_channels` from its first input."""

    cls_to_become = Conv1d


class LazyConv2d(_Conv, torch.nn.LazyConv2d, ndim=2):
    """`Conv2d` that learns `in_channels` from its first input."""

    cls_to_become = Conv2d


class LazyConv3d(_Conv, torch.nn.LazyConv3d, ndim=3):
    """`Conv3d` that learns `in_channels` from its first input."""

    cls_to_become = Conv3d


class CausalConv1d(Conv1d):
    """`Conv1d` whose output at a time depends on no later input: it pads ``dilation * (kernel_size - 1)`` before.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, dilation, groups, bias, padding_mode, device, dtype
        As in `torch.nn.Conv1d`, in this order.
    detach_padding, backend
        As in `Conv1d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        detach_padding: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, "causal", dilation, groups, bias, padding_mode, device,
            dtype, detach_padding=detach_padding, backend=backend,
        )  # fmt: skip


class _ConvTranspose(_Conv, _conv._ConvTransposeNd):
    _function = staticmethod(conv_transpose)
    _options = ("stride", "padding", "dilation", "groups", "padding_mode", "backend")
    _extras: ClassVar[dict[str, Any]] = {"backend": None}
    _modes, _torch_modes = ("zeros", "circular"), ("zeros",)
    detach_padding = False

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution, of `output_size` (with or without batch and channels) if given."""
        if self._torch_runs():
            return super().forward(input, output_size)
        if output_size is None:
            return self._run(input, self.weight, self.bias, output_padding=self.output_padding)
        if len(output_size) not in (self._ndim, input.dim()):
            raise GeometryError(
                f"{type(self).__name__}: output_size must have {self._ndim} or {input.dim()} entries, got {output_size}"
            )
        return self._run(input, self.weight, self.bias, output_size=tuple(output_size)[-self._ndim :])


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d, ndim=1):
    """`torch.nn.ConvTranspose1d` that crops every side by its own amount; see `pyflux_pad.conv_transpose`."""


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d, ndim=2):
    """`torch.nn.ConvTranspose2d` that crops every side by its own amount; see `pyflux_pad.conv_transpose`.

    `padding_mode` may be "circular" too, for all axes or one per axis.
    """


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d, ndim=3):
    """`torch.nn.ConvTranspose3d` that crops every side by its own amount; see `pyflux_pad.conv_transpose`."""


# ---------------------------------------------------------------------- pools


class _Bare(_Layer):
    """A layer without parameters."""

    kernel_size: Any

    def forward(self, input: Tensor) -> Any:
        """Return the layer's output for `input (N, C, *spatial)` or `(C, *spatial)`."""
        return super().forward(input) if self._torch_runs() else self._run(input)

    def _torch_can(self) -> bool:
        """Say whether a pool has the same padding on both sides, and at most half the window as torch demands."""
        if self.padding == 0:
            return True
        sizes = zip(_each(self.padding, self._ndim), _each(self.kernel_size, self._ndim), strict=True)
        return _is_ints(self.padding) and all(0 <= pad <= kernel // 2 for pad, kernel in sizes)


class _MaxPool(_Bare, _pooling._MaxPoolNd):
    _function = staticmethod(max_pool)
    _options = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices", "backend")


class _AvgPool(_Bare, _pooling._AvgPoolNd):
    _function = staticmethod(avg_pool)
    _options = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override", "backend")


class _LPPool(_Bare, _pooling._LPPoolNd):
    _function = staticmethod(lp_pool)
    _options = ("kernel_size", "norm_type", "stride", "padding", "ceil_mode", "backend")
    _extras: ClassVar[dict[str, Any]] = {"padding": 0, "backend": None}

    def _take_beyond_torch(self, given: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
        return {"padding": _normal(extras["padding"], self._ndim)}

    def _torch_can(self) -> bool:
        return _is_ints(self.padding) and not any(_each(self.padding, self._ndim))


MaxPool1d, MaxPool2d, MaxPool3d = _layers(_MaxPool, "MaxPool", "padding of its own on every side; see `max_pool`")
AvgPool1d, AvgPool2d, AvgPool3d = _layers(_AvgPool, "AvgPool", "padding of its own on every side; see `avg_pool`")
_LP_TEXT = """`padding`, which torch's has not; see `lp_pool`.

With padding or `backend` it is ``(sum |x|^p)^(1/p)``; without, torch's own formula, which takes no absolute value (it
differs for negative cells and odd p) and weighs the overhang of ceil mode"""
LPPool1d, LPPool2d, LPPool3d = _layers(_LPPool, "LPPool", _LP_TEXT)


# ---------------------------------------------------------------------- padding layers


class _Pad(_Bare):
    """A padding layer; its `padding` is torch's: an int, or pairs in one flat tuple, last axis first."""

    _function = staticmethod(pad)
    _options = ("mode", "value", "detach_padding", "backend")
    _extras: ClassVar[dict[str, Any]] = {"detach_padding": False, "backend": None}
    mode: ClassVar[str] = "constant"
    detach_padding: bool

    def _take_beyond_torch(self, given: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
        padding = given.get("padding", 0)
        if _is_ints(padding) and isinstance(padding, (tuple, list)):
            Padding.from_torch(padding, self._ndim)
        else:
            given["padding"] = Padding(explicit(padding, self._ndim)).to_torch()
        return {}

    def _torch_can(self) -> bool:
        return self.mode == "constant" or (self.mode != "symmetric" and not self.detach_padding)

    def _pads(self) -> Padding:
        return Padding.from_torch(self.padding, self._ndim)

    def _run(self, input: Tensor, *operands: Any, **more: Any) -> Any:
        return super()._run(input, self._pads(), *operands, **more)


_TOO = "`detach_padding`, which takes a `Padding` too; see `pad`"
ConstantPad1d, ConstantPad2d, ConstantPad3d = _layers(_Pad, "ConstantPad", _TOO)
ZeroPad1d, ZeroPad2d, ZeroPad3d = _layers(_Pad, "ZeroPad", _TOO)
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _layers(_Pad, "ReflectionPad", _TOO, mode="reflect")
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _layers(_Pad, "ReplicationPad", _TOO, mode="replicate")
CircularPad1d, CircularPad2d, CircularPad3d = _layers(_Pad, "CircularPad", _TOO, mode="circular")
SymmetricPad1d, SymmetricPad2d, SymmetricPad3d = _layers(_Pad, "SymmetricPad", _TOO, mode="symmetric")


# ---------------------------------------------------------------------- whole models


@dataclass(frozen=True)
class Converted(Generic[_M]):
    """What `from_torch` returns.

    Attributes
    ----------
    module
        The new module tree.
    pads
        The pads of every replaced layer, by its name in the tree (the first one if it is used twice).
    left
        Convolution, pooling and padding layers that were not replaced, by name, with the reason.
    """

    module: _M
    pads: dict[str, Padding]
    left: dict[str, str]


def from_torch(module: _M) -> Converted[_M]:
    """Copy a module tree with torch's convolution, pooling and padding layers replaced by this file's.

    The copy shares every parameter and buffer with `module`, which is untouched; state_dict keys, training state and
    hooks are the same, and so is every output, to the bit. Hooks that are methods of a module in the tree become
    methods of its copy; others are shared.

    Parameters
    ----------
    module
        Any module, a single layer too. Only layers of exactly torch's type are replaced: a subclass may compute
        something else, and a parametrised layer (weight norm, pruning) is one. They are copied as they are.

    Returns
    -------
    Converted
        The new tree, the pads of what was replaced, and what was left.

    Examples
    --------
    >>> found = from_torch(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()))
    >>> found.pads
    {'0': Padding(((1, 1), (1, 1)))}
    """
    memo: dict[int, Any] = {}
    pads: dict[str, Padding] = {}
    left: dict[str, str] = {}
    replaced: list[tuple[torch.nn.Module, _Layer]] = []
    inside = {id(part) for part in module.modules()}
    for name, part in module.named_modules():
        memo.update({id(shared): shared for shared in _shared(part, inside)})
        ours = _REPLACES.get(type(part))
        if ours is None:
            if isinstance(part, tuple(_REPLACES)) and not isinstance(part, _Layer):
                left[name] = f"{type(part).__name__} is a subclass"
        elif getattr(part, "weight", None) is not part._parameters.get("weight"):
            left[name] = "its weight is computed"
        else:
            layer = ours.__new__(ours)
            layer.__dict__ |= ours._extras | part.__dict__
            try:
                pads[name] = layer._pads()
            except (GeometryError, TypeError) as error:
                left[name] = str(error)
            else:
                memo[id(part)] = layer
                replaced.append((part, layer))
    for part, layer in replaced:  # once every replacement is known: a layer may refer to another
        layer.__dict__ |= copy.deepcopy(part.__dict__, memo)
    return Converted(copy.deepcopy(module, memo), pads, left)


def _shared(module: torch.nn.Module, inside: set[int]) -> Iterator[Any]:
    """Yield what a copy of the module shares: its tensors, and the hooks that are not methods in the tree."""
    state = module.__dict__
    for value in (*state.values(), *module._parameters.values(), *module._buffers.values()):
        if isinstance(value, Tensor):
            yield value
    for name, hooks in state.items():
        if name.endswith("_hooks") and isinstance(hooks, dict):
            unwrapped = [getattr(hook, "hook", hook) for hook in hooks.values()]
            yield from (hook for hook in unwrapped if id(getattr(hook, "__self__", None)) not in inside)
