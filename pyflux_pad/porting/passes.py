"""What every reader ends with: constants computed, rules resolved to pads, and what belongs together fused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..geometry import arguments, transposed_geometry
from ..padding import GeometryError, Padding
from .arrays.numpy import NumpyArrays
from .fusing import fuse_bias, fuse_crops, fuse_pads
from .graph import Graph, ModelError, Node, Pads, element_count
from .operators import OPERATORS
from .operators.windows import every_axis
from .run import is_float, run_node

_SMALL = 1024
"""The most elements of an array that is computed ahead: sizes, axes and settings, not weights."""
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_VIEWS = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand")


def trained(nodes: Sequence[Node], arrays: Mapping[str, np.ndarray], candidates: Collection[str]) -> frozenset[str]:
    """Return which of the candidates are parameters: floats in the place of a weight, reshaped on the way or not.

    A single number beside an arithmetic operator is a setting.
    """
    places: set[str] = set()
    operands: set[str] = set()
    for node in reversed(nodes):
        found = operands if node.op in _ARITHMETIC else places
        found.update(node.inputs[place] for place in OPERATORS[node.op].parameters if place < len(node.inputs))
        if node.op in _VIEWS:
            for kind in (places, operands):
                if node.outputs[0] in kind:
                    kind.add(node.inputs[0])
    return frozenset(
        name
        for name in candidates
        if is_float(arrays[name]) and (name in places or (name in operands and arrays[name].size > 1))
    )


def tidy(graph: Graph) -> Graph:
    """Compute what depends on constants alone, resolve rules and fuse what belongs together."""
    return fuse_bias(fuse_crops(fuse_pads(resolve_pads(fold_constants(graph)))))


def fold_constants(graph: Graph) -> Graph:
    """Compute the nodes whose inputs are small constants, and the shapes that are known; drop what nothing reads."""
    arrays = dict(graph.arrays)
    nodes = []
    for node in graph.nodes:
        known = _known_shape(graph, node)
        if known is not None:
            arrays[node.outputs[0]] = known
        elif _is_constant(node, arrays, graph.parameters):
            with np.errstate(all="ignore"):
                results = run_node(node, NumpyArrays(None), arrays)
            if any(np.asarray(result).size > _SMALL for result in results):
                nodes.append(node)
            else:
                arrays |= {name: np.asarray(result) for name, result in zip(node.outputs, results, strict=False)
                           if name}  # fmt: skip
        else:
            nodes.append(node)
    return graph.replaced(nodes=tuple(nodes), arrays=arrays).pruned()


def _known_shape(graph: Graph, node: Node) -> np.ndarray | None:
    if node.op != "Shape":
        return None
    shape = graph.value(node.inputs[0]).shape
    part = None if shape is None else shape[node.attributes["start"] : node.attributes["end"]]
    if part is None or element_count(part) is None:
        return None
    return np.array(part, np.int64)


def _is_constant(node: Node, arrays: Mapping[str, np.ndarray], parameters: Collection[str]) -> bool:
    names = [name for name in node.inputs if name]
    if any(name not in arrays or name in parameters or arrays[name].size > _SMALL for name in names):
        return False
    if node.op == "ConstantOfShape":
        return math.prod(int(size) for size in arrays[names[0]]) <= _SMALL
    return not any(isinstance(value, np.ndarray) and value.size > _SMALL for value in node.attributes.values())


def resolve_pads(graph: Graph) -> Graph:
    """Turn rules into numbers wherever the sizes that they depend on are known."""
    return graph.replaced(nodes=tuple(_resolved(graph, node) for node in graph.nodes))


def _resolved(graph: Graph, node: Node) -> Node:
    pads = node.pads
    if pads is None or pads.padding is not None:
        return node
    shape = graph.value(node.inputs[0]).shape
    try:
        if node.op == "Pad":
            return _resolved_pad(graph, node)
        if shape is None or element_count(shape[2:]) is None:
            return node
        size = tuple(map(int, shape[2:]))
        if node.op == "ConvTranspose":
            return _resolved_transpose(node, size)
        given = node.attributes
        rule = {"same_upper": "onnx_upper", "same_lower": "onnx_lower"}[pads.rule]
        padding = Padding.same(rule, size, given["kernel_shape"], given["strides"], given["dilations"])
    except GeometryError as error:
        raise ModelError(f"{node}: {error}") from None
    return replace(node, attributes={**given, "pads": Pads(pads.rule, padding)})


def _resolved_transpose(node: Node, size: tuple[int, ...]) -> Node:
    """Let the geometry of the transposed convolution say what its rule crops on either side."""
    given = node.attributes
    rule = "same" if given["pads"].rule.endswith("upper") else "same_lower"
    kernel = given["kernel_shape"]
    window = arguments(
        "ConvTranspose", len(size), stride=given["strides"], padding=rule, dilation=given["dilations"], groups=1,
        flip_kernel=False,
    )  # fmt: skip
    extra = given["output_padding"] or (0,) * len(size)
    geometry = transposed_geometry(
        "ConvTranspose", (1, 1, *size), (1, 1, *kernel), window, extra, given["output_shape"]
    )
    pads = Pads(given["pads"].rule, Padding(geometry.padding))
    return replace(node, attributes={**given, "pads": pads, "output_shape": None, "output_padding": None})


def _resolved_pad(graph: Graph, node: Node) -> Node:
    """Take the amounts, the value and the axes from the inputs if they are constants."""
    shape = graph.value(node.inputs[0]).shape
    settings = [name for name in node.inputs[1:] if name]
    if shape is None or any(name not in graph.arrays for name in settings):
        return node
    amounts, value, axes = (graph.arrays.get(name) for name in (*node.inputs[1:], "", "")[:3])
    padding = every_axis(amounts, axes, len(shape))
    fill = 0.0 if value is None or value.size == 0 else value.item()
    attributes = {**node.attributes, "pads": Pads("explicit", padding), "constant_value": fill}
    return replace(node, inputs=node.inputs[:1], attributes=attributes)
