"""A graph at fixed sizes: everything that depends on sizes alone is a constant, and every shape is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import Array, Graph, ModelError, Node, Value, element_count
from ..passes import resolve_pads


@dataclass(frozen=True)
class Fixed:
    """A graph whose shapes are all known, and the run that told them."""

    graph: Graph
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def fixed(graph: Graph, given: Mapping[str, np.ndarray] | None = None) -> Fixed:
    """Run a graph once, on random numbers if nothing is given, and fix what that run shows.

    Raises
    ------
    ModelError
        For an input whose size is open.
    """
    inputs = {value.name: _example(value) for value in graph.inputs} | dict(given or {})
    shapes: dict[str, Value] = {}
    constant = set(graph.arrays) - graph.parameters
    known: dict[str, np.ndarray] = {}
    kept: list[Node] = []

    def observe(node: Node, arrays: Sequence[Array]) -> None:
        is_constant = node.op == "Shape" or all(name in constant for name in node.inputs if name)
        for name, array in zip(node.outputs, arrays, strict=False):
            shapes[name] = Value(name, array.dtype.name, array.shape)
            if is_constant:
                constant.add(name)
                known[name] = array
        if not is_constant:
            kept.append(node)

    outputs = graph.run(inputs, observe=observe)
    result = graph.replaced(
        nodes=tuple(kept),
        arrays={**graph.arrays, **known},
        values=shapes,
        outputs=tuple(replace(shapes.get(value.name, value), name=value.name) for value in graph.outputs),
    )
    return Fixed(resolve_pads(result.pruned()), inputs, outputs)


def _example(value: Value) -> np.ndarray:
    """Return a normal random array; zeros for integers, which are a valid index wherever they are used as one."""
    if value.shape is None or element_count(value.shape) is None:
        raise ModelError(
            f"write_flux: input {value} has open sizes, but reshapes and pads are written as numbers; read the model "
            f"with sizes={{NAME: VALUE}} (--size NAME=VALUE)"
        )
    shape = tuple(map(int, value.shape))
    if value.dtype in ("float16", "float32", "float64"):
        return np.random.default_rng(0).standard_normal(shape).astype(value.dtype)
    return np.zeros(shape, value.dtype)
