"""Writing for Flux: a folder with a readable Julia model, its weights, a neutral record and a check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..files import refuse_existing_folder, write_whole_folder
from ..graph import Graph, Value
from . import layers, recurrent, safetensors, windows  # noqa: F401  (importing them fills the table)
from .code import Code, check_types, read_array, text
from .fixed import Fixed, fixed
from .read import turned
from .record import to_json
from .snippets import CHECK, HELPERS, MODEL, PROJECT

LIMIT = 1e-4
"""The largest difference that the check lets pass, as a part of the largest value of an output."""
FILES = ("model.jl", "graph.json", "weights.safetensors", "Project.toml", "check.jl", "check.safetensors")
"""What the folder has; one that has none of them is never replaced."""


def write_flux(
    graph: Graph, folder: str | Path, *, inputs: Mapping[str, np.ndarray] | None = None, force: bool = False
) -> None:
    """Write a graph as a model of Flux, which needs neither Python nor a package besides Flux.

    ``model.jl`` is a module with a struct of Flux layers, one for every node with weights, and a forward function;
    ``check.jl`` runs it on stored inputs and compares with stored outputs. Arrays in Julia have their axes reversed:
    (W, H, C, N). Kernels are turned once, here, so that plain ``Flux.Conv`` is right.

    Parameters
    ----------
    graph
        What to write. Its inputs must have fixed sizes, which reshapes and overhanging pools are written for.
    folder
        Where to write; its parent must exist. It appears complete or not at all.
    inputs
        What ``check.jl`` runs the model on, by name, in the dtypes of the inputs; by default random numbers.
    force
        Whether to replace a folder that `write_flux` wrote.

    Raises
    ------
    ModelError
        If the folder exists, an input has an open size, `inputs` do not fit, or a node cannot be written: nothing
        is written then.

    Notes
    -----
    A max pool whose window lies in the padding altogether gives Flux's lowest finite number instead of -inf, and
    roots, logarithms and powers of negative numbers are errors in Julia instead of NaN.
    """
    refuse_existing_folder("write_flux", folder, force, FILES)
    known = fixed(graph, inputs)
    check_types(known.graph.arrays)
    code = Code(known.graph)
    for position, node in enumerate(known.graph.nodes, 1):
        code.add(node, position)
    write_whole_folder("write_flux", folder, lambda place: _write(place, known, code), force, FILES)


def _write(folder: Path, known: Fixed, code: Code) -> None:
    graph = known.graph
    weights = {name: turned(array) if name in code.flipped else array for name, array in graph.arrays.items()}
    safetensors.write(folder / "weights.safetensors", weights)
    texts = {
        "graph.json": to_json(graph, code.flipped),
        "model.jl": _model(code, (folder / "weights.safetensors").stat().st_size),
        "Project.toml": PROJECT,
        "check.jl": _check(graph, known.inputs, known.outputs),
    }
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf-8")
    safetensors.write(folder / "check.safetensors", _numbered(known.inputs, known.outputs))


def _model(code: Code, filesize: int) -> str:
    graph = code.graph
    result, parameters = code.result(), code.parameters()  # before the fields: a result may be a constant
    trained = [name for name in code.fields if name not in code.frozen]
    listed = ", ".join(trained) + ("," if len(trained) == 1 else "")
    helpers = [HELPERS[name] for name in HELPERS if name in code.helpers]
    return MODEL.format(
        title=text(graph.name),
        call=f"model({parameters})",
        inputs="\n".join(f"# input   {_described(value)}" for value in graph.inputs),
        outputs="\n".join(f"# output  {_described(value)}" for value in graph.outputs),
        fields="\n".join(f"    {name}" for name in code.fields),
        declaration=f"Flux.@layer Network trainable=({listed})" if code.frozen else "Flux.@layer Network",
        filesize=filesize,
        loads="\n".join(f"        {name} = {load}" for name, load in code.fields.items()),
        arguments=", ".join(code.fields),
        helpers="".join(f"\n{helper}\n" for helper in helpers),
        parameters=parameters,
        body="\n".join(code.body),
        results=result,
    )


def _described(value: Value) -> str:
    shape = value.shape or ()
    return f"{text(value.name)}: {value.dtype}, NumPy {shape}, Julia {shape[::-1]}"


def _numbered(inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs and outputs as one: a model may give an input back under its own name."""
    return {f"{kind} {name}": array for kind, arrays in (("input", inputs), ("output", outputs))
            for name, array in arrays.items()}  # fmt: skip


def _check(graph: Graph, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> str:
    arrays = _numbered(inputs, outputs)
    begins = safetensors.places(arrays)

    def reads(kind: str, values: tuple[Value, ...]) -> str:
        names = [f"{kind} {value.name}" for value in values]
        return "".join(f"{read_array(arrays[name], begins[name])}, " for name in names).rstrip(" ")

    return CHECK.format(
        limit=LIMIT,
        inputs=reads("input", graph.inputs),
        outputs=reads("output", graph.outputs),
        names="".join(f"{text(value.name)}, " for value in graph.outputs).rstrip(" "),
    )
