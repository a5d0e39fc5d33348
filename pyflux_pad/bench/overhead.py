"""What the package itself costs: the import beyond NumPy's, a call beyond the engine's own, time and memory that grow.

Calls and imports are differences of two things measured in turn in one run; growth and memory see `resources`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from ..backends import available_backends
from ..console import table
from ..ops import conv, plan
from .resources import growth, peaks

_REPEATS = 11


def import_cost() -> float:
    """Return the seconds that ``import pyflux_pad`` takes beyond ``import numpy``, in fresh interpreters."""
    program = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

    def seconds(modules: str) -> float:
        output = subprocess.run(
            [sys.executable, "-c", program.format(modules)], check=True, capture_output=True, text=True
        )
        return float(output.stdout)

    seconds("numpy, pyflux_pad")  # fill the file cache
    pairs = [(seconds("numpy"), seconds("numpy, pyflux_pad")) for _ in range(_REPEATS)]
    return statistics.median(ours - numpy for numpy, ours in pairs)


def call_costs() -> list[tuple[str, float, float, float]]:
    """Return, per strategy, microseconds of torch's own calls, of a planned call and of `conv`, on a tiny array."""
    import torch
    import torch.nn.functional as F

    x, weight = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    same_calls: dict[str, tuple[object, Callable[[], torch.Tensor]]] = {
        "symmetric": (1, lambda: F.conv2d(x, weight, padding=1)),
        "crop": (((1, 0), (0, 1)), lambda: F.conv2d(x, weight, padding=1).narrow(2, 0, 5).narrow(3, 1, 5).contiguous()),
        "residual": (((1, 0), (0, 1)), lambda: F.conv2d(F.pad(x, (0, 1, 1, 0)), weight)),
    }
    rows = []
    for strategy, (padding, torch_calls) in same_calls.items():
        planned = plan(x.shape, weight.shape, padding=padding, backend="torch", strategy=strategy)  # type: ignore
        calls = (torch_calls, lambda p=planned: p(x, weight), lambda pad=padding: conv(x, weight, padding=pad))  # type: ignore
        rounds = [[_microseconds(call) for call in calls] for _ in range(_REPEATS)]
        raw, ours, unplanned = map(min, zip(*rounds, strict=True))  # the rest is what the machine did meanwhile
        rows.append((strategy, raw, ours, unplanned))
    return rows


_INSIDE_JULIA = """
function(x, w, low, number)
    dims = NNlib.DenseConvDims(x, w; padding=(low, 0, low, 0), flipkernel=true)
    y = NNlib.conv(x, w, dims)
    start = time_ns()
    for _ in 1:number
        NNlib.conv!(y, x, w, dims)
    end
    return (time_ns() - start) / number / 1000
end
"""


def julia_start() -> tuple[float, float]:
    """Return the seconds that a fresh process needs to start Julia with everything, and for its first convolution."""
    program = (
        "import time; t = time.perf_counter(); import numpy as np, pyflux_pad as pp; pp.julia_info(); "
        "u = time.perf_counter(); x = np.ones((2, 3, 16, 16), 'f'); w = np.ones((4, 3, 3, 3), 'f'); "
        "pp.conv(x, w, backend='julia'); print(u - t, time.perf_counter() - u)"
    )

    def seconds() -> tuple[float, float]:
        start, first = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.split()
        return float(start), float(first)

    seconds()  # fill the file cache, and Julia's own
    starts, firsts = zip(*[seconds() for _ in range(3)], strict=True)
    return statistics.median(starts), statistics.median(firsts)


def julia_calls() -> list[tuple[str, float, float, float]]:
    """Return, per size, microseconds of NNlib timed inside Julia, and of `conv` on NumPy arrays and on tensors."""
    import numpy as np
    import torch

    from ..backends import julia_info

    julia_info()
    import juliacall

    module: Any = juliacall.newmodule("Bench")
    module.seval("import NNlib")
    inside, dense = module.seval(_INSIDE_JULIA), module.seval("Array")
    rows = []
    for name, x_shape, w_shape, number in (
        ("tiny", (1, 2, 6, 6), (2, 2, 3, 3), 2000),
        ("about 1 ms", (1, 16, 48, 48), (16, 16, 3, 3), 100),
        ("about 10 ms", (4, 32, 64, 64), (32, 32, 3, 3), 10),
    ):
        x, w = np.ones(x_shape, np.float32), np.ones(w_shape, np.float32)
        operands, tensors, pads = (dense(x.T), dense(w.T)), (torch.from_numpy(x), torch.from_numpy(w)), ((1, 0), (1, 0))
        rounds = [
            (
                inside(*operands, 1, number),
                _microseconds(lambda x=x, w=w, pads=pads: conv(x, w, padding=pads, backend="julia"), number),
                _microseconds(lambda t=tensors, pads=pads: conv(*t, padding=pads, backend="julia"), number),
            )
            for _ in range(_REPEATS)
        ]
        rows.append((name, *map(min, zip(*rounds, strict=True))))
    return rows


def _microseconds(call: Callable[[], object], number: int = 2000) -> float:
    return timeit.timeit(call, number=number) / number * 1e6


def measure_all() -> dict[str, Any]:
    """Return the import's seconds, and rows of microseconds: of torch's calls, and of Julia where it runs."""
    record: dict[str, Any] = {"import": import_cost(), "torch": call_costs(), "growth": growth(), "peaks": peaks()}
    if available_backends()["julia"].available:
        record |= {"julia_start": julia_start(), "julia": julia_calls()}
    return record


def describe(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that say what was measured, microseconds."""
    yield f"import pyflux_pad beyond numpy: {record['import'] * 1e3:.0f} ms"
    yield ""
    yield from _rows(("strategy", "torch's calls", "planned", "above", "conv()", "above"), record["torch"])
    yield ""
    yield from table(
        ("engine", "exponent of the batch", "exponent of the area"),
        [(name, f"{batch:.3f}", f"{area:.3f}") for name, batch, area in record["growth"]],
    )
    if record["peaks"]:
        yield ""
        yield "MB resident beside operands and result"
        names = list(record["peaks"][0][2])
        yield from table(
            ("case", "bound", *names),
            [
                (case, f"{bound:.0f}", *(f"{found[name]:.0f}" for name in names))
                for case, bound, found in record["peaks"]
            ],
        )
    if "julia" in record:
        yield ""
        yield "Julia: start {:.2f} s, first convolution {:.4f} s, in fresh processes".format(*record["julia_start"])
        yield ""
        yield from _rows(("size", "in Julia", "NumPy arrays", "above", "tensors", "above"), record["julia"])


def _rows(headers: tuple[str, ...], rows: list[tuple[str, float, float, float]]) -> Iterator[str]:
    return table(
        headers,
        [
            (name, f"{raw:.1f}", f"{first:.1f}", f"{first - raw:.1f}", f"{second:.1f}", f"{second - raw:.1f}")
            for name, raw, first, second in rows
        ],
    )
