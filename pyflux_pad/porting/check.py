"""Checking a port: a graph on an engine against a reference, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..backends import BackendUnavailable, get, known
from .graph import Array, Graph, ModelError, Node, element_count, shape_text
from .onnx.files import parse

LIMIT = 1e-4
"""The largest difference that passes, as a part of the largest value of the array."""


@dataclass(frozen=True)
class Difference:
    """How far an array is from the reference: the largest difference and the largest value of the reference."""

    node: str
    op: str
    name: str
    shape: tuple[int, ...]
    difference: float
    largest: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the limit."""
        return self.difference <= LIMIT * self.largest


def compare(
    graph: Graph,
    inputs: Mapping[str, Array],
    reference: Mapping[str, Array],
    backend: str | None = None,
    step: Callable[[], None] = lambda: None,
) -> list[Difference]:
    """Run a graph and compare every array that the reference has; `step` is called after every node."""
    found: list[Difference] = []

    def observe(node: Node, arrays: Sequence[Array]) -> None:
        for name, array in zip(node.outputs, arrays, strict=False):
            if name in reference:
                found.append(_difference(node, name, np.asarray(array), np.asarray(reference[name])))
        step()

    _run(graph, inputs, backend, observe)
    missing = [value.name for value in graph.outputs if value.name not in {entry.name for entry in found}]
    if missing:
        raise ModelError(f"the reference lacks the outputs {', '.join(missing)}, so there is nothing to check them by")
    return found


def _difference(node: Node, name: str, array: np.ndarray, wanted: np.ndarray) -> Difference:
    if array.shape != wanted.shape:
        raise ModelError(f"{node}: {name!r} has the shape {shape_text(array.shape)}, the reference {wanted.shape}")
    if array.size == 0:
        return Difference(node.name, node.op, name, array.shape, 0.0, 0.0)
    ours, theirs = (np.asarray(entry, np.float64) for entry in (array, wanted))
    with np.errstate(invalid="ignore"):
        apart = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, np.abs(ours - theirs))
    finite = np.abs(theirs[np.isfinite(theirs)])
    worst = float("inf") if np.isnan(apart).any() else float(apart.max())
    return Difference(node.name, node.op, name, array.shape, worst, float(finite.max(initial=0)))


def _run(
    graph: Graph, inputs: Mapping[str, Array], backend: str | None, observe: Callable[[Node, Sequence[Array]], None]
) -> None:
    """Run a graph; wrong dtypes and a missing engine are here mistakes in what was asked for."""
    try:
        graph.run(inputs, backend=backend, observe=observe)
    except (TypeError, BackendUnavailable) as error:
        raise ModelError(str(error)) from error


def reference_of(graph: Graph, inputs: Mapping[str, Array], backend: str) -> dict[str, Array]:
    """Return every array that a graph makes on another engine."""
    made: dict[str, Array] = {}

    def observe(node: Node, arrays: Sequence[Array]) -> None:
        made.update(zip(node.outputs, arrays, strict=False))

    _run(graph, inputs, backend, observe)
    return made


def require(backend: str) -> None:
    """Raise ModelError if an engine is unknown or cannot run here."""
    try:
        get(known(backend, "--backend"))
    except BackendUnavailable as error:
        raise ModelError(str(error)) from error


def onnxruntime_reference(source: str | Path, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return what ONNX Runtime computes for the model in a file, every array that the graph names too.

    Raises
    ------
    ModelError
        If onnxruntime is not installed or does not run the model.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ModelError("--against onnxruntime needs the package onnxruntime; pip install onnxruntime") from None
    model, name, folder = parse(source)
    if any(tensor.external_data for tensor in model.graph.initializer):
        raise ModelError(f"{name}: --against onnxruntime takes models without external data, in {folder}")
    returned = {entry.name for entry in model.graph.output}
    for node in model.graph.node:
        for output in node.output:
            if output and output not in returned:
                model.graph.output.add(name=output)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # As it stands: fused nodes would have no results to compare.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = [name for node in graph.nodes for name in node.outputs]
    names = [entry.name for entry in model.graph.output if entry.name in wanted]
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:
        raise ModelError(f"{name}: onnxruntime cannot run it: {error}") from None


def random_inputs(graph: Graph) -> dict[str, Array]:
    """Return standard normal inputs.

    Raises
    ------
    ModelError
        For an input whose size is open, and for integers, whose meaning is not known.
    """
    random = np.random.default_rng(0)
    inputs = {}
    for value in graph.inputs:
        if value.shape is None or element_count(value.shape) is None:
            raise ModelError(
                f"input {value} has open sizes; give them values (--size NAME=VALUE), or arrays (--inputs FILE.npz)"
            )
        if value.dtype not in ("float16", "float32", "float64"):
            raise ModelError(f"input {value} takes no random numbers; give arrays with --inputs FILE.npz")
        inputs[value.name] = random.standard_normal(tuple(map(int, value.shape))).astype(value.dtype)
    return inputs


def load_arrays(path: str | Path, graph: Graph) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the inputs and the stored outputs of a graph from an npz file; pickled objects are never loaded.

    Raises
    ------
    ModelError
        If the file is no npz of plain arrays, or an input is missing in it.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, EOFError) as error:
        raise ModelError(f"{path} is no npz file of plain arrays: {error}") from None
    missing = [value.name for value in graph.inputs if value.name not in arrays]
    if missing:
        raise ModelError(f"{path} lacks the inputs {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    inputs = {value.name: arrays[value.name] for value in graph.inputs}
    return inputs, {value.name: arrays[value.name] for value in graph.outputs if value.name in arrays}
