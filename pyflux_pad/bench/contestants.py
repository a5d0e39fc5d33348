"""Who does the work: this package's engines, their floors and the peers, each as a function to be timed.

The floor of an engine is its own convolution of the same output with no padding work at all: its input is padded
before the clock starts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends import available_backends
from ..ops import conv, conv_input, conv_weight
from ..padding import Padding
from .cases import Case

Work = Callable[[], Any]


class Unsupported(Exception):
    """A contestant does not do this work; the message says why."""


class Contestant(NamedTuple):
    """Something that is timed.

    Attributes
    ----------
    prepare
        Takes a case and one of the passes, returns the function to be timed; it returns the results, the gradients of
        several arrays as a tuple, the one of the input without the cells of a padding made beforehand.
    floor
        The contestant that does the same work without padding, "" for a floor itself.
    needs
        Import names of the packages it takes.
    """

    name: str
    prepare: Callable[[Case, str], Work]
    floor: str
    needs: tuple[str, ...] = ()

    def missing(self) -> str:
        """Return what stands against it here, "" if nothing does."""
        lacking = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if lacking:
            return f"{', '.join(lacking)} not installed"
        if "juliacall" in self.needs:
            return available_backends()["julia"].reason
        return ""


# --------------------------------------------------------------------------------------------------------------- torch


def _torch_work(case: Case, which: str, function: Callable[..., Any], x: np.ndarray | None = None) -> Work:
    """Return a pass of ``function(x, weight)`` on tensors, with what gradients need recorded beforehand."""
    import torch

    arrays = case.arrays()
    given, weight, gradient = map(torch.from_numpy, (arrays[0] if x is None else x, *arrays[1:]))
    if which == "forward":
        return torch.no_grad()(lambda: function(given, weight))
    wanted = {"input": (given,), "weight": (weight,), "double": (given, weight)}[which]
    for tensor in wanted:
        tensor.requires_grad_()
    y = function(given, weight)
    if which != "double":
        return lambda: torch.autograd.grad(y, wanted, gradient, retain_graph=True)
    gradient.requires_grad_()
    gradients = torch.autograd.grad(y, wanted, gradient, create_graph=True)
    # Those of half the sum of squares of both gradients; cells that were padded beforehand have no part in it.
    cotangents = [part.detach().clone() for part in gradients]
    if x is not None:
        outside = torch.ones(x.shape, dtype=torch.bool)
        outside[inside(case)] = False
        cotangents[0][outside] = 0
    return lambda: torch.autograd.grad(gradients, (*wanted, gradient), cotangents, retain_graph=True)


def _ours(backend: str | None) -> Callable[[Case, str], Work]:
    def prepare(case: Case, which: str) -> Work:
        def function(x: Any, weight: Any) -> Any:
            return conv(x, weight, stride=case.stride, padding=case.padding, dilation=case.dilation,
                        groups=case.groups, backend=backend)  # fmt: skip

        return _torch_work(case, which, function)

    return prepare


def _torch_conv(case: Case, padding: Any = 0) -> Callable[..., Any]:
    import torch.nn.functional as F

    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[case.ndim]
    return lambda x, weight: function(x, weight, None, case.stride, padding, case.dilation, case.groups)


def _torch_floor(case: Case, which: str) -> Work:
    return _torch_work(case, which, _torch_conv(case), _padded(case))


def _torch_pad(case: Case, which: str) -> Work:
    import torch.nn.functional as F

    function = _torch_conv(case)
    pads = Padding(case.padding).to_torch()
    return _torch_work(case, which, lambda x, weight: function(F.pad(x, pads), weight))


def _torch_same(case: Case, which: str) -> Work:
    same = case.stride == 1 and Padding.same("torch", case.x[2:], case.weight[2:], 1, case.dilation)
    if not same or same.pairs != case.padding:
        raise Unsupported("torch's padding='same' is another padding")
    return _torch_work(case, which, _torch_conv(case, "same"))


# --------------------------------------------------------------------------------------------------------------- numpy


def _padded(case: Case) -> np.ndarray:
    return np.pad(case.arrays()[0], ((0, 0), (0, 0), *case.padding))


def _numpy_work(case: Case, which: str, x: np.ndarray, padding: Any, backend: str | None) -> Work:
    _, weight, gradient = case.arrays()
    options: dict[str, Any] = {
        "stride": case.stride, "padding": padding, "dilation": case.dilation, "groups": case.groups, "backend": backend
    }  # fmt: skip
    if which == "forward":
        return lambda: conv(x, weight, **options)
    if which == "input":
        return lambda: conv_input(x.shape, weight, gradient, **options)
    if which == "weight":
        return lambda: conv_weight(x, weight.shape, gradient, **options)
    raise Unsupported("NumPy arrays record nothing to differentiate twice")


def _arrays(backend: str | None) -> Callable[[Case, str], Work]:
    return lambda case, which: _numpy_work(case, which, case.arrays()[0], case.padding, backend)


def _numpy_floor(case: Case, which: str) -> Work:
    return _numpy_work(case, which, _padded(case), 0, "numpy")


_AXES = "abc"  # outputs, one letter per spatial axis
_TAPS = "ijk"


def _einsum(case: Case, which: str) -> Work:
    """Return what one writes with NumPy alone: pad, windows as a view, einsum; the input's gradient adds tap by tap."""
    x, weight, gradient = case.arrays()
    n, g = case.ndim, case.groups
    out, taps = _AXES[:n], _TAPS[:n]
    kernel = weight.reshape(g, -1, *weight.shape[1:])
    output_size, extents = case.geometry.output_size, case.geometry.extent
    rows = gradient.reshape(case.x[0], g, -1, *output_size)
    steps = (..., *[slice(None, None, case.stride)] * n, *[slice(None, None, case.dilation)] * n)

    def windows() -> np.ndarray:
        padded = np.pad(x, ((0, 0), (0, 0), *case.padding))
        view = np.lib.stride_tricks.sliding_window_view(padded, extents, tuple(range(2, 2 + n)))[steps]
        return view.reshape(x.shape[0], g, -1, *view.shape[2:]) if g > 1 else view[:, None]

    def forward() -> np.ndarray:
        y = np.einsum(f"ngm{out}{taps},gom{taps}->ngo{out}", windows(), kernel, optimize=True)
        return y.reshape(case.output_shape)

    def by_weight() -> np.ndarray:
        total = np.einsum(f"ngm{out}{taps},ngo{out}->gom{taps}", windows(), rows, optimize=True)
        return total.reshape(weight.shape)

    def by_input() -> np.ndarray:
        columns = np.einsum(f"ngo{out},gom{taps}->ngm{taps}{out}", rows, kernel, optimize=True)
        columns = columns.reshape(*x.shape[:2], *columns.shape[3:])
        padded = [size + sum(pair) for size, pair in zip(x.shape[2:], case.padding, strict=True)]
        total = np.zeros((*x.shape[:2], *padded), x.dtype)
        for tap in np.ndindex(*weight.shape[2:]):
            places = tuple(
                slice(k * case.dilation, k * case.dilation + (length - 1) * case.stride + 1, case.stride)
                for k, length in zip(tap, output_size, strict=True)
            )
            total[(..., *places)] += columns[(slice(None), slice(None), *tap)]
        return total[inside(case)]

    work = {"forward": forward, "weight": by_weight, "input": by_input}
    if which not in work:
        raise Unsupported("einsum records nothing to differentiate twice")
    return work[which]


# --------------------------------------------------------------------------------------------------------------- peers


def _jax(case: Case, which: str) -> Work:
    import jax  # pyright: ignore[reportMissingImports]  (a peer, in no development environment)

    x, weight, gradient = map(jax.numpy.asarray, case.arrays())

    def function(x: Any, weight: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, weight, (case.stride,) * case.ndim, case.padding, rhs_dilation=(case.dilation,) * case.ndim,
            feature_group_count=case.groups,
        )  # fmt: skip

    def gradients(x: Any, weight: Any, gradient: Any) -> Any:
        return jax.vjp(function, x, weight)[1](gradient)

    def double(x: Any, weight: Any, gradient: Any) -> Any:
        first, pullback = jax.vjp(gradients, x, weight, gradient)
        return pullback(first)

    if which == "forward":
        compiled, operands = jax.jit(function), (x, weight)
    elif which == "double":
        compiled, operands = jax.jit(double), (x, weight, gradient)
    else:
        place = ("input", "weight").index(which)
        compiled, operands = jax.jit(lambda *arrays: gradients(*arrays)[place]), (x, weight, gradient)
    return lambda: jax.block_until_ready(compiled(*operands))


def _onnxruntime(case: Case, which: str) -> Work:
    if which != "forward":
        raise Unsupported("onnxruntime runs models forward")
    import onnx
    import onnxruntime
    import torch

    x, weight, _ = case.arrays()
    node = onnx.helper.make_node(
        "Conv", ["x", "w"], ["y"], strides=[case.stride] * case.ndim, dilations=[case.dilation] * case.ndim,
        pads=Padding(case.padding).to_onnx(), group=case.groups,
    )  # fmt: skip
    values = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape),
              onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, case.output_shape)]  # fmt: skip
    graph = onnx.helper.make_graph([node], "conv", values[:1], values[1:], [onnx.numpy_helper.from_array(weight, "w")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would slow down the others
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": x})


_NNLIB = """
function(x, w, gradient, stride, pads, dilation, groups, which)
    x, w, gradient = map(a -> permutedims(a, ndims(a):-1:1), map(Array, (x, w, gradient)))
    dims = NNlib.DenseConvDims(x, w; stride=Tuple(stride), padding=Tuple(pads), dilation=Tuple(dilation), groups,
                               flipkernel=true)
    work = which == "forward" ? () -> NNlib.conv(x, w, dims) :
           which == "input" ? () -> NNlib.∇conv_data(gradient, w, dims) : () -> NNlib.∇conv_filter(x, gradient, dims)
    result() = permutedims(work(), ndims(x):-1:1)
    return work, result
end
"""


def _nnlib(case: Case, which: str) -> Work:
    if which == "double":
        raise Unsupported("NNlib has no second derivative")
    from ..backends import julia_info

    julia_info()
    import juliacall

    module: Any = juliacall.newmodule("NNlibBench")
    module.seval("import NNlib")
    pads = list(Padding(case.padding).to_flux())
    work, result = module.seval(_NNLIB)(
        *case.arrays(), [case.stride] * case.ndim, pads, [case.dilation] * case.ndim, case.groups, which
    )

    def run() -> Any:
        work()
        return result

    return run


def inside(case: Case) -> tuple[Any, ...]:
    """Return the index of the input within the padded input."""
    return (..., *(slice(low, low + n) for (low, _), n in zip(case.padding, case.x[2:], strict=True)))


def results(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays that a contestant returned."""
    if isinstance(value, (tuple, list)):
        for entry in value:
            yield from results(entry)
    elif hasattr(value, "detach"):
        yield value.detach().numpy()
    else:
        yield np.asarray(value() if callable(value) else value)


CONTESTANTS: Sequence[Contestant] = (
    Contestant("torch floor", _torch_floor, "", ("torch",)),
    Contestant("pyflux_pad on torch", _ours(None), "torch floor", ("torch",)),
    Contestant("F.pad + torch", _torch_pad, "torch floor", ("torch",)),
    Contestant("torch same", _torch_same, "torch floor", ("torch",)),
    Contestant("onnxruntime", _onnxruntime, "torch floor", ("onnxruntime", "onnx", "torch")),
    Contestant("JAX", _jax, "torch floor", ("jax",)),
    Contestant("numpy floor", _numpy_floor, ""),
    Contestant("pyflux_pad on numpy", _arrays("numpy"), "numpy floor"),
    Contestant("np.pad + einsum", _einsum, "numpy floor"),
    Contestant("NNlib", _nnlib, "", ("juliacall",)),
    Contestant("pyflux_pad on julia", _arrays("julia"), "NNlib", ("juliacall",)),
)
