"""What the package itself costs: the import beyond NumPy's, and the Python of a call beyond torch's own calls.

Run ``python -m pyflux_pad.bench``. Every figure is a difference or a ratio of two things measured in turn in one run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable

from .ops import conv, plan

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


def _microseconds(call: Callable[[], object], number: int = 2000) -> float:
    return timeit.timeit(call, number=number) / number * 1e6


def main() -> None:
    """Measure and print."""
    start = time.perf_counter()
    print(f"import pyflux_pad beyond numpy: {import_cost() * 1e3:.0f} ms")
    print(f"{'strategy':10} {'torch calls':>12} {'planned':>9} {'above':>7} {'conv':>8} {'above':>7}   microseconds")
    for strategy, raw, ours, unplanned in call_costs():
        print(f"{strategy:10} {raw:12.1f} {ours:9.1f} {ours - raw:7.1f} {unplanned:8.1f} {unplanned - raw:7.1f}")
    print(f"({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
