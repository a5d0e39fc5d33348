"""What is right and how fast on one GPU, in under five minutes: ``pyflux-pad bench --device cuda``.

Every step has its share of the time, and the report is written after each: a run that is cut short still says
something. Times are medians between device events; all paths of a comparison compute the same output.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ..backends import BackendUnavailable
from ..backends.cupy.layouts import FIRST, LAST, empty
from ..backends.cupy.prepad import pre_padding
from ..backends.cupy.providers import Missing
from ..geometry import ConvGeometry, arguments, conv_geometry
from . import exact
from .machine import Machine, host_microseconds

Step = tuple[str, Callable[[], dict[str, Any]]]

NATIVE_LIMIT = 1.05
"""Times of the symmetric convolution that a native asymmetric one may take."""
STRIDED_LIMIT = 1.25
"""The same for the gradient by the input with strides, through the first provider that can."""
PREPAD_LIMIT = 1.25
"""The same for the pre-padded path at 64x64x112x112 in float32."""
HOST_LIMIT = 20.0
"""Microseconds of the host that a cached call may take beyond the frontend's own execution."""


class Shape(NamedTuple):
    """A convolution that is timed: sizes, and the pads whose sum a symmetric one shares."""

    name: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    stride: int = 1
    groups: int = 1

    def geometry(self, padding: Any = None) -> ConvGeometry:
        """Return the convolution, with its own pads or others."""
        ndim = len(self.padding)
        pads = self.padding if padding is None else padding
        settings = arguments(self.name, ndim, self.stride, pads, 1, self.groups, False)
        return conv_geometry(self.name, self.x, self.weight, settings)

    def symmetric(self) -> ConvGeometry | None:
        """Return the convolution of the same output whose pads are alike on both sides, if there is one."""
        if any(sum(pair) % 2 for pair in self.padding):
            return None
        return self.geometry(tuple((sum(pair) // 2,) * 2 for pair in self.padding))


SHAPES = (
    Shape("64x64x112x112, 3x3", (64, 64, 112, 112), (64, 64, 3, 3), ((2, 0), (0, 2))),
    Shape("16x512x14x14, 3x3", (16, 512, 14, 14), (512, 512, 3, 3), ((2, 0), (0, 2))),
    Shape("32x64x112x112, 3x3, stride 2", (32, 64, 112, 112), (128, 64, 3, 3), ((0, 2), (0, 2)), 2),
    Shape("depthwise 32x256x56x56, 3x3", (32, 256, 56, 56), (256, 1, 3, 3), ((2, 0), (0, 2)), 1, 256),
    Shape("Flux Conv((10, 10), 7 => 3, pad = (9, 0, 9, 0))", (100, 7, 100, 100), (3, 7, 10, 10), ((9, 0), (9, 0))),
)


def report(machine: Machine, path: str | None = None, shapes: tuple[Shape, ...] = SHAPES, scale: float = 1.0) -> dict:
    """Run every step and return what was found; `path` gets it as JSON after each step.

    Parameters
    ----------
    machine
        What is measured.
    path
        A file, or None.
    shapes
        What is timed.
    scale
        Share of the full work; 1 takes less than five minutes on an H200.
    """
    record: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "steps": {}}
    start = time.perf_counter()
    for name, step in _steps(machine, shapes, scale):
        began = time.perf_counter()
        try:
            found = step()
        except Exception as error:  # a step that breaks is a finding, and the others still say something
            found = {"error": f"{type(error).__name__}: {error}"[:1000], "passed": False}
        found["seconds"] = round(time.perf_counter() - began, 1)
        record["steps"][name] = found
        record["passed"] = all(step.get("passed", True) for step in record["steps"].values())
        record["seconds"] = round(time.perf_counter() - start, 1)
        if path is not None:
            pathlib.Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def _steps(machine: Machine, shapes: tuple[Shape, ...], scale: float) -> Iterator[Step]:
    """Yield the steps, most telling first."""
    dtypes = ("float32", "float16", "float64")
    if importlib.util.find_spec("ml_dtypes") is not None:
        importlib.import_module("ml_dtypes")  # tells NumPy of bfloat16
        dtypes = (*dtypes, "bfloat16")
    yield "versions", lambda: _versions(machine)
    yield "exact", lambda: exact.exactness(machine, int(60 * scale) + 1, dtypes, 70 * scale)
    yield "every plan", lambda: exact.sweep(machine, int(12 * scale) + 1, 45 * scale)
    yield "poisoned borders", lambda: exact.poison(machine)
    yield "streams and threads", lambda: exact.streams_and_threads(machine, int(2040 * scale) + 8)
    yield "chain of providers", lambda: exact.chain(machine)
    yield "kernels", lambda: exact.kernels(machine, int(60 * scale) + 1, dtypes)
    yield "times", lambda: times(machine, shapes, dtypes, 100 * scale)
    yield "host", lambda: host(machine, int(200 * scale) + 1)
    yield "memory", lambda: memory(machine, shapes[0])


def _versions(machine: Machine) -> dict[str, Any]:
    """Return versions, and of every provider whether it runs and why not."""
    providers = {}
    for name in machine.engine(None).chain.makers:
        try:
            machine.engine(None).chain.provider(name)
            providers[name] = "runs"
        except Missing as missing:
            providers[name] = str(missing)
    return {**machine.versions(), "providers": providers}


def times(machine: Machine, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Time every path of every shape beside the symmetric convolution of the same output."""
    rows, start = [], time.perf_counter()
    for shape in shapes:
        for dtype, allow_tf32 in [*((dtype, False) for dtype in dtypes), ("float32", True)]:
            layout = LAST if dtype in ("float16", "bfloat16") else FIRST
            for operator in exact.OPERATORS:
                if time.perf_counter() - start > seconds:
                    break
                if dtype == "float64" and shape is not shapes[-1]:
                    continue  # one generic engine, slow by nature: reported for one shape
                row = {"shape": shape.name, "operator": operator, "dtype": dtype, "layout": layout, "tf32": allow_tf32}
                rows.append(row | _row(machine, shape, operator, dtype, layout, allow_tf32))
    verdicts = [verdict for row in rows for verdict in _verdicts(row)]
    return {"rows": rows, "verdicts": verdicts, "passed": all(verdict["passed"] for verdict in verdicts)}


def _row(
    machine: Machine, shape: Shape, operator: str, dtype: str, layout: str, allow_tf32: bool
) -> dict[str, float | str]:
    """Return milliseconds by path, or why a path has none."""
    found: dict[str, float | str] = {}
    geometry, symmetric = shape.geometry(), shape.symmetric()
    operands = _operands(machine, geometry, operator, dtype, layout)
    paths = {
        "symmetric": ("frontend", symmetric),
        "native": ("frontend", geometry),
        "prepad": ("prepad", geometry),
        "torch": ("torch", geometry),
        "chosen": (None, geometry),
    }
    for path, (provider, given) in paths.items():
        if given is None:
            continue
        engine = machine.engine(provider, allow_tf32)
        begin = time.perf_counter()
        try:
            exact.run(engine, operator, given, *operands)
            machine.synchronize()
            found[f"{path} first call"] = (time.perf_counter() - begin) * 1e3
            found[path] = machine.milliseconds(partial(exact.run, engine, operator, given, *operands))
        except BackendUnavailable as error:
            found[path] = str(error)[:200]
    return found


def _operands(machine: Machine, geometry: ConvGeometry, operator: str, dtype: str, layout: str) -> list[Any]:
    """Return operands of random numbers on the device."""
    shapes = {
        "conv": (geometry.input_shape, geometry.weight_shape),
        "conv_input": (geometry.output_shape, geometry.weight_shape),
        "conv_weight": (geometry.input_shape, geometry.output_shape),
    }[operator]
    arrays = []
    for shape in shapes:
        array = empty(machine.xp, shape, machine.xp.dtype(dtype), layout)
        array[...] = machine.xp.random.random(shape) - 0.5
        arrays.append(array)
    return arrays


def _verdicts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a row must reach, as far as it was timed."""
    strided = "stride" in row["shape"]
    limits = {}
    if not (row["operator"] == "conv_input" and strided) and row["dtype"] != "float64":
        limits["native"] = NATIVE_LIMIT
    if row["operator"] == "conv_input" and strided:
        limits["chosen"] = STRIDED_LIMIT
    if row["shape"] == SHAPES[0].name and row["dtype"] == "float32" and not row["tf32"]:
        limits["prepad"] = PREPAD_LIMIT
    for path, limit in limits.items():
        if isinstance(row.get(path), float) and isinstance(row.get("symmetric"), float):
            ratio = row[path] / row["symmetric"]
            what = f"{path} {row['operator']} {row['dtype']}{' tf32' * row['tf32']} {row['shape']}"
            yield {"what": what, "ratio": round(ratio, 3), "limit": limit, "passed": ratio <= limit}


def host(machine: Machine, calls: int) -> dict[str, Any]:
    """Return what a cached call costs the host beyond the frontend's execution of the same plan."""
    shape = Shape("tiny", (1, 8, 8, 8), (8, 8, 3, 3), ((2, 0), (0, 2)))
    geometry = shape.geometry()
    engine = machine.engine("frontend")
    first, second = _operands(machine, geometry, "conv", "float32", FIRST)
    call = partial(exact.run, engine, "conv", geometry, first, second)
    out = call()
    provider: Any = engine.chain.provider("frontend")
    inner = pre_padding(geometry, True).geometry
    planned, handle, pointers = provider.graphs.plan("conv", inner, (first, second, out), FIRST, False)
    memory, workspace = machine.device.workspace(planned.workspace)
    alone = host_microseconds(machine, lambda: planned.graph.execute(pointers, workspace, handle=handle), calls)
    whole = host_microseconds(machine, call, calls)
    del memory
    return {
        "execute": round(alone, 1),
        "call": round(whole, 1),
        "beyond": round(whole - alone, 1),
        "limit": HOST_LIMIT,
        "passed": whole - alone <= HOST_LIMIT,
    }


def memory(machine: Machine, shape: Shape) -> dict[str, Any]:
    """Return what each path allocates beyond its result, and cuDNN's workspace within that."""
    geometry, rows, passed = shape.geometry(), [], True
    for operator in exact.OPERATORS:
        operands = _operands(machine, geometry, operator, "float32", FIRST)
        for name in ("frontend", "prepad", "torch"):
            engine = machine.engine(name)
            try:
                grown = machine.growth(partial(exact.run, engine, operator, geometry, *operands))
            except BackendUnavailable as error:
                rows.append({"operator": operator, "path": name, "refused": str(error)[:200]})
                continue
            result = exact.run(engine, operator, geometry, *operands).nbytes
            row = {"operator": operator, "path": name, "bytes": grown, "result": result, "beyond": grown - result}
            if name == "frontend":
                inner, out = pre_padding(geometry, True).geometry, exact.run(engine, operator, geometry, *operands)
                provider: Any = engine.chain.provider(name)
                row["workspace"] = provider.graphs.plan(operator, inner, (*operands, out), FIRST, False)[0].workspace
                # CuPy's pool rounds every allocation up.
                row["passed"] = row["beyond"] <= row["workspace"] + (1 << 21)
                passed &= row["passed"]
            rows.append(row)
    return {"rows": rows, "passed": passed}


def text(record: dict[str, Any]) -> Iterator[str]:
    """Say a report to people: a line per step, then what is wrong."""
    for name, step in record["steps"].items():
        verdict = "WRONG" if not step.get("passed", True) else "right"
        yield f"{name:20} {verdict:6} {step['seconds']:6.1f} s  {_gist(step)}"
    for name, step in record["steps"].items():
        for wrong in (*step.get("mismatches", ()), *(v for v in step.get("verdicts", ()) if not v["passed"])):
            yield f"{name}: {wrong}"
        if "error" in step:
            yield f"{name}: {step['error']}"
    yield f"{'all right' if record['passed'] else 'something is wrong'}, {record['seconds']:.0f} s"


def _gist(step: dict[str, Any]) -> str:
    """Return the plain values of a step in a line."""
    plain = {key: value for key, value in step.items() if not isinstance(value, (dict, list)) and key != "seconds"}
    plain.pop("passed", None)
    if "providers" in step and isinstance(step["providers"], dict):
        plain["providers"] = ", ".join(name for name, state in step["providers"].items() if state == "runs")
    return ", ".join(f"{key} {value}" for key, value in plain.items())
