"""Reading ONNX: a file becomes a graph of the neutral vocabulary, or an error that says what is wrong with it."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import Graph, ModelError, Node, Value, in_order, shape_text
from ..operators import OPERATORS
from ..passes import tidy, trained
from .files import array_of, dtype_of, opset_of, parse
from .opsets import REWRITINGS, Context, Raw, neutral
from .package import load_onnx

_SMALL = 1024
"""Arrays of up to this many elements may be sizes, which shape inference must see."""


def read_onnx(source: str | Path | bytes, *, sizes: Mapping[str, int] | None = None) -> Graph:
    """Read an ONNX model, of opset 6 to the newest that the installed onnx package knows.

    Every node becomes one or more nodes of the newest meaning; ``auto_pad`` becomes explicit pads by ONNX's own rule
    wherever the sizes are known, and stays a rule, resolved when the model runs, where they are not. A Pad in front
    of a convolution or pool becomes part of it where that is exact. What depends on constants alone is computed.

    Parameters
    ----------
    source
        A path, or the bytes of a model. External data is read from inside the model's folder only.
    sizes
        Values for sizes that the model leaves open, by their names: ``{"batch": 1}``. An open size without a name is
        called after its place, ``"input.0"``.

    Returns
    -------
    Graph

    Raises
    ------
    ModelError
        For everything that makes a model unreadable: a truncated or corrupted file, a pickle, an unknown opset, an
        operator or dtype that is not carried, a cycle, a missing initialiser, mixed dtypes, external data outside the
        folder. Nothing has been computed then.
    """
    model, name, folder = parse(source)
    opset = opset_of(model, name)
    _refuse_unknown(model, name)
    graph = model.graph
    arrays = {tensor.name: array_of(tensor, name, folder) for tensor in graph.initializer}
    if graph.sparse_initializer:
        raise ModelError(f"{name}: sparse initialisers are not carried; make them dense")
    _check_arrays(graph, arrays, name)
    _fix_sizes(graph, arrays, sizes or {}, name)
    del model.graph.initializer[:]
    inputs = _inputs(graph, arrays, name)
    initial = frozenset(arrays)
    raws = _in_order(graph, list(_raws(graph, opset, name, folder)), (*arrays, *(value.name for value in inputs)))
    values = _inferred(model, arrays, name)
    _check_nodes(model, opset, {**values, **{key: Value(key, a.dtype.name) for key, a in arrays.items()}}, name)
    context = Context(values | {value.name: value for value in inputs}, arrays, _names(graph, arrays))
    nodes = _without_constants([node for raw in raws for node in neutral(raw, context)], arrays)
    outputs = tuple(values.get(entry.name) or _value(entry, name) for entry in graph.output)
    made = {name for node in nodes for name in node.outputs}
    # Some exporters write every weight as a Constant node.
    parameters = trained(nodes, arrays, initial) or trained(nodes, arrays, arrays)
    result = Graph(
        graph.name or name, inputs, outputs, tuple(nodes), arrays, parameters,
        {key: value for key, value in values.items() if key in made},
    )  # fmt: skip
    return tidy(result)


def count_operators(source: str | Path | bytes) -> list[tuple[str, int, bool]]:
    """Return (operator, how often, whether it can be read) for every operator of an ONNX model, by name."""
    model, _, _ = parse(source)
    counts = collections.Counter(_full_name(node) for node in model.graph.node)
    return [(op, count, op in OPERATORS or op in REWRITINGS) for op, count in sorted(counts.items())]


def _full_name(node: Any) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _refuse_unknown(model: Any, name: str) -> None:
    """Raise ModelError for operators that are not in the vocabulary, before any work is done."""
    unknown: dict[str, list[str]] = {}
    for number, node in enumerate(model.graph.node):
        op = _full_name(node)
        if op not in OPERATORS and op not in REWRITINGS:
            unknown.setdefault(op, []).append(_node_name(node, number))
    if unknown:
        lines = [f"{op} (node {', '.join(map(repr, nodes[:3]))}{', ...' * (len(nodes) > 3)})" for op, nodes in
                 unknown.items()]  # fmt: skip
        known = ", ".join(sorted({*OPERATORS, *REWRITINGS}))
        raise ModelError(f"{name}: operators that cannot be read: {'; '.join(lines)}. Known are {known}")


def _node_name(node: Any, number: int) -> str:
    return node.name or next(filter(None, node.output), f"{node.op_type}_{number}")


def _check_arrays(graph: Any, arrays: Mapping[str, np.ndarray], name: str) -> None:
    if len(arrays) != len(graph.initializer):
        raise ModelError(f"{name}: two initialisers have the same name")
    declared = {entry.name: entry for entry in graph.input}
    for key, array in arrays.items():
        if key in declared and declared[key].type.tensor_type.elem_type:
            value = _value(declared[key], name)
            if value.dtype != array.dtype.name or (
                value.shape is not None
                and (len(value.shape) != array.ndim
                     or any(isinstance(want, int) and want != size
                            for want, size in zip(value.shape, array.shape, strict=True)))
            ):  # fmt: skip
                raise ModelError(
                    f"{name}: the initialiser {key!r} is {array.dtype.name} {shape_text(array.shape)}, but the input "
                    f"of that name is declared {value.dtype} {shape_text(value.shape)}"
                )


def _fix_sizes(graph: Any, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], name: str) -> None:
    """Give open sizes of the inputs a name, and those that are asked for a value."""
    open_names = set()
    for entry in graph.input:
        if entry.name in arrays:
            continue
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            named = dim.dim_param not in ("", "?")
            label = dim.dim_param if named else f"{entry.name}.{axis}"
            open_names.add(label)
            if label in sizes:
                dim.dim_value = sizes[label]
            else:
                dim.dim_param = label
    unknown = set(sizes) - open_names
    if unknown:
        raise ModelError(
            f"{name}: sizes {sorted(unknown)} are not open in this model; open are {sorted(open_names) or 'none'}"
        )


def _inputs(graph: Any, arrays: Mapping[str, np.ndarray], name: str) -> tuple[Value, ...]:
    """Return the inputs that a caller gives: old models list their initialisers among them."""
    return tuple(_value(entry, name) for entry in graph.input if entry.name not in arrays)


def _value(entry: Any, name: str) -> Value:
    kind = entry.type.WhichOneof("value")
    if kind not in ("tensor_type", None):
        raise ModelError(f"{name}: {entry.name!r} is a {kind.removesuffix('_type')}; graphs carry dense arrays only")
    tensor = entry.type.tensor_type
    dtype = dtype_of(tensor.elem_type, f"{name}: {entry.name!r}") if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Value(entry.name, dtype)
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or "?"
        for dim in tensor.shape.dim
    )  # fmt: skip
    return Value(entry.name, dtype, shape)


def _inferred(model: Any, arrays: Mapping[str, np.ndarray], name: str) -> dict[str, Value]:
    """Return what ONNX's shape inference knows of every array that a node makes or the model returns.

    Inference copies the model, so large arrays only lend it their shapes.
    """
    onnx = load_onnx("read_onnx")
    graph = model.graph
    declared = {entry.name for entry in graph.input}
    for key, array in arrays.items():
        if array.size <= _SMALL:
            graph.initializer.append(onnx.numpy_helper.from_array(array, key))
        elif key not in declared:
            code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(key, code, array.shape))
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:
        raise ModelError(f"{name}: the sizes and dtypes of its arrays contradict each other: {error}") from None
    return {entry.name: _value(entry, name) for entry in (*found.graph.value_info, *found.graph.output)}


def _check_nodes(model: Any, opset: int, values: Mapping[str, Value], name: str) -> None:
    """Hold every node to ONNX's own schema: inputs, attributes, and dtypes that have to be the same."""
    onnx = load_onnx("read_onnx")
    context = type(onnx.checker.DEFAULT_CONTEXT)()
    context.ir_version = max(model.ir_version, 3)
    context.opset_imports = {"": opset}
    given = {entry.name: _value(entry, name) for entry in model.graph.input} | dict(values)
    for number, node in enumerate(model.graph.node):
        if node.op_type == "ImageScaler":  # withdrawn from ONNX before it had a schema that is still known
            continue
        where = f"{name}: node {_node_name(node, number)!r} ({node.op_type})"
        try:
            schema = onnx.defs.get_schema(node.op_type, opset)
            if not schema.deprecated:  # what was withdrawn is still read, though ONNX's checker refuses it
                onnx.checker.check_node(node, context)
        except Exception as error:
            raise ModelError(f"{where} is not as ONNX defines it: {str(error).splitlines()[0]}") from None
        _check_dtypes(schema, node, given, where)


def _check_dtypes(schema: Any, node: Any, values: Mapping[str, Value], where: str) -> None:
    bound: dict[str, tuple[str, str]] = {}
    for place, key in enumerate(node.input):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        dtype = values[key].dtype if key in values else None
        if dtype is None or (formal.option == formal.option.Variadic and not formal.is_homogeneous):
            continue
        first, other = bound.setdefault(formal.type_str, (key, dtype))
        if other != dtype:
            raise ModelError(f"{where}: {first!r} is {other}, but {key!r} is {dtype}; they must have one dtype")


def _names(graph: Any, arrays: Mapping[str, np.ndarray]) -> set[str]:
    names = {name for node in graph.node for name in (*node.input, *node.output, node.name)}
    return names | set(arrays) | {entry.name for entry in graph.input}


def _raws(graph: Any, opset: int, name: str, folder: Path | None) -> Iterable[Raw]:
    used: set[str] = set()
    for number, node in enumerate(graph.node):
        label = _node_name(node, number)
        while label in used:
            label += "'"
        used.add(label)
        attributes = {}
        for entry in node.attribute:
            attributes[entry.name] = _attribute(entry, f"{name}: node {label!r} ({node.op_type})", folder)
        yield Raw(label, node.op_type, list(node.input), list(node.output), attributes, opset)


def _in_order(graph: Any, raws: list[Raw], known: Iterable[str]) -> list[Raw]:
    """Return the nodes in an order in which they can run, which shape inference needs: the model's are sorted too."""
    ordered = in_order(raws, known)
    if any(ours is not theirs for ours, theirs in zip(ordered, raws, strict=True)):
        places = {raw.name: place for place, raw in enumerate(raws)}
        nodes = [graph.node[places[raw.name]] for raw in ordered]
        del graph.node[:]
        graph.node.extend(nodes)
    return ordered


def _attribute(entry: Any, where: str, folder: Path | None) -> Any:
    onnx = load_onnx("read_onnx")
    if entry.type == onnx.AttributeProto.TENSOR:
        return array_of(entry.t, where, folder)
    value = onnx.helper.get_attribute_value(entry)
    if entry.name == "to":
        return dtype_of(value, f"{where}: what it converts to")
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else [value]
    if not all(isinstance(part, (bytes, int, float)) for part in values):
        raise ModelError(f"{where}: the attribute {entry.name!r} is no number, text or array; it is not carried")
    try:
        values = [part.decode() if isinstance(part, bytes) else part for part in values]
    except UnicodeDecodeError:
        raise ModelError(f"{where}: the attribute {entry.name!r} is no text; the file is corrupted") from None
    return values[0] if isinstance(value, (bytes, int, float)) else tuple(values)


def _without_constants(nodes: Iterable[Node], arrays: dict[str, np.ndarray]) -> list[Node]:
    """Move the values of Constant nodes to the arrays."""
    left = []
    for node in nodes:
        if node.op == "Constant":
            arrays[node.outputs[0]] = node.attributes["value"]
        else:
            left.append(node)
    return left
