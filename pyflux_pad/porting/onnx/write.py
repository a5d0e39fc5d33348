"""Writing ONNX: the neutral vocabulary is ONNX's, so what is left is to spell pads and the split of the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...padding import Padding
from ..files import refuse_existing, write_whole
from ..graph import Graph, ModelError, Node, Pads, Value
from ..operators import OPERATORS
from ..passes import trained
from .package import LARGEST, load_onnx

OPSET = 21
"""The newest opset that the oldest onnx package taken (1.16) knows, and recent runtimes read."""
IR_VERSION = 10


def write_onnx(graph: Graph, path: str | Path, *, force: bool = False) -> None:
    """Write a graph as an ONNX model of opset 21.

    `read_onnx` reads an equal graph back: trained arrays become initialisers, other arrays in the place of a weight
    Constant nodes. Pads that a rule gave are written as the numbers they are, because runtimes differ on the rules;
    only a rule that is still open stays one. Negative pads, which ONNX's convolutions and pools do not have, become a
    Pad in front.

    Parameters
    ----------
    graph
        What to write.
    path
        A file; its folder must exist. It appears complete or not at all.
    force
        Whether to replace a file that exists.

    Raises
    ------
    ModelError
        If there is a file already, for a model of more than 2 GiB, and for what ONNX cannot say.
    """
    refuse_existing("write_onnx", path, force)
    total = sum(array.nbytes for array in graph.arrays.values())
    if total > LARGEST:
        raise ModelError(f"write_onnx: {total:,} bytes of arrays are more than the 2 GiB that one ONNX file can hold")
    write_whole("write_onnx", path, lambda place: _write(graph, place), force)


def _write(graph: Graph, path: Path) -> None:
    """Write the file piece by piece: serialising it as a whole takes three more copies of the weights."""
    onnx = load_onnx("write_onnx")
    # Arrays in the place of a weight that are not trained are Constant nodes, so that reading tells them apart.
    constants = trained(graph.nodes, graph.arrays, set(graph.arrays)) - graph.parameters
    initial = [name for name in graph.arrays if name not in constants]
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="pyflux_pad")
    model.opset_import.add(version=OPSET)
    body = onnx.GraphProto(name=graph.name)
    body.node.extend(_constant(onnx, name, graph.arrays[name]) for name in sorted(constants))
    for node in graph.nodes:
        body.node.extend(_nodes(onnx, graph, node))
    body.input.extend(_described(onnx, graph, value) for value in graph.inputs)
    body.output.extend(_described(onnx, graph, value) for value in graph.outputs)
    start = body.SerializeToString()
    weights = [_field(onnx.GraphProto.INITIALIZER_FIELD_NUMBER, _tensor(onnx, name, graph.arrays[name]).ByteSize())
               for name in initial]  # fmt: skip
    size = len(start) + sum(len(head) + length for head, length in weights)
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(_field(onnx.ModelProto.GRAPH_FIELD_NUMBER, size)[0])
        file.write(start)
        for name, (head, _) in zip(initial, weights, strict=True):
            file.write(head)
            file.write(_tensor(onnx, name, graph.arrays[name]).SerializeToString())


def _field(number: int, size: int) -> tuple[bytes, int]:
    """Return the head of a field that holds `size` bytes, as protocol buffers write it, and the size."""
    head = bytearray()
    for value in (number << 3 | 2, size):  # 2: a field of bytes, whose length follows
        while value > 127:
            head.append(value & 127 | 128)
            value >>= 7
        head.append(value)
    return bytes(head), size


def _tensor(onnx: Any, name: str, array: np.ndarray) -> Any:
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _described(onnx: Any, graph: Graph, value: Value) -> Any:
    known = graph.value(value.name)
    dtype, shape = value.dtype or known.dtype, known.shape if value.shape is None else value.shape
    if dtype is None:
        return onnx.ValueInfoProto(name=value.name)
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(value.name, code, None if shape is None else list(shape))


def _nodes(onnx: Any, graph: Graph, node: Node) -> Iterator[Any]:
    """Yield the ONNX nodes of a node: itself, after a Pad for pads that it cannot have itself."""
    inputs, attributes = list(node.inputs), dict(node.attributes)
    pads: Pads | None = attributes.pop("pads", None)
    if node.op == "Pad":
        value = attributes.pop("constant_value")
        if pads is not None and pads.padding is not None:
            inputs.append(f"{node.name}.pads")
            yield _constant(onnx, inputs[-1], np.array(pads.padding.to_onnx(), np.int64))
            if value != 0:
                inputs.append(f"{node.name}.value")
                yield _constant(onnx, inputs[-1], np.array(value, _dtype(graph, node)))
    elif node.op == "ConvTranspose" and pads is not None:
        attributes |= _crops(node, pads)
    elif pads is not None:
        if pads.padding is not None and any(entry < 0 for pair in pads.padding for entry in pair):
            cropped = f"{node.name}.crop"
            crops = Padding(((0, 0), (0, 0), *((min(low, 0), min(high, 0)) for low, high in pads.padding)))
            yield _constant(onnx, f"{cropped}.pads", np.array(crops.to_onnx(), np.int64))
            yield onnx.helper.make_node("Pad", [inputs[0], f"{cropped}.pads"], [cropped], name=cropped)
            inputs[0] = cropped
        attributes |= _spelled(pads)
    defaults = OPERATORS[node.op].attributes
    given = {
        name: _attribute(onnx, name, value)
        for name, value in attributes.items()
        if value is not None and not (name in defaults and np.array_equal(value, defaults[name]))
    }
    yield onnx.helper.make_node(node.op, inputs, list(node.outputs), name=node.name, **given)


def _constant(onnx: Any, name: str, array: np.ndarray) -> Any:
    return onnx.helper.make_node("Constant", [], [name], name=f"{name}.Constant", value=_tensor(onnx, name, array))


def _dtype(graph: Graph, node: Node) -> str:
    dtype = graph.value(node.inputs[0]).dtype
    if dtype is None:
        raise ModelError(
            f"write_onnx: {node}: the dtype of {node.inputs[0]!r} is not known, so its fill cannot be said"
        )
    return dtype


def _spelled(pads: Pads) -> dict[str, Any]:
    """Return ONNX's attributes of pads: numbers where they are known, else the rule."""
    if pads.padding is None:
        return {"auto_pad": pads.rule.upper()}
    return {"pads": tuple(max(entry, 0) for entry in pads.padding.to_onnx())}


def _crops(node: Node, pads: Pads) -> dict[str, Any]:
    """Return ONNX's attributes of a transposed convolution's crops; a negative high side is output_padding."""
    if pads.padding is None:
        return {"auto_pad": "SAME_UPPER" if pads.rule.endswith("upper") else "SAME_LOWER"}
    if any(low < 0 for low, _ in pads.padding):
        raise ModelError(
            f"write_onnx: {node} adds cells at the low side, {pads}; ONNX can only add them at the high one"
        )
    extra = tuple(max(-high, 0) for _, high in pads.padding)
    return {"pads": tuple(max(entry, 0) for entry in pads.padding.to_onnx()), "output_padding": extra}


def _attribute(onnx: Any, name: str, value: Any) -> Any:
    if name == "to":
        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value))
    return _tensor(onnx, name, value) if isinstance(value, np.ndarray) else value
