"""Flux's layers, written in Python: sizes channels-first, checked here, each an expression that makes the real layer.

Nothing here starts Julia; `FluxModel` does, when it makes a layer.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ..padding import GeometryError, Padding, apply_rule, as_int, parse, per_axis

Sizes = int | Sequence[int]

ACTIVATIONS = (
    "celu", "elu", "gelu", "gelu_erf", "gelu_sigmoid", "gelu_tanh", "hardsigmoid", "hardswish", "hardtanh", "identity",
    "leakyrelu", "lisht", "logcosh", "logsigmoid", "mish", "relu", "relu6", "rrelu", "selu", "sigmoid", "sigmoid_fast",
    "softplus", "softshrink", "softsign", "swish", "tanh", "tanh_fast", "tanhshrink", "trelu",
)  # fmt: skip
"""The names of NNlib's activations, and `identity`."""

_CONNECTIONS = {"+": "add", "*": "multiply", "cat": "concatenate"}
"""What joins branches, and its function in the extension: the sum, the product, the channels one after the other."""


class Layer:
    """A Flux layer to be: an expression of Julia's.

    Parameters
    ----------
    julia
        Any expression of something callable; every other class here writes it by itself. ``Layer("x -> 2 .* x")``
        is a function of Julia's, whose arrays are ``(W, H, C, N)``.
    """

    def __init__(self, julia: str) -> None:
        self.julia = julia

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.julia}"


class Conv(Layer):
    """A true convolution, as Flux has it, ``(N, in_channels, *spatial)`` to ``(N, out_channels, *spatial)``.

    Parameters
    ----------
    in_channels, out_channels
        Numbers of channels.
    kernel_size
        One int per spatial axis, first axis first: there are as many axes.
    activation
        A name in `ACTIVATIONS`.
    stride, dilation
        An int, or one per axis.
    padding
        As everywhere in this package: an int, one int or ``(low, high)`` pair per axis, a `Padding`, ``"valid"`` or
        ``"causal"``. The other rules depend on the size of the input, which a Flux layer does not know.
    pad
        Instead of `padding`, as Flux writes it: an int, N ints, 2N ints ``(low, high)`` with the width first, or
        ``"same"`` for its ``SamePad()``.
    groups
        How many groups the channels are divided into.
    bias
        Whether there is one.

    Raises
    ------
    GeometryError
        For sizes that do not fit, negative pads, `padding` and `pad` together.
    TypeError
        For what is no int.
    ValueError
        For an unknown activation.
    """

    name = "Conv"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        activation: str = "identity",
        *,
        stride: Sizes = 1,
        padding: Any = None,
        pad: Any = None,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        groups = _positive(self.name, "groups", groups)
        super().__init__(
            _convolution(
                self.name, in_channels, out_channels, kernel_size, activation, stride, padding, pad, dilation, groups,
                bias,
            )
        )  # fmt: skip


class ConvTranspose(Layer):
    """A transposed convolution; parameters as `Conv`, whose `padding` crops, and one more.

    Parameters
    ----------
    output_padding
        Cells that are added at the high side: an int or one per axis, less than the stride, which Flux asks for.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        activation: str = "identity",
        *,
        stride: Sizes = 1,
        padding: Any = None,
        pad: Any = None,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        name = "ConvTranspose"
        axes = len(_kernel(name, kernel_size))
        more = per_axis(output_padding, axes, f"{name}: output_padding", 0)
        for axis, (added, step) in enumerate(zip(more, per_axis(stride, axes, f"{name}: stride", 1), strict=True)):
            if added >= step:
                raise GeometryError(f"{name}: output_padding must be less than the stride, which Flux asks for; it is "
                                    f"{added} with stride {step} on spatial axis {axis}")  # fmt: skip
        groups = _positive(name, "groups", groups)
        super().__init__(
            _convolution(
                name, in_channels, out_channels, kernel_size, activation, stride, padding, pad, dilation, groups, bias,
                f", outpad={_ints(reversed(more))}" if any(more) else "",
            )
        )  # fmt: skip


class CrossCor(Layer):
    """A cross-correlation, which is PyTorch's convolution; parameters as `Conv`, without groups."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        activation: str = "identity",
        *,
        stride: Sizes = 1,
        padding: Any = None,
        pad: Any = None,
        dilation: Sizes = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(
            _convolution(
                "CrossCor", in_channels, out_channels, kernel_size, activation, stride, padding, pad, dilation, 1, bias
            )
        )


class DepthwiseConv(Conv):
    """A convolution with one group per input channel; parameters as `Conv`, without `groups`."""

    name = "DepthwiseConv"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        activation: str = "identity",
        *,
        stride: Sizes = 1,
        padding: Any = None,
        pad: Any = None,
        dilation: Sizes = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, activation, stride=stride, padding=padding, pad=pad,
            dilation=dilation, groups=in_channels, bias=bias,
        )  # fmt: skip


class Dense(Layer):
    """``activation(x W + b)`` for ``(N, in_features)``; its weight is ``(in_features, out_features)``."""

    def __init__(self, in_features: int, out_features: int, activation: str = "identity", *, bias: bool = True) -> None:
        inputs, outputs = (_positive("Dense", "features", count) for count in (in_features, out_features))
        super().__init__(f"Dense({inputs} => {outputs}, {_activation('Dense', activation)}; bias={_bool(bias)})")


class BatchNorm(Layer):
    """Normalisation by channel over batch and space, by running statistics in test mode; then `activation`.

    ``running = (1 - momentum) * running + momentum * statistic`` as in PyTorch.
    """

    def __init__(
        self,
        channels: int,
        activation: str = "identity",
        *,
        affine: bool = True,
        track_stats: bool = True,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__(
            f"BatchNorm({_positive('BatchNorm', 'channels', channels)}, {_activation('BatchNorm', activation)}; "
            f"affine={_bool(affine)}, track_stats={_bool(track_stats)}, eps={_float(epsilon)}, "
            f"momentum={_float(momentum)})"
        )


class GroupNorm(Layer):
    """Normalisation over space and the channels of each group; then `activation`. Groups come first, as in PyTorch."""

    def __init__(
        self, groups: int, channels: int, activation: str = "identity", *, affine: bool = True, epsilon: float = 1e-5
    ) -> None:
        groups, channels = _positive("GroupNorm", "groups", groups), _positive("GroupNorm", "channels", channels)
        if channels % groups:
            raise GeometryError(f"GroupNorm: {channels} channels cannot be divided into {groups} groups")
        super().__init__(
            f"GroupNorm({channels}, {groups}, {_activation('GroupNorm', activation)}; affine={_bool(affine)}, "
            f"eps={_float(epsilon)})"
        )


class LayerNorm(Layer):
    """Normalisation over the last axes, whose sizes are given; then `activation`.

    Flux up to 0.16.10 divides by ``sqrt(variance + epsilon**2)``, where PyTorch adds `epsilon` itself.
    """

    def __init__(
        self, size: Sizes, activation: str = "identity", *, affine: bool = True, epsilon: float = 1e-5
    ) -> None:
        sizes = [_positive("LayerNorm", "size", n) for n in ([size] if isinstance(size, int) else size)]
        super().__init__(
            f"LayerNorm({_ints(reversed(sizes))}, {_activation('LayerNorm', activation)}; affine={_bool(affine)}, "
            f"eps={_float(epsilon)})"
        )


class Dropout(Layer):
    """Zeros with probability `p`, in training mode; the rest is scaled by ``1 / (1 - p)``."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p is a probability from 0 to 1, got {p!r}")
        super().__init__(f"Dropout({_float(p)})")


class MaxPool(Layer):
    """The maximum of a window; padding never wins.

    Parameters
    ----------
    kernel_size
        One int per spatial axis, first axis first.
    stride
        An int, or one per axis; by default the kernel's sizes.
    padding, pad
        As in `Conv`.
    """

    name = "MaxPool"

    def __init__(
        self, kernel_size: Sequence[int], *, stride: Sizes | None = None, padding: Any = None, pad: Any = None
    ) -> None:
        kernel = _kernel(self.name, kernel_size)
        steps = kernel if stride is None else per_axis(stride, len(kernel), f"{self.name}: stride", 1)
        pads = _pad(self.name, padding, pad, kernel, (1,) * len(kernel))
        super().__init__(f"{self.name}({_ints(reversed(kernel))}; stride={_ints(reversed(steps))}, pad={pads})")


class MeanPool(MaxPool):
    """The mean of a window, zeros of the padding counted; parameters as `MaxPool`."""

    name = "MeanPool"


class AdaptiveMaxPool(Layer):
    """The maximum of equal windows; all are as long as the first, ``n - (size - 1) * (n // size)``, unlike PyTorch's.

    Parameters
    ----------
    output_size
        One int per spatial axis, first axis first.
    """

    name = "AdaptiveMaxPool"

    def __init__(self, output_size: Sequence[int]) -> None:
        super().__init__(f"{self.name}({_ints(reversed(_kernel(self.name, output_size, 'output_size')))})")


class AdaptiveMeanPool(AdaptiveMaxPool):
    """The mean of equal windows; see `AdaptiveMaxPool`."""

    name = "AdaptiveMeanPool"


class GlobalMaxPool(Layer):
    """The maximum of every channel, ``(N, C, 1, ...)``."""

    def __init__(self) -> None:
        super().__init__("GlobalMaxPool()")


class GlobalMeanPool(Layer):
    """The mean of every channel, ``(N, C, 1, ...)``."""

    def __init__(self) -> None:
        super().__init__("GlobalMeanPool()")


class Upsample(Layer):
    """More cells: `mode` is nearest, bilinear or trilinear, the last two with the corners aligned.

    Parameters
    ----------
    mode
        How cells are filled.
    scale
        A factor, or one per axis.
    size
        Instead of `scale`, the sizes of the result, one per axis.
    """

    def __init__(
        self, mode: str = "nearest", *, scale: float | Sequence[float] | None = None, size: Sequence[int] | None = None
    ) -> None:
        if mode not in ("nearest", "bilinear", "trilinear"):
            raise ValueError(f"Upsample: mode={mode!r}; there are nearest, bilinear and trilinear")
        if (scale is None) == (size is None):
            raise ValueError("Upsample takes scale or size, one of them")
        if size is not None:
            super().__init__(f"Upsample(:{mode}; size={_ints(reversed(_kernel('Upsample', size, 'size')))})")
        else:
            factors = f"({', '.join(map(repr, reversed(scale)))},)" if isinstance(scale, Sequence) else repr(scale)
            super().__init__(f"Upsample(:{mode}; scale={factors})")


class PixelShuffle(Layer):
    """``(N, C r^d, *spatial)`` to ``(N, C, *spatial r)``, in PyTorch's order of channels."""

    def __init__(self, factor: int) -> None:
        super().__init__(f"PixelShuffle({_positive('PixelShuffle', 'factor', factor)})")


class Chain(Layer):
    """Layers one after the other."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(f"Chain({_listed('Chain', layers)})")


class SkipConnection(Layer):
    """``connection(layers(x), x)``.

    Parameters
    ----------
    layers
        What is skipped.
    connection
        ``"+"``, ``"*"``, ``"cat"`` (channels one after the other), or a `Layer` of two arguments.
    """

    def __init__(self, layers: Layer, connection: str | Layer = "+") -> None:
        super().__init__(
            f"SkipConnection({_listed('SkipConnection', [layers])}, {_connection('SkipConnection', connection)})"
        )


class Parallel(Layer):
    """``connection(layer(x) for each layer)``, or an input for each layer; `connection` is as in `SkipConnection`."""

    def __init__(self, connection: str | Layer, *layers: Layer) -> None:
        super().__init__(f"Parallel({_connection('Parallel', connection)}, {_listed('Parallel', layers)})")


flatten = Layer("Flux.flatten")
"""``(N, ...)`` to ``(N, everything)``, in the order of PyTorch's flatten."""


# ------------------------------------------------------------------------------------------------------------- the text


def _convolution(
    name: str, in_channels: int, out_channels: int, kernel_size: Any, activation: str, stride: Sizes, padding: Any,
    pad: Any, dilation: Sizes, groups: int, bias: bool, more: str = "",
) -> str:  # fmt: skip
    channels = [_positive(name, "channels", count) for count in (in_channels, out_channels)]
    if any(count % groups for count in channels):
        raise GeometryError(
            f"{name}: in_channels={channels[0]} and out_channels={channels[1]} must be multiples of groups={groups}"
        )
    kernel = _kernel(name, kernel_size)
    steps, apart = (
        per_axis(value, len(kernel), f"{name}: {what}", 1)
        for value, what in ((stride, "stride"), (dilation, "dilation"))
    )
    settings = f"stride={_ints(reversed(steps))}, pad={_pad(name, padding, pad, kernel, apart)}"
    if any(step != 1 for step in apart):
        settings += f", dilation={_ints(reversed(apart))}"
    if groups != 1 and name != "DepthwiseConv":
        settings += f", groups={groups}"
    return (
        f"{name}({_ints(reversed(kernel))}, {channels[0]} => {channels[1]}, {_activation(name, activation)}; "
        f"{settings}{more}, bias={_bool(bias)})"
    )


def _kernel(name: str, sizes: Any, what: str = "kernel_size") -> tuple[int, ...]:
    if isinstance(sizes, int) or not isinstance(sizes, Sequence) or isinstance(sizes, str):
        raise TypeError(f"{name}: {what} must be one int per spatial axis, such as (3, 3) or (5,), got {sizes!r}; "
                        f"it says how many axes there are")  # fmt: skip
    return per_axis(sizes, len(sizes), f"{name}: {what}", 1)


def _pad(name: str, padding: Any, pad: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> str:
    """Return the `pad` of Flux: 2N ints, the width first, or its rule."""
    if padding is not None and pad is not None:
        raise GeometryError(
            f"{name}: padding={padding!r} and pad={pad!r} both say what is padded; give one: padding as (low, high) "
            f"pairs, the first axis first, or pad as Flux has it"
        )
    axes = len(kernel)
    if isinstance(pad, str):
        if pad != "same":
            raise GeometryError(f'{name}: pad={pad!r}; the only rule is "same", Flux\'s SamePad()')
        return "SamePad()"
    if pad is not None:
        pairs = Padding.from_flux(pad, axes).pairs
    else:
        found = parse(0 if padding is None else padding, axes)
        if isinstance(found, str):
            if found not in ("valid", "causal"):
                raise GeometryError(
                    f"{name}: padding={found!r} depends on the size of the input, which a Flux layer does not know; "
                    f'give Padding.same("tf", input_size, kernel_size, stride, dilation) for your size, or '
                    f'pad="same" for Flux\'s own rule'
                )
            found = apply_rule(found, (1,) * axes, kernel, (1,) * axes, dilation)
        pairs = found
    if any(entry < 0 for pair in pairs for entry in pair):
        raise GeometryError(f"{name}: padding={pairs} is negative, which Flux does not take; crop the input instead")
    return _ints(Padding(pairs).to_flux())


def _positive(name: str, what: str, value: Any) -> int:
    value = as_int(value, f"{name}: {what}")
    if value < 1:
        raise GeometryError(f"{name}: {what} must be at least 1, got {value}")
    return value


def _activation(name: str, activation: str) -> str:
    if activation not in ACTIVATIONS:
        close = difflib.get_close_matches(str(activation), ACTIVATIONS, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(ACTIVATIONS)}"
        raise ValueError(f"{name}: activation={activation!r} is no activation of NNlib's; {hint}")
    return activation


def _connection(name: str, connection: str | Layer) -> str:
    if isinstance(connection, Layer):
        return connection.julia
    if connection not in _CONNECTIONS:
        raise ValueError(f"{name}: connection={connection!r}; there are {', '.join(_CONNECTIONS)}, and a Layer")
    return _CONNECTIONS[connection]


def _listed(name: str, layers: Sequence[Layer]) -> str:
    for place, layer in enumerate(layers):
        if not isinstance(layer, Layer):
            raise TypeError(f"{name}: layer {place} is a {type(layer).__name__}, not a layer of pyflux_pad.flux; "
                            f"Layer(code) makes one of Julia code")  # fmt: skip
    if not layers:
        raise ValueError(f"{name} takes at least one layer")
    return ", ".join(layer.julia for layer in layers)


def _ints(entries: Any) -> str:
    listed = list(entries)
    return f"({', '.join(map(str, listed))}{',' if len(listed) == 1 else ''})"


def _bool(value: bool) -> str:
    return str(bool(value)).lower()


def _float(value: float) -> str:
    return f"Float32({float(value)!r})"
