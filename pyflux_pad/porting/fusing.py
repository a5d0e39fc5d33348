"""Rewritings that make one node of several and change no result: pads, crops, biases, and on request normalisations."""

from __future__ import annotations

import collections
import math
from dataclasses import replace
from typing import Any

import numpy as np

from .graph import Graph, Node, Pads


def fuse_pads(graph: Graph) -> Graph:
    """Make every Pad part of the convolutions and pools that read it, where that changes no result.

    Zeros go into a convolution, -inf into a maximum, zeros into an average that counts them. A Pad that something
    else reads too stays for that.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    nodes = []
    for node in graph.nodes:
        before = makers.get(node.inputs[0]) if node.inputs else None
        fused = None if before is None or before.op != "Pad" else _fused(before, node)
        nodes.append(fused or node)
    return graph.replaced(nodes=tuple(nodes)).pruned()


def _fused(pad: Node, node: Node) -> Node | None:
    """Return the node with the pads of the Pad in front of it, or None where that is not exact."""
    first, second = pad.pads, node.pads
    given = node.attributes
    if node.op not in ("Conv", "MaxPool", "AveragePool") or pad.attributes["mode"] != "constant":
        return None
    if first is None or second is None or first.padding is None or second.padding is None or given.get("ceil_mode"):
        return None
    batch_and_channels, spatial = first.padding.pairs[:2], first.padding.pairs[2:]
    if any(pair != (0, 0) for pair in batch_and_channels):
        return None
    own = second.padding.pairs
    sides = [(a, b) for outer, inner in zip(spatial, own, strict=True) for a, b in zip(outer, inner, strict=True)]
    # What is cropped first and padded then, or the other way round, is not one amount.
    if any(a * b < 0 for a, b in sides):
        return None
    value = pad.attributes["constant_value"]
    changes: dict[str, Any] = {}
    if node.op == "MaxPool":
        if len(node.outputs) > 1 or (value != -math.inf and any(a > 0 for a, _ in sides)):
            return None
    elif value != 0:
        return None
    elif node.op == "AveragePool" and any(a > 0 for a, _ in sides):
        if not given["count_include_pad"] and any(b > 0 for _, b in sides):
            return None
        changes["count_include_pad"] = 1
    pairs = tuple((a[0] + b[0], a[1] + b[1]) for a, b in zip(spatial, own, strict=True))
    changes["pads"] = Pads.explicit(pairs)
    return replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attributes={**given, **changes})


def fuse_crops(graph: Graph) -> Graph:
    """Make a Slice of a convolution's result part of its pads: what is cut off is then never computed.

    This package's own layers are exported so where a crop is the cheapest way to pad one side more than the other.
    """
    readers = _readers(graph)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    fused: dict[str, Node | None] = {}
    for node in graph.nodes:
        before = makers.get(node.inputs[0]) if node.op == "Slice" else None
        cropped = None if before is None or readers[node.inputs[0]] > 1 else _cropped(graph, before, node)
        if cropped is not None:
            makers[node.outputs[0]] = fused[cropped.name] = cropped
            fused[node.name] = None
    nodes = [fused.get(node.name, node) for node in graph.nodes]
    return graph.replaced(nodes=tuple(node for node in nodes if node is not None))


def _cropped(graph: Graph, conv: Node, crop: Node) -> Node | None:
    """Return the convolution of fewer outputs, or None where the Slice does something else."""
    pads, given = conv.pads, conv.attributes
    shape, result = (graph.value(name).shape for name in (conv.inputs[0], conv.outputs[0]))
    if conv.op not in ("Conv", "ConvTranspose") or pads is None or pads.padding is None:
        return None
    if shape is None or result is None or any(name not in graph.arrays for name in crop.inputs[1:]):
        return None
    sizes = *shape[2:], *result[2:]
    if not all(isinstance(size, int) for size in sizes) or len(crop.inputs) < 4:
        return None
    starts, ends, axes = (graph.arrays[name] for name in crop.inputs[1:4])
    steps = graph.arrays[crop.inputs[4]] if len(crop.inputs) > 4 else np.ones(len(axes))
    if any(step != 1 for step in steps) or any(axis % len(shape) < 2 for axis in axes):
        return None
    pairs = list(pads.padding.pairs)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        place = int(axis) % len(shape) - 2
        n, out = int(shape[place + 2]), int(result[place + 2])
        first, stop, _ = slice(int(start), int(end)).indices(out)
        if stop <= first:
            return None
        low, stride = pairs[place][0], given["strides"][place]
        extent = given["dilations"][place] * (given["kernel_shape"][place] - 1) + 1
        if conv.op == "Conv":
            low -= first * stride
            pairs[place] = low, (stop - first - 1) * stride + extent - n - low
        else:
            low += first
            pairs[place] = low, (n - 1) * stride + extent - low - (stop - first)
    return replace(conv, outputs=crop.outputs, attributes={**given, "pads": Pads.explicit(pairs)})


def fuse_bias(graph: Graph) -> Graph:
    """Make a vector that is added to every channel of a convolution without bias its bias."""
    readers = _readers(graph)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    fused: dict[str, Node | None] = {}
    for node in graph.nodes:
        if node.op != "Add" or any(name not in makers for name in node.inputs):
            continue
        conv, view = (makers[name] for name in node.inputs)
        if conv.op not in ("Conv", "ConvTranspose") or len(conv.inputs) > 2 or readers[conv.outputs[0]] > 1:
            continue
        bias = graph.arrays.get(view.inputs[0])
        ones = (1,) * len(conv.attributes["kernel_shape"])
        if view.op == "Reshape" and bias is not None and graph.value(view.outputs[0]).shape == (*bias.shape, *ones):
            fused[conv.name] = replace(conv, inputs=(*conv.inputs, view.inputs[0]), outputs=node.outputs)
            fused[node.name] = None
    nodes = [fused.get(node.name, node) for node in graph.nodes]
    return graph.replaced(nodes=tuple(node for node in nodes if node is not None)).pruned()


def _readers(graph: Graph) -> collections.Counter[str]:
    """Return how often every array is read, by nodes and as an output."""
    readers = collections.Counter(name for node in graph.nodes for name in node.inputs)
    readers.update(value.name for value in graph.outputs)
    return readers


def fold_bn(graph: Graph) -> Graph:
    """Multiply every BatchNormalization into the convolution before it, where nothing else reads that one's result.

    Results change by rounding only. The convolution's new weights have the old names; a missing bias is added.
    """
    readers = _readers(graph)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    arrays, parameters = dict(graph.arrays), set(graph.parameters)
    replaced: dict[str, Node | None] = {}
    for node in graph.nodes:
        before = makers.get(node.inputs[0]) if node.op == "BatchNormalization" else None
        if before is None or before.op not in ("Conv", "ConvTranspose") or node.attributes["training_mode"]:
            continue
        x, weight_name, *rest = before.inputs
        bias_name = rest[0] if rest else f"{weight_name}.bias"
        shared = readers[before.outputs[0]] > 1 or any(readers[name] > 1 for name in (weight_name, *rest))
        constant = all(name in arrays for name in (weight_name, *rest, *node.inputs[1:]))
        if shared or not constant or (bias_name in arrays and not rest):
            continue
        scale, shift, mean, variance = (arrays[name].astype(np.float64) for name in node.inputs[1:])
        factor = scale / np.sqrt(variance + node.attributes["epsilon"])
        weight, bias = arrays[weight_name], arrays[bias_name] if rest else 0.0
        arrays[weight_name] = (weight * _per_output(before, weight, factor)).astype(weight.dtype)
        arrays[bias_name] = ((bias - mean) * factor + shift).astype(weight.dtype)
        if weight_name in parameters:
            parameters.add(bias_name)
        replaced[before.name] = replace(before, inputs=(x, weight_name, bias_name), outputs=node.outputs[:1])
        replaced[node.name] = None
    nodes = [replaced.get(node.name, node) for node in graph.nodes]
    return graph.replaced(
        nodes=tuple(node for node in nodes if node is not None), arrays=arrays, parameters=frozenset(parameters)
    )


def _per_output(node: Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Shape one factor per output channel so that it broadcasts over the weight."""
    ones = (1,) * (weight.ndim - 2)
    if node.op == "Conv":
        return factor.reshape(-1, 1, *ones)
    group = node.attributes["group"]
    return np.repeat(factor.reshape(group, -1), weight.shape[0] // group, axis=0).reshape(*weight.shape[:2], *ones)
