"""What a graph's pads amount to: where the sides differ, and which framework's "same" they are."""

from __future__ import annotations

from typing import Any

from ..geometry import arguments, transposed_geometry
from ..padding import SAME_RULES, GeometryError, Padding
from .graph import Graph, Node, element_count, shape_text


def describe(graph: Graph) -> list[dict[str, Any]]:
    """Return a record of plain values for every node: what `Graph` prints, and the judgement of its pads."""
    return [
        {
            "name": node.name,
            "op": node.op,
            "shapes": [shape_text(graph.value(name).shape) for name in node.outputs if name],
            "pads": None if node.pads is None else str(node.pads),
            "asymmetric": is_asymmetric(node),
            "equal_to": same_rules(graph, node) if is_asymmetric(node) else [],
            "parameters": graph.size_of(node),
        }
        for node in graph.nodes
    ]


def is_asymmetric(node: Node) -> bool:
    """Say whether the low and the high side differ somewhere; a rule that is still open may make them differ."""
    pads = node.pads
    return pads is not None and (pads.padding is None or not pads.padding.is_symmetric)


def same_rules(graph: Graph, node: Node) -> list[str]:
    """Return the "same" rules that give the result of a node's pads: the same first window and as many windows."""
    pads, shape = node.pads, graph.value(node.inputs[0]).shape
    size = None if shape is None else shape[2:]
    if pads is None or pads.padding is None or node.op == "Pad" or size is None or element_count(size) is None:
        return []
    given = node.attributes
    sizes = tuple(map(int, size)), given["kernel_shape"], given["strides"], given["dilations"]
    if node.op == "ConvTranspose":
        return [rule for rule in ("same", "same_lower") if _crops(rule, *sizes) == pads.padding.pairs]
    if given.get("ceil_mode"):
        return []
    found = []
    for rule in SAME_RULES:
        try:
            padding = Padding.same(rule, *sizes)
        except GeometryError:
            continue
        if padding == pads.padding or (not given.get("count_include_pad") and _windows(padding, *sizes)
                                       == _windows(pads.padding, *sizes)):  # fmt: skip
            found.append(rule)
    return found


def _windows(padding: Padding, size: Any, kernel: Any, stride: Any, dilation: Any) -> tuple[tuple[int, int], ...]:
    """Return where the first window starts and how many windows there are, per axis."""
    return tuple(
        (low, (n + low + high - d * (k - 1) - 1) // s + 1)
        for (low, high), n, k, s, d in zip(padding, size, kernel, stride, dilation, strict=True)
    )


def _crops(rule: str, size: Any, kernel: Any, stride: Any, dilation: Any) -> tuple[tuple[int, int], ...]:
    window = arguments(
        "ConvTranspose", len(size), stride=stride, padding=rule, dilation=dilation, groups=1, flip_kernel=False
    )
    none = (0,) * len(size)
    return transposed_geometry("ConvTranspose", (1, 1, *size), (1, 1, *kernel), window, none, None).padding
