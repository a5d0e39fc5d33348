"""The commands ``pyflux-pad port`` and ``pyflux-pad inspect``: records of plain values, and their text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import available_backends
from ..console import Progress, shortened, table
from . import check
from .files import refuse_existing, refuse_existing_folder
from .flux import read_flux, write_flux
from .flux.check import run_check
from .flux.write import FILES
from .fusing import fold_bn
from .graph import Array, Graph, ModelError, shape_text
from .inspection import describe
from .onnx import count_operators, read_onnx, write_onnx
from .run import hollow
from .torch import write_torch
from .torch.write import with_state

AddCommand = Callable[..., argparse.ArgumentParser]

# A target of `port`: how it is written, and how it is read back for the check, from a graph without its weights. A
# writer takes the graph, the path and `force`.
TARGETS: dict[str, tuple[Callable[..., None], Callable[[Graph, str], Graph]]] = {
    "flux": (write_flux, lambda graph, path: read_flux(path)),
    "onnx": (write_onnx, lambda graph, path: read_onnx(path)),
    "torch": (write_torch, with_state),
}


def add_commands(commands: Any, add_command: AddCommand) -> None:
    """Add both commands to the command line; `add_command` is its own way of adding one."""
    port = add_command(commands, "port", "write a model for another framework, and check it", _port, _port_text)
    port.add_argument("model", metavar="MODEL", help="an ONNX file")
    port.add_argument("out", metavar="OUT", help="what to write")
    port.add_argument("--to", required=True, choices=tuple(TARGETS), help="what OUT is for")
    port.add_argument("--force", action="store_true", help="replace OUT if it exists")
    port.add_argument("--fold-bn", action="store_true", help="multiply batch normalisations into convolutions")
    port.add_argument("--check", action="store_true", help="run what was written and compare it with a reference")
    port.add_argument(
        "--against", choices=("onnxruntime",), help="the reference (default: stored outputs, or an engine)"
    )
    port.add_argument("--inputs", metavar="FILE.npz", help="inputs by name, and outputs to compare with")
    port.add_argument("--backend", metavar="NAME", help="the engine that runs what was written (default: numpy)")
    inspect = add_command(commands, "inspect", "a model's nodes, shapes and pads, and what the pads are", _inspect,
                          _inspect_text)  # fmt: skip
    inspect.add_argument("model", metavar="MODEL", help="an ONNX file")
    inspect.add_argument("--list-ops", action="store_true", help="only its operators, and which can be read")
    for command in (port, inspect):
        command.add_argument(
            "--size", nargs="+", default=[], metavar="NAME=VALUE", help="values for sizes that the model leaves open"
        )


def _sizes(entries: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for entry in entries:
        name, _, value = entry.rpartition("=")
        if not name or not value.isdecimal() or int(value) < 1:
            raise ModelError(f"--size {entry} is no NAME=VALUE with a whole number, as in batch=1")
        sizes[name] = int(value)
    return sizes


# ------------------------------------------------------------------------------------------------------------- inspect


def _inspect(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.list_ops:
        counts = count_operators(arguments.model)
        return {"model": arguments.model, "operators": [
            {"op": op, "nodes": count, "read": known} for op, count, known in counts
        ]}  # fmt: skip
    graph = read_onnx(arguments.model, sizes=_sizes(arguments.size))
    return {
        "model": arguments.model,
        "name": graph.name,
        "inputs": [str(value) for value in graph.inputs],
        "outputs": [f"{value.name}: {value.dtype} {shape_text(graph.value(value.name).shape)}" for value in
                    graph.outputs],
        "nodes": describe(graph),
        "parameters": sum(graph.arrays[name].size for name in graph.parameters),
        "bytes": sum(array.nbytes for array in graph.arrays.values()),
    }  # fmt: skip


def _inspect_text(record: dict[str, Any]) -> Iterator[str]:
    if "operators" in record:
        operators = record["operators"]
        yield from table(("operator", "nodes", "read"),
                         ((e["op"], e["nodes"], "yes" if e["read"] else "NO") for e in operators))  # fmt: skip
        covered = sum(entry["nodes"] for entry in operators if entry["read"])
        yield ""
        yield f"{covered} of {sum(entry['nodes'] for entry in operators)} nodes can be read"
        return
    yield record["name"]
    yield from (f"input   {value}" for value in record["inputs"])
    yield ""
    yield from table(
        ("name", "op", "shape", "pads", "lo != hi", "parameters"),
        (
            (
                shortened(node["name"]),
                node["op"],
                " ".join(node["shapes"]),
                node["pads"] or "",
                _verdict(node),
                f"{node['parameters']:,}" if node["parameters"] else "",
            )
            for node in record["nodes"]
        ),
    )
    yield ""
    yield from (f"output  {value}" for value in record["outputs"])
    asymmetric = sum(node["asymmetric"] for node in record["nodes"])
    yield (
        f"{len(record['nodes'])} nodes, {asymmetric} with lo != hi; {record['parameters']:,} parameters, "
        f"{record['bytes'] / 2**20:.1f} MiB"
    )


def _verdict(node: Mapping[str, Any]) -> str:
    if not node["asymmetric"]:
        return ""
    return f"= {', '.join(node['equal_to'])}" if node["equal_to"] else "no same rule"


# ---------------------------------------------------------------------------------------------------------------- port


def _port(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.check and (arguments.against or arguments.inputs or arguments.backend):
        raise ModelError("--against, --inputs and --backend are for --check; add it")
    write, read_back = TARGETS[arguments.to]
    if arguments.to == "flux":
        refuse_existing_folder("port", arguments.out, arguments.force, FILES)
    else:
        refuse_existing("port", arguments.out, arguments.force)
    graph = read_onnx(arguments.model, sizes=_sizes(arguments.size))
    written = fold_bn(graph) if arguments.fold_bn else graph
    backend = arguments.backend or "numpy"
    check.require(backend)
    # Before anything is written: wrong inputs must leave nothing behind.
    checked = _reference(arguments, graph, backend) if arguments.check else None
    # What is run in Julia is what is run here.
    more = {"inputs": checked[1]} if checked and arguments.to == "flux" else {}
    write(written, arguments.out, force=arguments.force, **more)
    record: dict[str, Any] = {
        "model": arguments.model,
        "to": arguments.to,
        "out": arguments.out,
        "nodes": len(written.nodes),
        "bytes": _size(Path(arguments.out)),
        "asymmetric": [node["name"] for node in describe(written) if node["asymmetric"]],
    }
    if checked is None:
        return record
    source, inputs, reference = checked
    outline = hollow(written)
    del graph, written  # a large model is in memory once
    record |= {"backend": backend, "reference": source}
    record |= _checked(read_back(outline, arguments.out), inputs, reference, backend)
    if arguments.to == "flux":
        record |= run_check(arguments.out)
        record["passed"] = record["passed"] and record["flux_passed"] is not False
    return record


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(entry.stat().st_size for entry in (path.iterdir() if path.is_dir() else (path,)))


def _reference(
    arguments: argparse.Namespace, graph: Graph, backend: str
) -> tuple[str, dict[str, Array], dict[str, Array]]:
    """Return where the reference comes from, the inputs, and the arrays to compare with."""
    stored: dict[str, Array] = {}
    if arguments.inputs:
        inputs, stored = check.load_arrays(arguments.inputs, graph)
    else:
        inputs = check.random_inputs(graph)
    if arguments.against:
        return arguments.against, inputs, check.onnxruntime_reference(arguments.model, graph, inputs)
    if stored:
        return f"outputs stored in {arguments.inputs}", inputs, stored
    other = _other_engine(backend)
    return f"the model on {other}", inputs, check.reference_of(graph, inputs, other)


def _checked(
    written: Graph, inputs: Mapping[str, Array], reference: Mapping[str, Array], backend: str
) -> dict[str, Any]:
    """Run what was written; return one row per array that the reference has too."""
    with Progress(f"checking on {backend}", len(written.nodes)) as bar:
        rows = check.compare(written, inputs, reference, backend, bar.step)
    outputs = {value.name for value in written.outputs}
    return {
        "limit": check.LIMIT,
        "differences": [
            {
                "node": row.node,
                "op": row.op,
                "array": row.name,
                "shape": list(row.shape),
                # JSON has no infinity; null says that one side has values where the other has none.
                "difference": row.difference if np.isfinite(row.difference) else None,
                "largest": row.largest,
                "output": row.name in outputs,
                "passed": row.passed,
            }
            for row in rows
        ],
        "passed": all(row.passed for row in rows if row.name in outputs),
    }


def _other_engine(backend: str) -> str:
    """Return an engine to compare with, which is not the one that is checked."""
    others = [name for name in ("numpy", "torch") if name != backend and available_backends()[name].available]
    if not others:
        raise ModelError(
            f"there is no second engine to check {backend!r} by; give stored outputs (--inputs FILE.npz) or "
            f"--against onnxruntime"
        )
    return others[0]


def _port_text(record: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{record['out']}: {record['nodes']} nodes for {record['to']}, {record['bytes'] / 2**20:.1f} MiB, "
        f"{len(record['asymmetric'])} with lo != hi pads"
    )
    if "differences" not in record:
        return
    yield ""
    yield f"on {record['backend']} against {record['reference']}:"
    yield ""
    yield from table(
        ("node", "op", "shape", "largest difference", "largest value", "verdict"),
        (
            (
                shortened(row["node"]),
                row["op"],
                shape_text(tuple(row["shape"])),
                "no number" if row["difference"] is None else f"{row['difference']:.2g}",
                f"{row['largest']:.3g}",
                ("right" if row["passed"] else "MISMATCH") + (", output" if row["output"] else ""),
            )
            for row in record["differences"]
        ),
    )
    yield ""
    outputs = "the outputs agree" if record["passed"] else "the outputs DIFFER"
    yield f"{outputs}: the limit is {record['limit']:g} of the largest value"
    if "flux_check" in record:
        yield ""
        yield from (f"check.jl: {line}" for line in record["flux_check"])
