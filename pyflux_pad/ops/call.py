"""From arguments to a bound call: engine, geometry (cached), plan. What the public functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, cast

from .. import derivatives
from ..backends import ArrayEngine, Engine, resolve
from ..geometry import (
    ConvGeometry,
    ConvPlan,
    Sizes,
    arguments,
    build_conv_plan,
    cached_conv_geometry,
    cached_conv_plan,
    cached_transposed_geometry,
    conv_geometry,
    plan_conv,
    spatial_ndim,
    transposed_geometry,
)
from ..padding import GeometryError, Padding, per_axis

Array = Any
Ints = int | Sequence[int]
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
    contiguous: bool = True
    out: Array | None = None
    batched: bool = True

    def run(self) -> Array:
        """Return the result."""
        if self.operator == "conv":
            assert self.plan is not None
            out = self.out if self.batched or self.out is None else self.out[None]
            result = self.engine.conv(self.plan, self.first, self.second, self.bias, self.contiguous, out)
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
        operands = (self.first, self.second)
        gradients = derivatives.pullback(self.operator, operands, grad_output, self._adjoint, engine.conjugate)
        named = dict(zip(self.names, gradients, strict=True))
        if not self.batched:
            named = {name: grad if name == "weight" else grad[0] for name, grad in named.items()}
        if self.bias is not None:
            named["bias"] = engine.bias_gradient(grad_output)
        return named

    def _adjoint(self, operator: str, first: Array, second: Array) -> Array:
        if operator == "conv":
            plan = plan_conv(self.geometry, native=self.engine.native_padding)
            return self.engine.conv(plan, first, second, None, True, None)
        if operator == "conv_input":
            return self.engine.conv_input(self.geometry, first, second, None)
        return self.engine.conv_weight(self.geometry, first, second)


BUILDERS: dict[Callable[..., Array], tuple[Callable[..., Call], tuple[str, ...]]] = {}


def public(*arrays: str) -> Callable[[Callable[P, Call]], Callable[P, Array]]:
    """Make a public function of one that binds a `Call`; `arrays` names its differentiable arguments in order."""

    def decorate(build: Callable[P, Call]) -> Callable[P, Array]:
        @wraps(build)
        def function(*args: P.args, **kwargs: P.kwargs) -> Array:
            return build(*args, **kwargs).run()

        BUILDERS[function] = build, arrays
        return function

    return decorate


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
    **options: Any,
) -> Call:
    """Bind a convolution; the plan is cached by shapes and arguments."""
    engine = resolve(operation, _named(names, (x, weight), bias), backend)
    args = arguments(operation, spatial_ndim(operation, "weight", weight.shape), **options)
    x_shape = x.shape if batched else (1, *x.shape)
    choice = engine.native_padding, engine.itemsize(x), engine.records(x, weight), bool(contiguous)
    symbolic = engine.symbolic(x, weight)
    make = build_conv_plan if symbolic or engine.traced() else cached_conv_plan
    plan = make(operation, tuple(x_shape), tuple(weight.shape), args, *choice, symbolic)
    geometry = plan.geometry
    check_bias(operation, bias, geometry.out_channels)
    if out is not None:
        _check_out(operation, engine, out, geometry.output_shape if batched else geometry.output_shape[1:], (x, weight))
    x = x if batched else x[None]
    return Call("conv", engine, geometry, names, x, weight, bias, plan, bool(contiguous), out, batched)


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
    **options: Any,
) -> Call:
    """Bind a transposed convolution: `conv_input` with `x` in the place of grad_output."""
    engine = resolve(operation, _named(names, (x, weight), bias), backend)
    ndim = spatial_ndim(operation, "weight", weight.shape)
    args = arguments(operation, ndim, **options)
    try:
        extra = per_axis(output_padding, ndim, "output_padding")
        size = None if output_size is None else per_axis(output_size, ndim, "output_size", minimum=1)
    except (GeometryError, TypeError) as error:
        raise type(error)(f"{operation}: {error}") from None
    x = x if batched else x[None]
    plain = not engine.symbolic(x, weight) and not engine.traced()
    build = cached_transposed_geometry if plain else transposed_geometry
    geometry = build(operation, tuple(x.shape), tuple(weight.shape), args, extra, size)
    check_bias(operation, bias, geometry.in_channels)
    return Call("conv_input", engine, geometry, names, x, weight, bias, batched=batched)


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
    args = arguments(operation, spatial_ndim(operation, "weight", weight_shape), **options)
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


def _named(names: tuple[str, str], arrays: tuple[Array, Array], bias: Array | None = None) -> dict[str, Array]:
    named = dict(zip(names, arrays, strict=True))
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
            f"{operation}: out is for NumPy arrays on the NumPy engine, not for arrays of {engine.family} on "
            f"{engine.name!r}; leave it out"
        )
    engine.check(operation, {"x": inputs[0], "out": out})
    if tuple(out.shape) != shape:
        raise GeometryError(f"{operation}: out must have the result's shape {shape}, got {tuple(out.shape)}")
    if not out.flags.writeable or not out.dtype.isnative:
        raise ValueError(f"{operation}: out must be writable and of native byte order; pass numpy.empty({shape}, ...)")
    if any(cast(ArrayEngine, engine).overlaps(out, array) for array in inputs):
        raise ValueError(f"{operation}: out shares memory with an input, which it would overwrite; pass another array")
