"""torch.library operators that carry a foreign engine (numpy, julia or cupy) under torch.

``pyflux_pad::conv``, ``conv_input`` and ``conv_weight`` are bilinear and closed under differentiation
(`pyflux_pad.derivatives`). Each is registered with kernels, a shape rule, a vmap rule, an autocast rule and an autograd
kernel that calls one ``autograd.Function``. In eager mode the front doors call that function (torch.func and forward
mode need it); under compile and export they call the operator, so that it stays one node of the graph.

The operators always have three spatial axes and take flat integers, never lists: a schema of ints is the one that
every part of torch handles, symbolic sizes included.

Known limits, all of them loud: ``torch.compile(fullgraph=True)`` of torch.func transforms, operators called directly
inside torch.func, a double backward through a region compiled by aot_autograd.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._C._functorch import TransformType, get_interpreter_stack  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from ..derivatives import TABLE, pullback, tangent
from ..geometry import ConvGeometry, ConvPlan, plan_conv
from . import Engine, get
from .torch import TorchEngine, autocast, keep, prepare

Array = Any

_NAMESPACE = "pyflux_pad"
_SIGNATURE = (
    "SymInt lo0, SymInt hi0, SymInt lo1, SymInt hi1, SymInt lo2, SymInt hi2, "
    "int s0, int s1, int s2, int d0, int d1, int d2, int groups, bool flip_kernel, str backend"
)
_INTEGERS = 15
"""Arguments in `_SIGNATURE`; sizes follow them."""
_SCHEMAS = {
    "conv": f"(Tensor x, Tensor weight, {_SIGNATURE}) -> Tensor",
    "conv_input": f"(Tensor grad_output, Tensor weight, {_SIGNATURE}, SymInt n0, SymInt n1, SymInt n2) -> Tensor",
    "conv_weight": f"(Tensor x, Tensor grad_output, {_SIGNATURE}, SymInt k0, SymInt k1, SymInt k2) -> Tensor",
}

_library = torch.library.Library(_NAMESPACE, "DEF")  # registrations live as long as this object
_operators = getattr(torch.ops, _NAMESPACE)


# ---------------------------------------------------------------------- geometry from the flat arguments


def _sizes(name: str, geometry: ConvGeometry) -> tuple[int, ...]:
    """Return the sizes that follow the integers of `_SIGNATURE`: what the operands' shapes do not tell."""
    return {"conv": (), "conv_input": geometry.input_size, "conv_weight": geometry.kernel_size}[name]


def _geometry(name: str, first: tuple[int, ...], second: tuple[int, ...], flat: tuple[Any, ...]) -> ConvGeometry:
    """Return the geometry of an operator from the shapes of its operands and its flat arguments; nothing is checked."""
    pads, stride, dilation, groups, flip = flat[:6], flat[6:9], flat[9:12], flat[12], flat[13]
    padding = ((pads[0], pads[1]), (pads[2], pads[3]), (pads[4], pads[5]))
    sizes = tuple(flat[_INTEGERS:])
    if name == "conv_weight":
        kernel, outputs, out_channels, in_channels = sizes, tuple(second[2:]), second[1], first[1]
    else:
        kernel, out_channels, in_channels = tuple(second[2:]), second[0], second[1] * groups
        outputs = tuple(first[2:])
    inputs = sizes if name == "conv_input" else tuple(first[2:])
    if name == "conv":
        outputs = tuple(
            [
                (n + low + high - d * (k - 1) - 1) // s + 1
                for n, k, s, d, (low, high) in zip(inputs, kernel, stride, dilation, padding, strict=True)
            ]
        )
    return ConvGeometry(
        first[0], in_channels, out_channels, groups, inputs, kernel, outputs, stride, dilation, padding, flip
    )


def _result_shape(name: str, geometry: ConvGeometry) -> tuple[int, ...]:
    return {
        "conv": geometry.output_shape,
        "conv_input": geometry.input_shape,
        "conv_weight": geometry.weight_shape,
    }[name]


# ---------------------------------------------------------------------- kernels, shapes, batches


def _on_host(tensor: torch.Tensor) -> Array:
    """Return a NumPy array of the tensor's values, on its own memory where it is dense; bfloat16 becomes float32."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _on_cupy(engine: Any, name: str, plan: ConvPlan, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Compute on CuPy arrays of the tensors' own memory, on torch's stream: nothing waits, nothing is reused early."""
    from .cupy.bridge import on_torchs_stream

    with on_torchs_stream(engine.device, torch, first.device):
        arrays = [engine.xp.from_dlpack(tensor.detach().resolve_conj().resolve_neg()) for tensor in (first, second)]
        # The shape rule promises a dense result.
        return torch.from_dlpack(_computed(engine, name, plan, *arrays)).contiguous()


def _computed(engine: Engine, name: str, plan: ConvPlan, first: Array, second: Array) -> Array:
    """Return an operator's result on arrays of the engine's own library."""
    if name == "conv":
        return engine.conv(plan, first, second, None, True, None)
    if name == "conv_input":
        return engine.conv_input(plan.geometry, first, second, None)
    return engine.conv_weight(plan.geometry, first, second)


def _plan(name: str, first: tuple[int, ...], second: tuple[int, ...], flat: tuple[Any, ...]) -> ConvPlan:
    """Return the plan of a call, whose sizes are plain ints where a kernel runs."""
    return plan_conv(_geometry(name, first, second, flat), native=True)


_cached_plan = lru_cache(maxsize=1024)(_plan)


def _kernel(name: str) -> Callable[..., torch.Tensor]:
    def run(first: torch.Tensor, second: torch.Tensor, *flat: Any) -> torch.Tensor:
        if first.dtype != second.dtype:
            raise TypeError(f"pyflux_pad::{name}: {first.dtype} and {second.dtype} are mixed; convert one of them")
        # torch.compile reads kernels too where a transform breaks its graph, and cannot see through a cache.
        find = _plan if torch.compiler.is_compiling() else _cached_plan
        plan = find(name, first.shape, second.shape, flat)
        engine = get(flat[_INTEGERS - 1])
        if engine.family == "cupy":
            return _on_cupy(engine, name, plan, first, second)
        tensor = torch.from_numpy(_computed(engine, name, plan, _on_host(first), _on_host(second)))
        return tensor if tensor.dtype == first.dtype else tensor.to(first.dtype)

    return run


def _fake(name: str) -> Callable[..., torch.Tensor]:
    def run(first: torch.Tensor, second: torch.Tensor, *flat: Any) -> torch.Tensor:
        return first.new_empty(_result_shape(name, _geometry(name, first.shape, second.shape, flat)))

    return run


def _vmap(name: str) -> Callable[..., tuple[torch.Tensor, int]]:
    """Fold a batch of x or grad_output into N; every other batch becomes groups, whose weights differ."""
    second_axis, result_axis = {"conv": (0, 1), "conv_input": (0, 1), "conv_weight": (1, 0)}[name]

    def rule(
        info: Any, in_dims: tuple[int | None, ...], first: torch.Tensor, second: torch.Tensor, *flat: Any
    ) -> tuple[torch.Tensor, int]:
        size, axis = info.batch_size, 0
        if in_dims[1] is None and name != "conv_weight":
            first = _fold(first, in_dims[0], 0, size)
        else:
            axis = result_axis
            first, second = _fold(first, in_dims[0], 1, size), _fold(second, in_dims[1], second_axis, size)
            flat = (*flat[:12], flat[12] * size, *flat[13:])
        result = getattr(_operators, name)(first, second, *flat)
        return result.unflatten(axis, (size, result.shape[axis] // size)), axis

    return rule


def _fold(tensor: torch.Tensor, dim: int | None, axis: int, size: int) -> torch.Tensor:
    """Merge the batch at `dim` into `axis`, outermost; a tensor without one is repeated."""
    if dim is None:
        tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], size, *tensor.shape[axis:])
    else:
        tensor = tensor.movedim(dim, axis)
    return tensor.flatten(axis, axis + 1)


# ---------------------------------------------------------------------- derivatives and autocast


class _Integers:
    """The flat arguments of an operator as one: autograd.Function takes a microsecond or more for every argument.

    Not a tuple, which functorch would take apart and could not put together again.
    """

    __slots__ = ("flat",)

    def __init__(self, flat: tuple[Any, ...]) -> None:
        self.flat = flat


def _function(name: str) -> type[torch.autograd.Function]:
    class Operator(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(first: torch.Tensor, second: torch.Tensor, integers: _Integers) -> torch.Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                return getattr(_operators, name)(first, second, *integers.flat)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            first, second, integers = inputs
            ctx.save_for_backward(first, second)
            ctx.save_for_forward(first, second)
            ctx.flat = integers.flat

        @staticmethod
        def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[Any, ...]:
            saved = ctx.saved_tensors  # read once: checkpointing unpacks them anew each time
            call, needed = _with_geometry(saved, ctx.flat), ctx.needs_input_grad[:2]
            gradients = pullback(name, saved, grad_outputs[0], call, _conjugate, needed)
            return *gradients, None

        @staticmethod
        def jvp(ctx: Any, *grad_inputs: torch.Tensor | None) -> torch.Tensor:
            saved, tangents, levels = ctx.saved_tensors, grad_inputs[:2], _levels()
            call = _with_geometry(saved, ctx.flat)
            if TransformType.Jvp not in levels or TransformType.Vmap in levels:
                return tangent(name, saved, tangents, call)
            # torch runs this rule with forward mode off, which would drop the tangents of an outer forward mode.
            with forward_ad._set_fwd_grad_enabled(True):
                first, second = (forward_ad.unpack_dual(tensor).primal for tensor in saved)
                return tangent(name, (first, second), tangents, call)

    def _with_geometry(saved: tuple[Array, Array], flat: tuple[Any, ...]) -> Callable[[str, Array, Array], Array]:
        first, second = saved
        geometry, integers = _geometry(name, first.shape, second.shape, flat), flat[:_INTEGERS]
        return lambda other, a, b: operator(other, a, b, *integers, *_sizes(other, geometry))

    # torch asks for the signature at every call; inspect takes this one instead of making it anew.
    Operator.forward.__signature__ = inspect.signature(Operator.forward)  # type: ignore[attr-defined]
    Operator.__name__ = Operator.__qualname__ = name
    return Operator


def _conjugate(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.conj() if tensor.is_complex() else tensor


def _autocast_kernel(name: str, device: str, key: str) -> Callable[..., torch.Tensor]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def run(first: torch.Tensor, second: torch.Tensor, *flat: Any) -> torch.Tensor:
        first, second = autocast(device, first, second)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return getattr(_operators, name)(first, second, *flat)

    return run


def _levels() -> list[Any]:
    """Return the transforms of torch.func that are at work, outermost first."""
    return [interpreter.key() for interpreter in get_interpreter_stack() or ()]


def _refuse_nested_forward_mode(name: str) -> None:
    """Raise where torch would lose the outer tangent without a word: forward over forward mode, vectorised."""
    levels = _levels()
    if levels.count(TransformType.Jvp) > 1 and TransformType.Vmap in levels:
        raise RuntimeError(
            f"pyflux_pad::{name}: torch cannot vectorise forward mode over forward mode (jacfwd of jacfwd) through an "
            f"autograd.Function; take jacrev or hessian, or nest torch.func.jvp without vmap"
        )


def operator(name: str, first: torch.Tensor, second: torch.Tensor, *flat: Any) -> torch.Tensor:
    """Front door of an operator: the autograd function in eager mode, one graph node under compile and export."""
    if torch.compiler.is_compiling():
        return getattr(_operators, name)(first, second, *flat)
    _refuse_nested_forward_mode(name)
    first, second = autocast(first.device.type, first, second)
    return _FUNCTIONS[name].apply(first, second, _Integers(flat))


_FUNCTIONS = {name: _function(name) for name in TABLE}


def _register(name: str) -> None:
    _library.define(f"{name}{_SCHEMAS[name]}", tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        _library.impl(name, _kernel(name), device)
    _library.impl(name, lambda a, b, *flat: _FUNCTIONS[name].apply(a, b, _Integers(flat)), "Autograd")
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        _library.impl(name, _autocast_kernel(name, device, key), key)
    torch.library.register_fake(f"{_NAMESPACE}::{name}", _fake(name), lib=_library)
    torch.library.register_vmap(f"{_NAMESPACE}::{name}", _vmap(name), lib=_library)


for _name in TABLE:
    _register(_name)


# ---------------------------------------------------------------------- the engine


_DEVICES = {"cpu": "the CPU", "cuda": "a GPU"}


class CarriedEngine(TorchEngine):
    """torch tensors on an engine that computes on NumPy or CuPy arrays, with every derivative."""

    native_padding = True

    def __init__(self, name: str, family: str) -> None:
        self.name, self.device = name, "cuda" if family == "cupy" else "cpu"

    def check(self, operation: str, arrays: dict[str, Array]) -> None:
        """Raise TypeError for mixtures, and for tensors that are not where the engine computes."""
        super().check(operation, arrays)
        for name, array in arrays.items():
            if array.device.type not in (self.device, "meta"):
                move = f"{name}.{self.device}()"
                raise TypeError(
                    f"{operation}: backend {self.name!r} computes on {_DEVICES[self.device]}, but {name} is on "
                    f"{array.device}; move it, {move}"
                )

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
        native = tuple([axis.native for axis in plan.axes])
        y = self._run("conv", plan.geometry, native, prepare(plan, x), weight)
        return _add(keep(plan, y, contiguous) if plan.keeps else y, bias)

    def conv_input(self, geometry: ConvGeometry, grad_output: Array, weight: Array, bias: Array | None = None) -> Array:
        """Return the transpose by the input."""
        return _add(self._run("conv_input", geometry, geometry.padding, grad_output, weight), bias)

    def conv_weight(self, geometry: ConvGeometry, x: Array, grad_output: Array) -> Array:
        """Return the transpose by the weight."""
        return self._run("conv_weight", geometry, geometry.padding, x, grad_output)

    def _run(self, name: str, geometry: ConvGeometry, padding: tuple[Any, ...], first: Array, second: Array) -> Array:
        """Call an operator with the spatial axes lifted to three."""
        missing = 3 - geometry.ndim
        pads = [entry for pair in padding for entry in pair]
        ones, sizes = (1,) * missing, _sizes(name, geometry)
        flat = [
            *(0,) * (2 * missing), *pads, *ones, *geometry.stride, *ones, *geometry.dilation,
            geometry.groups, geometry.flip_kernel, self.name, *(ones if sizes else ()), *sizes,
        ]  # fmt: skip
        for _ in range(missing):
            first, second = first.unsqueeze(2), second.unsqueeze(2)
        result = operator(name, first, second, *flat)
        for _ in range(missing):
            result = result.squeeze(2)
        return result


def _add(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, *(1,) * (y.ndim - 2))
