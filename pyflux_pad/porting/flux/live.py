"""Live Flux models and graphs: a model of Flux's layers becomes a graph, a graph a live model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...backends import julia_info
from ...flux import FluxModel
from ...flux.structure import Structure
from ...padding import Padding
from ..graph import Graph, ModelError, Node, Pads, Value
from ..operators import OPERATORS
from .read import turned
from .write import write_flux


def to_flux(graph: Graph) -> FluxModel:
    """Return a graph as a live model: what `write_flux` writes, loaded."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_flux(graph, folder)
        return FluxModel.from_file(folder / "model.jl")


def read_live(model: FluxModel, input_shape: Sequence[int]) -> Graph:
    """Return the graph of a live model of Flux's own layers, in test mode, for inputs of a shape.

    Raises
    ------
    ModelError
        With every layer that cannot be read, and why.
    """
    structure = model.structure(input_shape)
    reader = _Reader(model.state_dict())
    dtype = next((str(array.dtype) for array in reader.state.values()), "float32")
    x = _Ref("input", tuple(input_shape), dtype)
    y = reader.read(structure, x)
    if reader.problems:
        listed = "".join(f"\n  {problem}" for problem in reader.problems)
        raise ModelError(f"read_flux: {len(reader.problems)} layers cannot be read:{listed}")
    if y.name in reader.arrays or y is x:
        y = reader.node("Identity", [y], y.shape)
    return Graph(
        "flux", (Value("input", dtype, x.shape),), (Value(y.name, dtype, y.shape),), tuple(reader.nodes), reader.arrays,
        frozenset(reader.arrays) & set(model.trained), reader.values,
    ).pruned()  # fmt: skip


@dataclass(frozen=True)
class _Ref:
    """An array of the graph: its name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class _Refused(Exception):
    """Why a layer cannot be read."""


class _Reader:
    """Nodes, arrays and problems so far."""

    def __init__(self, state: dict[str, np.ndarray]) -> None:
        self.state = state
        self.nodes: list[Node] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values: dict[str, Value] = {}
        self.problems: list[str] = []
        self.layer = ""

    def read(self, layer: Structure, x: _Ref) -> _Ref:
        """Add the nodes of a layer; where it cannot be read, note why and go on with an array of its result's shape."""
        self.layer = layer.name or layer.kind
        try:
            if layer.kind not in _LAYERS:
                raise _Refused("no operator of the neutral record is known for it")
            return _LAYERS[layer.kind](self, layer, x)
        except _Refused as problem:
            self.problems.append(f"{layer.name or 'the model'} ({layer.kind}): {problem}")
            return _Ref("", layer.output, x.dtype)

    def node(self, op: str, inputs: Sequence[_Ref | None], shape: Sequence[int], **given: Any) -> _Ref:
        """Add a node of one output and return it."""
        name, taken = f"{self.layer}.{op.lower()}", {node.name for node in self.nodes}
        if name in taken:
            name = next(f"{name}_{count}" for count in range(2, len(taken) + 3) if f"{name}_{count}" not in taken)
        attributes = OPERATORS[op].complete(f"read_flux: {self.layer}", given)
        dtype = next(ref.dtype for ref in inputs if ref is not None)
        self.nodes.append(Node(name, op, tuple(ref.name if ref else "" for ref in inputs), (name,), attributes))
        self.values[name] = Value(name, dtype, tuple(shape))
        return _Ref(name, tuple(shape), dtype)

    def parameter(self, layer: Structure, field: str, turn: bool = False) -> _Ref | None:
        """Return a parameter of a layer under its own name, or None if it has none."""
        name = f"{layer.name}.{field}" if layer.name else field
        if name not in self.state:
            return None
        array = self.state[name]
        self.arrays[name] = np.ascontiguousarray(turned(array)) if turn else array
        return _Ref(name, array.shape, str(array.dtype))

    def constant(self, values: Any, dtype: str) -> _Ref:
        """Return an array that is not trained."""
        array = np.asarray(values, dtype)
        name = f"{self.layer}.constant_{len(self.arrays)}"
        self.arrays[name] = array
        return _Ref(name, array.shape, dtype)

    def activated(self, layer: Structure, x: _Ref) -> _Ref:
        """Add the activation of a layer."""
        return _activation(self, layer.facts["activation"], x)


_Read = Callable[[_Reader, Structure, _Ref], _Ref]


# ---------------------------------------------------------------------------------------------------------- activations


def _activation(r: _Reader, name: str, x: _Ref) -> _Ref:
    if name not in _ACTIVATIONS:
        raise _Refused(f"the activation {name} has no operator in the neutral record")
    return _ACTIVATIONS[name](r, x)


def _single(op: str, **given: Any) -> Callable[[_Reader, _Ref], _Ref]:
    return lambda r, x: r.node(op, [x], x.shape, **given)


def _times(op: str) -> Callable[[_Reader, _Ref], _Ref]:
    return lambda r, x: r.node("Mul", [x, r.node(op, [x], x.shape)], x.shape)


def _between(low: float, high: float) -> Callable[[_Reader, _Ref], _Ref]:
    return lambda r, x: r.node("Clip", [x, r.constant(low, x.dtype), r.constant(high, x.dtype)], x.shape)


def _log_sigmoid(r: _Reader, x: _Ref) -> _Ref:
    soft = r.node("Softplus", [r.node("Neg", [x], x.shape)], x.shape)
    return r.node("Neg", [soft], x.shape)


_ACTIVATIONS: dict[str, Callable[[_Reader, _Ref], _Ref]] = {
    "identity": lambda r, x: x,
    "relu": _single("Relu"),
    "relu6": _between(0, 6),
    "hardtanh": _between(-1, 1),
    "leakyrelu": _single("LeakyRelu", alpha=0.01),
    "elu": _single("Elu", alpha=1.0),
    "celu": _single("Elu", alpha=1.0),
    "selu": _single("Selu"),
    "gelu_tanh": _single("Gelu", approximate="tanh"),
    "gelu_erf": _single("Gelu", approximate="none"),
    "swish": _times("Sigmoid"),
    "lisht": _times("Tanh"),
    "hardswish": _single("HardSwish"),
    "mish": _single("Mish"),
    "softplus": _single("Softplus"),
    "logσ": _log_sigmoid,  # noqa: RUF001
    "tanhshrink": lambda r, x: r.node("Sub", [x, r.node("Tanh", [x], x.shape)], x.shape),
    **dict.fromkeys(("hardσ", "hardsigmoid"), _single("HardSigmoid", alpha=1 / 6, beta=0.5)),  # noqa: RUF001
    **dict.fromkeys(("σ", "sigmoid", "sigmoid_fast"), _single("Sigmoid")),  # noqa: RUF001
    **dict.fromkeys(("tanh", "tanh_fast"), _single("Tanh")),
}
"""NNlib's activations by the names of their functions. Its fast forms are approximations of the same functions."""


# --------------------------------------------------------------------------------------------------------------- layers


def _chain(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    for part in layer.layers:
        x = r.read(part, x)
    return x


def _convolution(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    facts, axes = layer.facts, len(x.shape) - 2
    weight = r.parameter(layer, "weight", turn=layer.kind != "CrossCor")
    assert weight is not None  # every convolution has one
    pairs = Padding.from_flux(facts["pad"], axes).pairs
    if layer.kind == "ConvTranspose":  # cells that outpad adds are crops below zero at the high side
        more = reversed(facts["outpad"])
        pairs = tuple((low, high - added) for (low, high), added in zip(pairs, more, strict=True))
    y = r.node(
        "ConvTranspose" if layer.kind == "ConvTranspose" else "Conv", [x, weight, r.parameter(layer, "bias")],
        layer.output, kernel_shape=weight.shape[2:], pads=Pads.explicit(pairs), strides=_reversed(facts["stride"]),
        dilations=_reversed(facts["dilation"]), group=facts["groups"],
    )  # fmt: skip
    return r.activated(layer, y)


def _reversed(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(sizes))


def _dense(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    weight, bias = r.parameter(layer, "weight"), r.parameter(layer, "bias")
    if len(x.shape) == 2:
        return r.activated(layer, r.node("Gemm", [x, weight, bias], layer.output))
    y = r.node("MatMul", [x, weight], layer.output)
    return r.activated(layer, y if bias is None else r.node("Add", [y, bias], layer.output))


def _affine(r: _Reader, layer: Structure, x: _Ref) -> tuple[_Ref, _Ref]:
    """Return scale and shift per channel."""
    channels = x.shape[1]
    scale, shift = r.parameter(layer, "gamma"), r.parameter(layer, "beta")
    return scale or r.constant(np.ones(channels), x.dtype), shift or r.constant(np.zeros(channels), x.dtype)


def _batch_norm(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    facts, mean, variance = layer.facts, r.parameter(layer, "mean"), r.parameter(layer, "variance")
    if mean is None or variance is None or not facts["track_stats"]:
        raise _Refused("without running statistics it normalises by those of the batch")
    inputs = [x, *_affine(r, layer, x), mean, variance]
    y = r.node("BatchNormalization", inputs, x.shape, epsilon=facts["epsilon"], momentum=1 - facts["momentum"])
    return r.activated(layer, y)


def _group_norm(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    facts = layer.facts
    inputs = [x, *_affine(r, layer, x)]
    y = r.node("GroupNormalization", inputs, x.shape, epsilon=facts["epsilon"], num_groups=facts["groups"])
    return r.activated(layer, y)


def _layer_norm(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    facts = layer.facts
    scale, shift = r.parameter(layer, "diag.scale"), r.parameter(layer, "diag.bias")
    scale = scale or r.constant(np.ones(x.shape[-facts["axes"] :]), x.dtype)
    y = r.node("LayerNormalization", [x, scale, shift], x.shape, axis=-facts["axes"],
               epsilon=_layer_norm_epsilon(facts["epsilon"]))  # fmt: skip
    return r.activated(layer, y)


def _layer_norm_epsilon(epsilon: float) -> float:
    """Return what is added to the variance: up to version 0.16.10 Flux adds the square of what it is given."""
    version = tuple(int(part) for part in julia_info().flux.split("-")[0].split("."))
    return epsilon**2 if version <= (0, 16, 10) else epsilon


def _pool(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    facts = layer.facts
    pads = Pads.explicit(Padding.from_flux(facts["pad"], len(x.shape) - 2).pairs)
    return _window(r, layer, x, _reversed(facts["kernel"]), _reversed(facts["stride"]), pads)


def _adaptive(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    """Equal windows: a step of n / out, and the first window as long as what the others leave."""
    sizes = _reversed(layer.facts["size"])
    steps = tuple(n // out for n, out in zip(x.shape[2:], sizes, strict=True))
    kernel = tuple(n - (out - 1) * step for n, out, step in zip(x.shape[2:], sizes, steps, strict=True))
    return _window(r, layer, x, kernel, steps, Pads.explicit([(0, 0)] * len(sizes)))


def _window(
    r: _Reader, layer: Structure, x: _Ref, kernel: tuple[int, ...], strides: tuple[int, ...], pads: Pads
) -> _Ref:
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": (1,) * len(kernel)}
    if "Max" in layer.kind:
        return r.node("MaxPool", [x], layer.output, **given)
    return r.node("AveragePool", [x], layer.output, count_include_pad=1, **given)


def _upsample(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    sizes = r.constant(layer.output, "int64")
    if layer.facts["mode"] == "nearest":
        rule = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        rule = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    return r.node("Resize", [x, None, None, sizes], layer.output, **rule)


def _pixel_shuffle(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    if len(x.shape) != 4:
        raise _Refused(f"only two spatial axes are in the neutral record, this has {len(x.shape) - 2}")
    return r.node("DepthToSpace", [x], layer.output, blocksize=layer.facts["factor"], mode="CRD")


def _skip(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    y = r.read(layer.layers[0], x)
    return _join(r, layer, [y, x])


def _parallel(r: _Reader, layer: Structure, x: _Ref) -> _Ref:
    return _join(r, layer, [r.read(part, x) for part in layer.layers])


def _join(r: _Reader, layer: Structure, parts: list[_Ref]) -> _Ref:
    r.layer = layer.name or layer.kind
    connection = layer.facts["connection"]
    if connection == "concatenate":
        return r.node("Concat", parts, layer.output, axis=1)
    op = {"add": "Add", "+": "Add", "multiply": "Mul"}.get(connection)
    if op is None:
        raise _Refused(f"its connection {connection} is a function of Julia's; known are add, multiply, concatenate")
    y = parts[0]
    for part in parts[1:]:
        y = r.node(op, [y, part], layer.output)
    return y


_LAYERS: dict[str, _Read] = {
    "Chain": _chain, "SkipConnection": _skip, "Parallel": _parallel, "Conv": _convolution, "CrossCor": _convolution,
    "ConvTranspose": _convolution, "Dense": _dense, "BatchNorm": _batch_norm, "GroupNorm": _group_norm,
    "LayerNorm": _layer_norm, "Dropout": lambda r, layer, x: x, "MaxPool": _pool, "MeanPool": _pool,
    "AdaptiveMaxPool": _adaptive, "AdaptiveMeanPool": _adaptive,
    "GlobalMaxPool": lambda r, layer, x: r.node("GlobalMaxPool", [x], layer.output),
    "GlobalMeanPool": lambda r, layer, x: r.node("GlobalAveragePool", [x], layer.output),
    "Upsample": _upsample, "PixelShuffle": _pixel_shuffle,
    "flatten": lambda r, layer, x: r.node("Reshape", [x, r.constant((x.shape[0], math.prod(x.shape[1:])), "int64")],
                                          layer.output),
    "softmax": lambda r, layer, x: r.node("Softmax", [x], x.shape, axis=-1),
    "logsoftmax": lambda r, layer, x: r.node("LogSoftmax", [x], x.shape, axis=-1),
    **{name: lambda r, layer, x: _activation(r, layer.kind, x) for name in _ACTIVATIONS},
}  # fmt: skip
"""Kinds of layers, functions among them, and what reads them."""
