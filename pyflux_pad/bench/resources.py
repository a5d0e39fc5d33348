"""What grows with the work: time with batch and area, and the most memory that is resident at once.

Every figure comes from a process of its own, since the thread pools of two libraries in one process wait for each
other, and memory that one contestant freed is resident for the next.
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import available_backends
from .cases import CASES, LATENCY
from .contestants import CONTESTANTS, Contestant

_BATCHES = [(n, 32, 28, 28) for n in (4, 8, 16, 32, 64, 128, 256)]
_AREAS = [(2, 32, n, n) for n in (56, 80, 112, 160, 224, 320, 448)]
_PADDING = ((1, 2), (2, 1))
_KERNEL = (32, 32, 4, 4)
_ROUNDS = 9
_GROWING = ("numpy", "torch", "torch's own")
_HOLDING = ("pyflux_pad on numpy", "np.pad + einsum")


def growth() -> list[tuple[str, float, float]]:
    """Return, per engine, the exponents by which time grows with the batch and with the area, over a factor of 64."""
    names = [name for name in _GROWING if available_backends()[name.partition("'")[0]].available]
    return [(name, *_alone("growth", name)) for name in names]


def peaks() -> list[tuple[str, float, dict[str, float]]]:
    """Return, per case, the bound and what each pass makes resident beside operands and result, in MB.

    The bound is 1.5 times operands and result, and 16 MB. Empty where the system does not tell (it is Linux that does).
    """
    if not _resettable():
        return []
    rows = []
    for case in CASES.values():
        if case.name != LATENCY:
            bound = 1.5 * sum(array.nbytes for array in case.arrays()) / 1e6 + 16
            found = {f"{name}, {which}": _alone("peak", name, case.name, which)
                     for name in _HOLDING for which in ("forward", "input", "weight")}  # fmt: skip
            rows.append((case.name, bound, found))
    return rows


def _alone(*arguments: str) -> Any:
    """Return what a process of its own prints."""
    command = [sys.executable, "-m", "pyflux_pad.bench.resources", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"bench: {' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout)


def _growth(name: str) -> tuple[float, float]:
    return _exponent(name, _BATCHES), _exponent(name, _AREAS)


def _exponent(name: str, shapes: list[tuple[int, ...]]) -> float:
    """Fit the logarithm of the median times, the sizes measured in another order every round."""
    works = [_convolution(name, shape) for shape in shapes]
    times: list[list[float]] = [[] for _ in works]
    for _ in range(_ROUNDS):
        for place in random.sample(range(len(works)), len(works)):
            works[place]()  # after another size: what it needs is not in the cache
            start = time.perf_counter()
            for _ in range(repeats := len(works) - place):
                works[place]()
            times[place].append((time.perf_counter() - start) / repeats)
    sizes = [math.log(math.prod(shape)) for shape in shapes]
    return float(np.polyfit(sizes, np.log(np.median(times, axis=1)), 1)[0])


def _convolution(name: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    from ..ops import conv

    x, weight = np.ones(shape, np.float32), np.ones(_KERNEL, np.float32)
    if name == "numpy":
        return lambda: conv(x, weight, padding=_PADDING)
    import torch

    tensors = torch.from_numpy(x), torch.from_numpy(weight)
    if name == "torch":
        return lambda: conv(*tensors, padding=_PADDING)
    padded = torch.nn.functional.pad(tensors[0], (2, 1, 1, 2))
    return lambda: torch.nn.functional.conv2d(padded, tensors[1])


def _peak(name: str, case: str, which: str) -> float:
    """Return the MB that were resident at once beside what was before and the result."""
    contestant: Contestant = next(one for one in CONTESTANTS if one.name == name)
    contestant.prepare(CASES[LATENCY], which)()  # loads what is loaded at the first call
    work = contestant.prepare(CASES[case], which)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's: what is free is resident no more
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before = _status("VmRSS")
    result = work()
    return (_status("VmHWM") - before - result.nbytes) / 1e6


def _status(name: str) -> int:
    """Return a line of the process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def _resettable() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps({"growth": _growth, "peak": _peak}[sys.argv[1]](*sys.argv[2:])))
