"""Running a graph: one node after the other, forgetting every array after its last use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import BackendUnavailable, family_of, get, known
from .arrays import Arrays
from .arrays.numpy import NumpyArrays
from .graph import Array, Graph, ModelError, Node, Value, shape_text
from .operators import OPERATORS

Observer = Callable[[Node, Sequence[Array]], None]


def run(
    graph: Graph, inputs: Mapping[str, Array], backend: str | None = None, observe: Observer | None = None
) -> dict[str, Array]:
    """Run a graph; see `Graph.run`."""
    family = _family(graph, inputs)
    if backend is not None:
        get(known(backend, f"{graph.name}: backend"))
    check_inputs(graph, inputs)
    if family == "numpy" and backend != "torch":
        with np.errstate(all="ignore"):  # as on the other engines: infinities and NaN speak for themselves
            return execute(graph, NumpyArrays(backend), {**graph.arrays, **inputs}, observe)
    import torch

    from .arrays.torch import TorchArrays, as_array, as_tensor

    if family == "torch":
        device = next(iter(inputs.values())).device
        return execute(graph, TorchArrays(backend), {**tensors(graph, device), **inputs}, observe, as_tensor)
    given = {name: as_tensor(array) for name, array in inputs.items()}

    def watch(node: Node, arrays: Sequence[Array]) -> None:
        if observe is not None:
            observe(node, [as_array(x) if isinstance(x, torch.Tensor) else x for x in arrays])

    with torch.no_grad():
        outputs = execute(graph, TorchArrays(None), {**tensors(graph, "cpu"), **given}, watch, as_tensor)
    return {name: as_array(tensor) for name, tensor in outputs.items()}


def tensors(graph: Graph, device: Any) -> dict[str, Array]:
    """Return the graph's arrays for torch: weights as tensors, sizes and settings as the NumPy arrays they are."""
    from .arrays.torch import as_tensor

    weights = weights_of(graph)
    return {name: as_tensor(x).to(device) if name in weights else x for name, x in graph.arrays.items()}


def weights_of(graph: Graph) -> set[str]:
    """Return the names of the floats that an operator computes with; an untrained single number is a setting."""
    read = {
        name
        for node in graph.nodes
        for place, name in enumerate(node.inputs)
        if name in graph.arrays and place not in OPERATORS[node.op].host
    }
    return {
        name for name in read if is_float(graph.arrays[name]) and (graph.arrays[name].ndim or name in graph.parameters)
    }


def hollow(graph: Graph) -> Graph:
    """Return a graph whose weights are zeros that take no memory: what is left to know when they are in a file."""
    weights = weights_of(graph)
    zeros = {
        name: np.broadcast_to(np.zeros((), x.dtype), x.shape) for name, x in graph.arrays.items() if name in weights
    }
    return graph.replaced(arrays={**graph.arrays, **zeros})


def is_float(array: np.ndarray) -> bool:
    """Say whether the dtype is a floating-point one, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def execute(
    graph: Graph,
    library: Arrays,
    values: dict[str, Array],
    observe: Observer | None = None,
    finish: Callable[[np.ndarray], Array] = np.asarray,
) -> dict[str, Array]:
    """Run the nodes on `values`, inputs and arrays by name; `finish` turns outputs made of sizes alone into arrays."""
    last = {name: node for node in graph.nodes for name in node.inputs}
    kept = {value.name for value in graph.outputs}
    for node in graph.nodes:
        results = run_node(node, library, values)
        values |= {name: result for name, result in zip(node.outputs, results, strict=False) if name}
        if observe is not None:
            observe(node, results)
        results = None  # or the last array would live on while the next one is made
        for name in {*node.inputs, *node.outputs}:
            if name and name not in kept and last.get(name, node) is node:
                values.pop(name, None)
    outputs = {value.name: values[value.name] for value in graph.outputs}
    return {name: finish(x) if isinstance(x, np.ndarray) else x for name, x in outputs.items()}


def run_node(node: Node, library: Arrays, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """Return what a node makes of the arrays that it reads among `values`."""
    operator = OPERATORS[node.op]
    inputs = [values[name] if name else None for name in node.inputs]
    like = None
    for place, x in enumerate(inputs):
        if place not in operator.host and x is not None and not isinstance(x, np.ndarray):
            like = x
    if like is None:
        library = library if library.host is library else library.host
    wanted = {"wanted": len(node.outputs)} if operator.takes_wanted else {}
    try:
        inputs = [_placed(library, x, like, place in operator.host) for place, x in enumerate(inputs)]
        results = operator.run(library, *inputs, **node.attributes, **wanted)
    except BackendUnavailable:
        raise
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ModelError
        shapes = ", ".join(shape_text(tuple(x.shape)) if x is not None else "nothing" for x in inputs)
        raise kind(f"{node} failed on inputs of the shapes {shapes}: {error}") from error
    if not isinstance(results, tuple):
        results = (results,)
    if len(results) < len(node.outputs):
        raise ModelError(f"{node} makes {len(results)} arrays, but {len(node.outputs)} are named: {node.outputs}")
    return tuple(np.asarray(x) if isinstance(x, np.generic) else x for x in results)


def _placed(library: Arrays, x: Array, like: Array, on_host: bool) -> Array:
    """Return an input where its operator wants it: sizes and settings as NumPy arrays, everything else as `like`."""
    if x is None:
        return None
    if not on_host:
        return library.asarray(x, like) if isinstance(x, np.ndarray) and like is not None else x
    if isinstance(x, np.ndarray):
        return x
    from .arrays.torch import as_array

    return as_array(x)


def _family(graph: Graph, inputs: Mapping[str, Array]) -> str:
    """Return the library of the inputs, which must be one and the same."""
    wanted, given = {value.name for value in graph.inputs}, set(inputs)
    if wanted != given:
        missing, unknown = sorted(wanted - given), sorted(given - wanted)
        raise ModelError(
            f"{graph.name}: the inputs are {', '.join(map(str, graph.inputs)) or 'none'}; "
            + "; ".join(f"{word} {names}" for word, names in (("missing", missing), ("unknown", unknown)) if names)
        )
    families = {name: family_of(graph.name, name, array) for name, array in inputs.items()}
    if len(set(families.values())) > 1:
        raise TypeError(
            f"{graph.name}: the inputs are arrays of different libraries, {families}; nothing is converted silently, "
            f"so convert some of them"
        )
    return next(iter(families.values()), "numpy")


def check_inputs(graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Check dtypes and shapes; a size with a name must be the same wherever the name stands."""
    bound: dict[str, int] = {}
    for value in graph.inputs:
        array = inputs[value.name]
        dtype = getattr(array.dtype, "name", str(array.dtype).removeprefix("torch."))
        if value.dtype is not None and dtype != value.dtype:
            raise TypeError(
                f"{graph.name}: input {value.name!r} must be {value.dtype}, got {dtype}; nothing is converted silently"
            )
        if value.shape is not None and not _fits(value, tuple(array.shape), bound):
            raise ModelError(
                f"{graph.name}: input {value.name!r} must have the shape {shape_text(value.shape)}, "
                f"got {shape_text(tuple(array.shape))}"
            )


def _fits(value: Value, shape: tuple[int, ...], bound: dict[str, int]) -> bool:
    declared = value.shape or ()
    return len(shape) == len(declared) and all(
        size == (bound.setdefault(want, size) if isinstance(want, str) else want)
        for want, size in zip(declared, shape, strict=True)
    )
