"""A graph without its arrays as JSON, and back: what `read_flux` reads beside the weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...padding import GeometryError, Padding
from ..graph import Graph, ModelError, Node, Pads, Value
from ..operators import OPERATORS

FORMAT = 1
"""The version of the record; another one is not read."""


def to_json(graph: Graph, flipped: Iterable[str]) -> str:
    """Return the record of a graph; `flipped` names the kernels that are stored backwards."""
    record = {
        "format": FORMAT,
        "name": graph.name,
        "inputs": [_value(value) for value in graph.inputs],
        "outputs": [_value(value) for value in graph.outputs],
        "values": [_value(value) for value in graph.values.values()],
        "parameters": sorted(graph.parameters),
        "flipped": sorted(flipped),
        "nodes": [
            {
                "name": node.name,
                "op": node.op,
                "inputs": node.inputs,
                "outputs": node.outputs,
                "attributes": {name: _encoded(value) for name, value in node.attributes.items()},
            }
            for node in graph.nodes
        ],
    }
    return json.dumps(record, indent=1, allow_nan=False)


def _value(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": value.dtype, "shape": value.shape}


def _encoded(value: Any) -> Any:
    """Return an attribute as JSON; what JSON does not have is an object that says what it is."""
    if isinstance(value, Pads):
        return {"rule": value.rule, "pads": value.padding and value.padding.pairs}
    if isinstance(value, np.ndarray):
        return {"array": _encoded(value.ravel().tolist()), "dtype": value.dtype.name, "shape": value.shape}
    if isinstance(value, np.generic):
        return _encoded(value.item())
    if isinstance(value, (tuple, list)):
        return [_encoded(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    if "rule" in value:
        pads = value["pads"]
        return Pads(value["rule"], None if pads is None else Padding(tuple((low, high) for low, high in pads)))
    if "array" in value:
        return np.array(_decoded(value["array"]), value["dtype"]).reshape(value["shape"])
    return float(value["float"])


def from_json(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[Graph, list[str]]:
    """Return the graph of a record and the names of the kernels that are stored backwards.

    Raises
    ------
    ModelError
        If the file is no record, or of another version, or does not fit the arrays.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ModelError(f"{path} has the format {record['format']!r}, known is {FORMAT}; write the model again")
        inputs, outputs, values = (
            [Value(entry["name"], entry["dtype"], None if entry["shape"] is None else tuple(entry["shape"]))
             for entry in record[part]]
            for part in ("inputs", "outputs", "values")
        )  # fmt: skip
        nodes = [_node(entry) for entry in record["nodes"]]
        graph = Graph(
            record["name"], tuple(inputs), tuple(outputs), tuple(nodes), arrays, frozenset(record["parameters"]),
            {value.name: value for value in values},
        )  # fmt: skip
        return graph, list(record["flipped"])
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, GeometryError) as error:
        raise ModelError(f"{path} is no record of a model ({type(error).__name__}: {error})") from None


def _node(entry: Mapping[str, Any]) -> Node:
    name, op = entry["name"], entry["op"]
    if op not in OPERATORS:
        raise ModelError(f"node {name!r}: the operator {op!r} is unknown; write the model again with this version")
    attributes = {key: _decoded(value) for key, value in entry["attributes"].items()}
    return Node(name, op, tuple(entry["inputs"]), tuple(entry["outputs"]),
                OPERATORS[op].complete(f"node {name!r}", attributes))  # fmt: skip
