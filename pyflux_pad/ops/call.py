"""From arguments to a bound call: engine, geometry (cached), plan. What the public functions share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, cast

from .. import derivatives
from ..backends import ArrayEngine, Engine, default_name, resolve, traced
from ..geometry import (
    ConvArguments,
    ConvGeometry,
    ConvPlan,
    PadGeometry,
    Sizes,
    are_exact,
    arguments,
    build_conv_plan,
    cached_conv_geometry,
    cached_conv_plan,
    cached_transposed_geometry,
    conv_geometry,
    pad_geometry,
    plan_conv,
    quick_arguments,
    spatial_ndim,
    transposed_geometry,
)
from ..padding import MODES, GeometryError, Padding, parse_modes, per_axis

Array = Any
Ints = int | Sequence[int]
Modes = str | Sequence[str]
PaddingLike = int | str | Padding | Sequence[int] | Sequence[Sequence[int]]
P = ParamSpec("P")


@dataclass
class Call:
    """A bilinear operator bound to its engine, geometry and arrays: ready to run and to be differentiated."""

    operator: str
    engine: Engine
    geometry: ConvGeometry
    names: tuple[str, str]
    first: Array
    second: Array
    bias: Array | None = None
    plan: ConvPlan | None = None
    explicit: PadGeometry | None = None
    contiguous: bool = True
    out: Array | None = None
    batched: bool = True

    def run(self) -> Array:
        """Return the result."""
        if self.operator == "conv":
            assert self.plan is not None
            out = self.out if self.batched or self.out is None else self.out[None]
            result = self.engine.conv(self.plan, self._padded(), self.second, self.bias, self.contiguous, out)
        elif self.explicit is not None:
            result = self.engine.conv_input(self.geometry, self.first, self.second, None)
            result = self.engine.pad_transpose(self.explicit, result)
            if self.bias is not None:
                result = result + self.bias.reshape(-1, *(1,) * self.geometry.ndim)
        elif self.operator == "conv_input":
            result = self.engine.conv_input(self.geometry, self.first, self.second, self.bias)
        else:
            result = self.engine.conv_weight(self.geometry, self.first, self.second)
        if self.out is not None:
            return self.out
        return result if self.batched else result[0]

    def pullback(self, grad_output: Array) -> dict[str, Array]:
        """Return the gradients by the name of the array argument."""
        if not self.batched:
            grad_output = grad_output[None]
        engine = cast(ArrayEngine, self.engine)
        operands = (self._padded(), self.second)
        cotangent = grad_output
        if self.explicit is not None and self.operator == "conv_input":
            cotangent = engine.pad(self.explicit, grad_output, 0.0)
        gradients = derivatives.pullback(self.operator, operands, cotangent, self._adjoint, engine.conjugate)
        named = dict(zip(self.names, gradients, strict=True))
        if self.explicit is not None and self.operator == "conv":
            named[self.names[0]] = engine.pad_transpose(self.explicit.differentiated(), named[self.names[0]])
        if not self.batched:
            named = {name: grad if name == "weight" else grad[0] for name, grad in named.items()}
        if self.bias is not None:
            named["bias"] = engine.bias_gradient(grad_output)
        return named

    def _padded(self) -> Array:
        """Return the first operand, of a convolution padded by its mode."""
        if self.explicit is None or self.operator != "conv":
            return self.first
        return self.engine.pad(self.explicit, self.first, 0.0)

    def _adjoint(self, operator: str, first: Array, second: Array) -> Array:
        if operator == "conv":
            plan = plan_conv(self.geometry, native=self.engine.native_padding)
            return self.engine.conv(plan, first, second, None, True, None)
        if operator == "conv_input":
            return self.engine.conv_input(self.geometry, first, second, None)
        return self.engine.conv_weight(self.geometry, first, second)


class Bound(Protocol):
    """A function bound to its engine and arguments."""

    engine: Engine

    def run(self) -> Array:
        """Return the result."""
        ...

    def pullback(self, grad_output: Array) -> dict[str, Array]:
        """Return the gradients by the name of the array argument."""
        ...


BUILDERS: dict[Callable[..., Array], tuple[Callable[..., Bound], tuple[str, ...]]] = {}


def public(*arrays: str) -> Callable[[Callable[P, Bound]], Callable[P, Array]]:
    """Make a public function of one that binds a call; `arrays` names its differentiable arguments in order."""

    def decorate(build: Callable[P, Bound]) -> Callable[P, Array]:
        @wraps(build)
        def function(*args: P.args, **kwargs: P.kwargs) -> Array:
            return build(*args, **kwargs).run()

        BUILDERS[function] = build, arrays
        return function

    return decorate


def _arguments(engine: Engine, operation: str, ndim: int, options: dict[str, Any]) -> ConvArguments:
    return (arguments if engine.traced() else quick_arguments)(operation, ndim, **options)


def bind_conv(
    operation: str,
    names: tuple[str, str],
    x: Array,
    weight: Array,
    bias: Array | None,
    backend: str | None,
    contiguous: bool,
    out: Array | None,
    batched: bool = True,
    padding_mode: Modes = "zeros",
    detach_padding: bool = False,
    *,
    stride: Ints,
    padding: PaddingLike,
    dilation: Ints,
    groups: int,
    flip_kernel: bool,
) -> Call:
    """Bind a convolution; a call with the types, shapes and arguments of an earlier one takes its engine and plan."""
    contiguous = bool(contiguous)
    named = _named(names, (x, weight), bias)
    engine = plan = key = None
    if are_exact(stride, padding, dilation, groups, flip_kernel) and not traced():
        key = (
            operation, type(x), getattr(x, "shape", None), getattr(x, "dtype", None), type(weight),
            getattr(weight, "shape", None), type(bias), getattr(x, "device", None), stride, padding, dilation, groups,
            flip_kernel, padding_mode, detach_padding, contiguous, batched, backend, default_name(),
        )  # fmt: skip
        try:
            found = _BOUND.get(key)
        except TypeError:  # a list or a symbolic size, which have no hash
            key = found = None
        if found is not None:  # what may differ from the earlier call is checked again: dtypes and devices
            engine, plans = found
            engine.check(operation, named)
            plan = plans.get(engine.records(x, weight))
    if plan is None:
        engine = resolve(operation, named, backend)
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                   "flip_kernel": flip_kernel}  # fmt: skip
        plan = _plan_conv(operation, engine, x, weight, contiguous, batched, padding_mode, detach_padding, options, key)
    assert engine is not None
    geometry = plan.geometry
    check_bias(operation, bias, geometry.out_channels)
    if out is not None:
        _check_out(operation, engine, out, geometry.output_shape if batched else geometry.output_shape[1:], (x, weight))
    x = x if batched else x[None]
    return Call("conv", engine, geometry, names, x, weight, bias, plan, plan.explicit, contiguous, out, batched)


def _plan_conv(
    operation: str,
    engine: Engine,
    x: Array,
    weight: Array,
    contiguous: bool,
    batched: bool,
    padding_mode: Modes,
    detach_padding: bool,
    options: dict[str, Any],
    key: Any,
) -> ConvPlan:
    """Plan a convolution whose operands are checked, and remember the plan by the key of its call, if it has one."""
    args = _arguments(engine, operation, spatial_ndim(operation, "weight", weight.shape), options)
    modes = conv_modes(operation, padding_mode, len(weight.shape) - 2)
    x_shape = x.shape if batched else (1, *x.shape)
    records, symbolic, tracing = engine.records(x, weight), engine.symbolic(x, weight), engine.traced()
    pairs = not (tracing or engine.native_padding) and engine.takes_dense_pairs(
        str(x.dtype).rpartition(".")[2], str(getattr(x, "device", "cpu"))
    )
    make = build_conv_plan if symbolic or tracing else cached_conv_plan
    plan = make(
        operation, tuple(x_shape), tuple(weight.shape), args, engine.native_padding, engine.itemsize(x),
        records or is_deterministic(), contiguous, symbolic, modes, detach_padding, dense_pairs=pairs,
    )  # fmt: skip
    if key is not None and not symbolic:
        if len(_BOUND) >= _MOST_BOUND:
            _BOUND.clear()
        _BOUND.setdefault(key, (engine, {}))[1][records] = plan
    return plan


def is_deterministic() -> bool:
    """Say whether PYFLUX_PAD_DETERMINISTIC=1 asks for one strategy per geometry, whether a gradient is taken or not."""
    value = os.environ.get("PYFLUX_PAD_DETERMINISTIC", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"the environment variable PYFLUX_PAD_DETERMINISTIC must be 1 or 0, got {value!r}")
    return value == "1"


# What earlier calls bound: types, shapes and arguments -> the engine, and the plan without and with a gradient.
_BOUND: dict[Any, tuple[Engine, dict[bool, ConvPlan]]] = {}
_MOST_BOUND = 1024


def bind_transpose(
    operation: str,
    names: tuple[str, str],
    x: Array,
    weight: Array,
    bias: Array | None,
    output_padding: Ints,
    output_size: Ints | None,
    backend: str | None,
    batched: bool = True,
    padding_mode: Modes = "zeros",
    **options: Any,
) -> Call:
    """Bind a transposed convolution: `conv_input` with `x` in the place of grad_output."""
    engine = resolve(operation, _named(names, (x, weight), bias), backend)
    ndim = spatial_ndim(operation, "weight", weight.shape)
    args = _arguments(engine, operation, ndim, options)
    try:
        extra = per_axis(output_padding, ndim, "output_padding")
        size = None if output_size is None else per_axis(output_size, ndim, "output_size", minimum=1)
    except (GeometryError, TypeError) as error:
        raise type(error)(f"{operation}: {error}") from None
    x = x if batched else x[None]
    plain = not engine.symbolic(x, weight) and not engine.traced()
    build = cached_transposed_geometry if plain else transposed_geometry
    shapes = tuple(x.shape), tuple(weight.shape)
    geometry = build(operation, *shapes, args, extra, size)
    check_bias(operation, bias, geometry.in_channels)
    explicit = None
    if "circular" in parse_modes(padding_mode, ndim, f"{operation}: padding_mode", ("zeros", "circular")):
        geometry, explicit = _circular(operation, shapes, args, padding_mode, geometry, build)
    return Call("conv_input", engine, geometry, names, x, weight, bias, explicit=explicit, batched=batched)


def _circular(
    operation: str,
    shapes: tuple[Sizes, Sizes],
    args: ConvArguments,
    padding_mode: Modes,
    geometry: ConvGeometry,
    build: Callable[..., ConvGeometry],
) -> tuple[ConvGeometry, PadGeometry]:
    """Return the uncropped transposed convolution and the circular padding whose transpose folds its ends back.

    So it is the exact adjoint of a convolution with circular padding.
    """
    modes = parse_modes(padding_mode, geometry.ndim, "padding_mode", ("zeros", "circular"))
    circular = [mode == "circular" for mode in modes]
    declared = geometry.padding if isinstance(args.padding, str) else args.padding
    wrapped = tuple([pair if wraps else (0, 0) for pair, wraps in zip(declared, circular, strict=True)])
    crops = tuple([(0, 0) if wraps else pair for pair, wraps in zip(geometry.padding, circular, strict=True)])
    explicit = pad_geometry(
        operation, geometry.input_size, wrapped, tuple([m if m == "circular" else "constant" for m in modes]), False
    )
    none = (0,) * geometry.ndim
    return build(operation, *shapes, args._replace(padding=crops), none, explicit.output_size), explicit


def bind_adjoint(
    operation: str,
    operator: str,
    x_shape: Sizes,
    weight_shape: Sizes,
    names: tuple[str, str],
    first: Array,
    second: Array,
    backend: str | None,
    batched: bool = True,
    **options: Any,
) -> Call:
    """Bind `conv_input` or `conv_weight`: `first` and `second` are its operands, one of them grad_output."""
    engine = resolve(operation, _named(names, (first, second)), backend)
    args = _arguments(engine, operation, spatial_ndim(operation, "weight", weight_shape), options)
    if not batched:
        x_shape = (1, *x_shape)
        first = first[None]
        second = second if operator == "conv_input" else second[None]
    plain = not engine.symbolic(first, second) and not engine.traced()
    build = cached_conv_geometry if plain and all(type(n) is int for n in (*x_shape, *weight_shape)) else conv_geometry
    geometry = build(operation, tuple(x_shape), tuple(weight_shape), args)
    grad_output = second if operator == "conv_weight" else first
    if tuple(grad_output.shape) != geometry.output_shape:
        raise GeometryError(
            f"{operation}: grad_output must have the shape {geometry.output_shape} of the output, got "
            f"{tuple(grad_output.shape)}"
        )
    return Call(operator, engine, geometry, names, first, second, batched=batched)


def conv_modes(operation: str, padding_mode: Modes, ndim: int) -> tuple[str, ...] | None:
    """Return the padding mode of every axis of a convolution, or None for zeros on all of them."""
    if padding_mode == "zeros":
        return None
    return parse_modes(padding_mode, ndim, f"{operation}: padding_mode", ("zeros", *MODES[1:]))


def _named(names: tuple[str, str], arrays: tuple[Array, Array], bias: Array | None = None) -> dict[str, Array]:
    named = {names[0]: arrays[0], names[1]: arrays[1]}
    if bias is not None:
        named["bias"] = bias
    return named


def array_shape(operation: str, name: str, array: Array) -> Sizes:
    """Return the shape of what should be an array."""
    shape = getattr(array, "shape", None)
    if shape is None:
        raise TypeError(f"{operation}: {name} must be an array, got {type(array).__name__}")
    return shape


def check_bias(operation: str, bias: Array | None, channels: int) -> None:
    """Check that the bias has one entry per output channel."""
    if bias is not None and tuple(bias.shape) != (channels,):
        raise GeometryError(
            f"{operation}: bias must have shape ({channels},), one per output channel, got {tuple(bias.shape)}"
        )


def _check_out(operation: str, engine: Engine, out: Array, shape: Sizes, inputs: tuple[Array, Array]) -> None:
    if not engine.takes_out:
        raise TypeError(
            f"{operation}: out is for NumPy arrays on the NumPy engine and CuPy arrays on their own, not for arrays of "
            f"{engine.family} on {engine.name!r}; leave it out"
        )
    engine.check(operation, {"x": inputs[0], "out": out})
    if tuple(out.shape) != shape:
        raise GeometryError(f"{operation}: out must have the result's shape {shape}, got {tuple(out.shape)}")
    if not getattr(out.flags, "writeable", True) or not out.dtype.isnative:  # CuPy's arrays all are
        raise ValueError(f"{operation}: out must be writable and of native byte order; pass numpy.empty({shape}, ...)")
    if any(cast(ArrayEngine, engine).overlaps(out, array) for array in inputs):
        raise ValueError(f"{operation}: out shares memory with an input, which it would overwrite; pass another array")


def check_rank(operation: str, ndim: int, name: str, shape: Any) -> bool:
    """Check the number of axes as torch does; return whether there is a batch axis."""
    if len(shape) not in (ndim + 1, ndim + 2):
        raise GeometryError(
            f"{operation}: {name} must have {ndim + 2} axes (N, C, *spatial), or {ndim + 1} without batch, "
            f"got {len(shape)}: {tuple(shape)}"
        )
    return len(shape) == ndim + 2


def publish(
    build: Callable[..., Bound], operation: str, general: str, ndim: int, arrays: tuple[str, ...]
) -> Callable[..., Array]:
    """Name and document the 1d, 2d or 3d form of a function, and make it public."""
    build.__name__ = build.__qualname__ = operation
    build.__doc__ = (
        f"Run `{general}` on {ndim} spatial ax{'is' if ndim == 1 else 'es'}, with torch's argument order.\n\n"
        f"Arrays without a batch axis are taken, as torch does. The arguments are explained at `{general}`."
    )
    return public(*arrays)(build)
