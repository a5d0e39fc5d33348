"""What is right on a GPU: integers bit for bit on every provider and engine of cuDNN, borders, streams, threads.

Data are integers from -3 to 3: every sum is exact in float32, TF32 included, and is rounded once at the end. So every
way to compute it gives the same bits as NumPy in float64, or is wrong.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..backends import BackendUnavailable
from ..backends.cupy import CupyEngine, frontend
from ..backends.cupy.device import Array
from ..backends.cupy.layouts import FIRST, LAST, empty
from ..backends.cupy.prepad import pre_padding
from ..backends.cupy.providers import NAMES, Missing, result_shape
from ..backends.numpy import NumpyEngine
from ..geometry import ConvGeometry, arguments, cached_pool_geometry, conv_geometry, pad_geometry, plan_conv
from .machine import Machine

OPERATORS = ("conv", "conv_input", "conv_weight")
_REFERENCE = NumpyEngine()
_native_plan = lru_cache(maxsize=1024)(partial(plan_conv, native=True))
_PADS = ((0, 1), (1, 0), (0, 2), (3, 1), (2, 2), (5, 0), (-1, 2))


class Problem(NamedTuple):
    """A convolution with integer operands on the host, in float64."""

    name: str
    geometry: ConvGeometry
    x: np.ndarray
    weight: np.ndarray
    grad: np.ndarray

    def operands(self, operator: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the two operands of an operator."""
        pairs = {
            "conv": (self.x, self.weight),
            "conv_input": (self.grad, self.weight),
            "conv_weight": (self.x, self.grad),
        }
        return pairs[operator]

    def expected(self, operator: str) -> np.ndarray:
        """Return the result in float64."""
        return run(_REFERENCE, operator, self.geometry, *self.operands(operator))


def run(engine: Any, operator: str, geometry: ConvGeometry, first: Array, second: Array) -> Array:
    """Run an operator on an engine."""
    if operator == "conv":
        return engine.conv(_native_plan(geometry), first, second)
    return getattr(engine, operator)(geometry, first, second)


def problem(
    name: str, size: tuple[int, ...], kernel: int, pads: Any, stride: int, dilation: int, groups: int, channels: int
) -> Problem:
    """Return a convolution of `channels` channels in each group; different pads on every axis."""
    ndim, generator = len(size), np.random.default_rng(len(name) + sum(size))
    x_shape, weight_shape = (2, groups * channels, *size), (groups * channels, channels, *(kernel,) * ndim)
    settings = arguments(name, ndim, stride, pads, dilation, groups, False)
    geometry = conv_geometry(name, x_shape, weight_shape, settings)
    shapes = x_shape, weight_shape, geometry.output_shape
    return Problem(name, geometry, *(generator.integers(-3, 4, shape).astype(np.float64) for shape in shapes))


def problems(count: int) -> list[Problem]:
    """Return convolutions of one to three axes over pads, strides, dilations, groups and kernels."""
    generator, found = np.random.default_rng(0), []
    while len(found) < count:
        ndim = (1, 2, 2, 2, 3)[int(generator.integers(5))]
        kernel = int(generator.choice((1, 2, 3, 4, 7) if ndim < 3 else (1, 2, 3)))
        stride, dilation = int(generator.choice((1, 1, 2, 3))), int(generator.choice((1, 1, 2)))
        groups, channels = ((1, 3), (1, 8), (1, 64), (2, 4), (8, 1))[int(generator.integers(5))]
        size = tuple(int(n) for n in generator.integers(dilation * (kernel - 1) + 2, 20, ndim))
        pads = tuple(_PADS[int(generator.integers(len(_PADS)))] for _ in range(ndim))
        name = f"{ndim}d n={size} k={kernel} s={stride} d={dilation} g={groups}x{channels} pads={pads}"
        found.append(problem(name, size, kernel, pads, stride, dilation, groups, channels))
    return found


def exactness(machine: Machine, count: int, dtypes: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Compare every provider with NumPy: the three operators, dtypes and layouts in turn, as many as time allows."""
    compared, refused, wrong, start = 0, {}, [], time.perf_counter()
    engines = {name: machine.engine(name) for name in NAMES if _runs(machine, name)}
    forms = itertools.cycle(itertools.product(dtypes, (FIRST, LAST)))
    done = 0
    for item in problems(count):
        if time.perf_counter() - start > seconds:
            break
        done += 1
        for operator in OPERATORS:
            dtype, layout = next(forms)
            expected = item.expected(operator)
            operands = [_place(machine, array, dtype, layout) for array in item.operands(operator)]
            for name, engine in engines.items():
                what = [item.name, operator, dtype, layout, name]
                try:
                    count_wrong = mismatches(machine, run(engine, operator, item.geometry, *operands), expected)
                except BackendUnavailable as error:
                    refused.setdefault(f"{name} {operator} {dtype}", []).append(f"{item.name}: {error}"[:300])
                    continue
                except Exception as error:  # An engine that breaks is a finding of this command, not its end.
                    wrong.append([*what, f"{type(error).__name__}: {error}"[:300]])
                    continue
                compared += 1
                if count_wrong:
                    wrong.append([*what, count_wrong])
    refusals = {key: {"count": len(reasons), "first": reasons[0]} for key, reasons in refused.items()}
    passed = compared > 0 and not wrong
    return {"cases": done, "compared": compared, "mismatches": wrong, "refused": refusals, "passed": passed}


def mismatches(machine: Machine, result: Array, expected: np.ndarray) -> int:
    """Return how many elements are not the bits of the expected ones rounded once."""
    found = machine.to_host(result)
    if found.shape != expected.shape:
        return found.size + 1
    rounded = expected.astype(found.dtype)
    return int((~((found == rounded) | (np.isnan(found) & np.isnan(rounded)))).sum())


def _place(machine: Machine, array: np.ndarray, dtype: str, layout: str = FIRST) -> Array:
    """Return an array on the device, dense in a layout."""
    copy = empty(machine.xp, array.shape, machine.xp.dtype(dtype), layout)
    copy[...] = machine.xp.asarray(array.astype(copy.dtype))
    return copy


def sweep(machine: Machine, most: int, seconds: float) -> dict[str, Any]:
    """Execute up to `most` plans of cuDNN one by one: an engine that accepts a pair of pads must honour it."""
    frontend_provider: Any = machine.engine("frontend").chain.provider("frontend")
    graphs, rows, start = frontend_provider.graphs, [], time.perf_counter()
    low, double = ("float16", "float32"), ("float64",)
    cases = (
        (problem("strided", (13, 12), 3, ((0, 1), (1, 0)), 2, 1, 1, 8), low),
        (problem("plain", (14, 11), 3, ((2, 0), (0, 1)), 1, 1, 1, 64), low),
        (problem("depthwise", (12, 13), 3, ((0, 2), (1, 0)), 1, 1, 8, 1), low),
        (problem("double", (9, 10), 3, ((0, 1), (2, 1)), 1, 1, 1, 8), double),
        (problem("dilated", (15, 14), 3, ((0, 3), (1, 0)), 1, 2, 1, 16), low),
        (problem("3d", (6, 7, 8), 3, ((0, 1), (1, 0), (2, 0)), 1, 1, 1, 8), low),
    )
    asked = itertools.product(cases, OPERATORS, (LAST, FIRST))
    for (item, dtypes), operator, layout in asked:
        for dtype in dtypes:
            if time.perf_counter() - start > seconds:
                break
            row: dict[str, Any] = {"case": item.name, "operator": operator, "dtype": dtype, "layout": layout}
            given = machine, graphs, operator
            row["symmetric_plans"] = _plan_counts(*given, _symmetric(item.geometry), dtype, layout)
            row["plans"] = _plan_counts(*given, pre_padding(item.geometry, True).geometry, dtype, layout)
            rows.append(row | _each_plan(*given, item, dtype, layout, most))
    mismatched = [row for row in rows if row["mismatches"]]
    executed = sum(row["executed"] for row in rows)
    return {"executed": executed, "rows": rows, "passed": executed > 0 and not mismatched}


def _symmetric(geometry: ConvGeometry) -> ConvGeometry:
    """Return the same convolution with a pad of 1 on every side."""
    settings = arguments(
        "symmetric", geometry.ndim, geometry.stride, 1, geometry.dilation, geometry.groups, geometry.flip_kernel
    )
    return conv_geometry("symmetric", geometry.input_shape, geometry.weight_shape, settings)


def _graph(
    machine: Machine, graphs: Any, operator: str, geometry: ConvGeometry, dtype: str, layout: str, arrays: Any = None
) -> Any:
    """Return a validated graph on this thread's handle."""
    if arrays is None:
        shapes = {
            "conv": (geometry.input_shape, geometry.weight_shape),
            "conv_input": (geometry.output_shape, geometry.weight_shape),
            "conv_weight": (geometry.input_shape, geometry.output_shape),
        }[operator]
        kind = machine.xp.dtype(dtype)
        arrays = [empty(machine.xp, s, kind, layout) for s in (*shapes, result_shape(operator, geometry))]
    tensors = tuple(frontend.describe(array, machine.device.pointer(array), layout) for array in arrays)
    handle = graphs.handle(machine.device.of(arrays[0]))
    return frontend.operation_graph(graphs.cudnn, handle, operator, geometry, dtype, tensors)


def _plan_counts(
    machine: Machine, graphs: Any, operator: str, geometry: ConvGeometry, dtype: str, layout: str
) -> dict[str, Any]:
    """Return how many plans each heuristic mode has for a geometry; its refusal where it has none."""
    counts: dict[str, Any] = {}
    for mode in ("A", "FALLBACK"):
        try:
            graph = _graph(machine, graphs, operator, geometry, dtype, layout)
            graph.create_execution_plans([getattr(graphs.cudnn.heur_mode, mode)])
            graph.check_support()
            counts[mode] = graph.get_execution_plan_count()
        except (graphs.cudnn.cudnnGraphNotSupportedError, ValueError, RuntimeError) as error:
            counts[mode] = f"{type(error).__name__}: {error}"[:200]
    return counts


def _each_plan(
    machine: Machine, graphs: Any, operator: str, item: Problem, dtype: str, layout: str, most: int
) -> dict[str, Any]:
    """Execute the plans of a graph, those that are exact by their notes, each into a result of its own."""
    geometry, cudnn = pre_padding(item.geometry, True).geometry, graphs.cudnn
    first, second = (_place(machine, array, dtype, layout) for array in item.operands(operator))
    expected, wrong, executed, failed = item.expected(operator), [], 0, []
    out = empty(machine.xp, result_shape(operator, geometry), first.dtype, layout)
    try:
        graph = _graph(machine, graphs, operator, geometry, dtype, layout, (first, second, out))
        frontend.plan_graph(cudnn, graph, dtype, False)
        count = graph.get_execution_plan_count()
    except (cudnn.cudnnGraphNotSupportedError, ValueError, RuntimeError) as error:
        return {"executed": 0, "mismatches": [], "failed": [f"{type(error).__name__}: {error}"[:200]]}
    pointers = {uid: machine.device.pointer(array) for uid, array in enumerate((first, second, out), 1)}
    for index in range(min(count, most)):
        name = graph.get_plan_name_at_index(index)
        try:
            graph.build_plan_at_index(index)
        except (cudnn.cudnnGraphNotSupportedError, ValueError, RuntimeError) as error:
            failed.append(f"{name}: {type(error).__name__}"[:200])
            continue
        out[...] = float("nan")
        memory, workspace = machine.device.workspace(graph.get_workspace_size_plan_at_index(index))
        graph.execute_plan_at_index(pointers, workspace, index, handle=graphs.handle(machine.device.of(first)))
        machine.synchronize()
        del memory
        executed += 1
        count_wrong = mismatches(machine, out, expected)
        if count_wrong:
            wrong.append([name, count_wrong])
    return {"executed": executed, "mismatches": wrong, "failed": failed}


def poison(machine: Machine) -> dict[str, Any]:
    """Convolve interiors of buffers full of NaN into an interior: no NaN gets in, and nothing around it is written."""
    item, xp = problem("poison", (11, 13), 3, ((2, 0), (0, 1)), 1, 1, 2, 4), machine.xp
    wrong, refused = [], []
    for name in [name for name in NAMES if _runs(machine, name)]:
        for dtype in ("float32", "float16"):
            for low in (3, 4):  # a view that begins between 16-byte borders, and one that does not
                engine = machine.engine(name)

                def inside(array: np.ndarray, low: int = low, dtype: str = dtype) -> Array:
                    border = [(0, 0), (0, 0), (2, 1), (low, 5)]
                    whole = np.pad(array, border, constant_values=np.nan).astype(dtype)
                    return xp.asarray(whole)[:, :, 2:-1, low:-5]

                x, weight = inside(item.x), inside(item.weight)
                guard = xp.full((*item.geometry.output_shape[:-1], item.geometry.output_shape[-1] + 9), -77, dtype)
                out = guard[..., low : -(9 - low)]
                try:
                    engine.conv(_native_plan(item.geometry), x, weight, None, True, out)
                    results = {
                        "conv": out,
                        "conv_input": run(engine, "conv_input", item.geometry, inside(item.grad), weight),
                        "conv_weight": run(engine, "conv_weight", item.geometry, x, inside(item.grad)),
                    }
                except BackendUnavailable as error:
                    refused.append([name, dtype, low, str(error)[:300]])
                    continue
                guards = [machine.to_host(part) for part in (guard[..., :low], guard[..., low - 9 :])]
                if not all((part == -77).all() for part in guards):
                    wrong.append([name, dtype, low, "wrote beside the result"])
                for operator, result in results.items():
                    if mismatches(machine, result, item.expected(operator)):
                        wrong.append([name, dtype, low, operator])
    return {"mismatches": wrong, "refused": refused, "passed": not wrong}


def streams_and_threads(machine: Machine, slow_size: int) -> dict[str, Any]:
    """Convolve on new streams behind slow work, and in two threads at once."""
    item, wrong = problem("streams", (64, 63), 3, ((2, 0), (0, 1)), 1, 1, 1, 16), []
    expected = item.expected("conv")
    names = [name for name in NAMES if _runs(machine, name)]

    def work(name: str, engine: CupyEngine, repeats: int) -> None:
        with machine.stream():
            for _ in range(repeats):
                slow = machine.xp.ones((slow_size, slow_size), np.float32)
                for _ in range(8):
                    slow = slow @ slow / slow_size
                # x is ready only when the product is.
                x = _place(machine, item.x, "float32") * slow[0, 0]
                y = run(engine, "conv", item.geometry, x, _place(machine, item.weight, "float32"))
                if mismatches(machine, y, expected):
                    wrong.append(name)

    errors: list[str] = []

    def guarded(*given: Any) -> None:
        try:
            work(*given)
        except Exception as error:  # a thread's error belongs in the report
            errors.append(f"{type(error).__name__}: {error}"[:300])

    for name in names:
        guarded(name, machine.engine(name), 2)
        engine = machine.engine(name)
        threads = [threading.Thread(target=guarded, args=(name, engine, 3)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"providers": names, "mismatches": wrong, "errors": errors, "passed": not wrong and not errors}


def _runs(machine: Machine, name: str) -> bool:
    try:
        machine.engine(name).chain.provider(name)
    except Missing:
        return False
    return True


def chain(machine: Machine) -> dict[str, Any]:
    """Take one provider after the other away: the same numbers, one warning that names what computes."""
    item, rows = problem("chain", (9, 8), 3, ((2, 0), (0, 1)), 1, 1, 1, 8), []

    def gone() -> Any:
        raise Missing("taken away for this check")

    for taken in range(len(NAMES)):
        engine = machine.engine(None)
        for name in NAMES[:taken]:
            engine.chain.makers[name] = gone
        x, weight = (_place(machine, array, "float32") for array in item.operands("conv"))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            y = [run(engine, "conv", item.geometry, x, weight) for _ in range(2)][-1]
        said = [str(warning.message) for warning in seen if "pyflux_pad" in str(warning.message)]
        rows.append({"taken": list(NAMES[:taken]), "warnings": said, "mismatches": mismatches(
            machine, y, item.expected("conv"))})  # fmt: skip
    return {"rows": rows, "passed": all(not row["mismatches"] and len(row["warnings"]) <= 1 for row in rows)}


def kernels(machine: Machine, count: int, dtypes: tuple[str, ...]) -> dict[str, Any]:
    """Compare the kernels of pools, padding modes and columns, and their gradients, with the reference engine."""
    engine, generator, wrong, compared = machine.engine(None), np.random.default_rng(1), [], 0
    for number in range(count):
        ndim = int(generator.integers(1, 4))
        size = tuple(int(n) for n in generator.integers(3, 9, ndim))
        kernel, stride, dilation = (tuple(int(n) for n in generator.integers(1, 4, ndim)) for _ in range(3))
        pads = tuple((int(low), int(high)) for low, high in generator.integers(-1, 4, (ndim, 2)))
        try:
            windows = cached_pool_geometry("kernels", size, kernel, stride, pads, dilation, bool(number % 2))
        except ValueError:
            continue
        modes = tuple(str(mode) for mode in generator.choice(("constant", "reflect", "circular", "symmetric"), ndim))
        padding = pad_geometry("kernels", size, pads, modes, False)
        x = generator.integers(-3, 4, (2, 3, *size)).astype(np.float64)
        for dtype in dtypes:
            for name, found, expected in _compared(machine, engine, windows, padding, x, dtype):
                compared += 1
                difference = np.abs(machine.to_host(found).astype(np.float64) - expected.astype(np.float64))
                infinite = ~np.isfinite(expected.astype(np.float64)) & (machine.to_host(found) == expected)
                limit = {"float64": 1e-12, "float32": 1e-5}.get(dtype, 2e-2)
                if (difference[~infinite] > limit * (1 + np.abs(expected.astype(np.float64)))[~infinite]).any():
                    wrong.append([name, dtype, repr(windows)])
    return {"compared": compared, "mismatches": wrong[:50], "passed": compared > 0 and not wrong}


def _compared(
    machine: Machine, engine: CupyEngine, windows: Any, padding: Any, x: np.ndarray, dtype: str
) -> Iterator[tuple[str, Array, np.ndarray]]:
    """Yield the name, the result of the engine and that of NumPy in the same dtype."""
    host = x.astype(dtype)
    here = machine.xp.asarray(host)
    for name, given in (
        ("avg_pool", (True, None)),
        ("lp_pool", (2.0,)),
        ("max_pool", (True,)),
        ("unfold", ()),
    ):
        found, expected = (getattr(e, name)(windows, a, *given) for e, a in ((engine, here), (_REFERENCE, host)))
        if name == "max_pool":
            yield "max_pool index", found[1], expected[1]
            shares = np.ones(expected[0].shape, host.dtype)
            yield (
                "max_pool_transpose",
                engine.max_pool_transpose(x.shape, found[1], machine.xp.asarray(shares)),
                _REFERENCE.max_pool_transpose(x.shape, expected[1], shares),
            )
            found, expected = found[0], expected[0]
        yield name, found, expected
    grad = np.ones((*x.shape[:2], *windows.output_size), host.dtype)
    there = machine.xp.asarray(grad)
    yield (
        "avg_pool_transpose",
        engine.avg_pool_transpose(windows, there, False, None),
        _REFERENCE.avg_pool_transpose(windows, grad, False, None),
    )
    yield (
        "lp_pool_gradient",
        engine.lp_pool_gradient(windows, here, there, 3.0),
        _REFERENCE.lp_pool_gradient(windows, host, grad, 3.0),
    )
    padded = _REFERENCE.pad(padding, host)
    yield "pad", engine.pad(padding, here), padded
    yield (
        "pad_transpose",
        engine.pad_transpose(padding, machine.xp.asarray(padded)),
        _REFERENCE.pad_transpose(padding, padded),
    )
