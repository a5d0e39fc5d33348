"""How time is taken: a process per case, contestants in turn, medians, and of several processes the middle one."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from .cases import CASES, Case
from .contestants import CONTESTANTS, Unsupported, Work, inside, results

WARM_UPS = 3
ROUNDS = 11
PROCESSES = 3
BLOCK = 31 << 20
"""Bytes allocated, touched and freed at the start: from then on glibc keeps freed memory, up to blocks of this size, as
in any program that has run for a while. It does not learn from larger blocks, nor later from one that fits between
others: convolutions of 16 MB arrays then took twice as long."""
LIMIT = 1e-4
"""The largest difference between contestants that passes, as a part of the largest value."""
_SHORTEST = 2e-4
"""Seconds below which a round repeats its work."""


@dataclass(frozen=True)
class Protocol:
    """What one process is to do: the pass, the threads, whether memory is warm, and how often."""

    which: str = "forward"
    threads: int = 0
    cold: bool = False
    tuned: bool = False
    processes: int = PROCESSES
    warm_ups: int = WARM_UPS
    rounds: int = ROUNDS


def measure(case: Case, protocol: Protocol, names: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds of every contestant, the middle of several processes, and why others did not run.

    Raises
    ------
    RuntimeError
        If a process fails, among others because the results of two contestants differ.
    """
    order = json.dumps({"case": case.name, "protocol": asdict(protocol), "names": list(names)})
    environment = dict(os.environ)
    if protocol.threads:
        names_of_threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment |= dict.fromkeys(names_of_threads, str(protocol.threads))
    runs = []
    for _ in range(protocol.processes):
        done = subprocess.run(
            [sys.executable, "-m", "pyflux_pad.bench.protocol", order], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"bench: {case.name}, {protocol.which}: {done.stderr.strip()[-1000:]}")
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    seconds = {name: statistics.median(run["seconds"][name] for run in runs) for name in runs[0]["seconds"]}
    return seconds, runs[0]["skipped"]


def _run(case: Case, protocol: Protocol, names: Sequence[str]) -> dict[str, dict[str, float] | dict[str, str]]:
    """Do one process's part."""
    if not protocol.cold:
        block = np.ones(BLOCK, np.uint8)
        del block
    if protocol.threads and "torch" in " ".join(names):
        import torch

        torch.set_num_threads(protocol.threads)
    if protocol.tuned:
        from ..memory import tune_memory

        tune_memory()
    works: dict[str, Work] = {}
    skipped: dict[str, str] = {}
    for contestant in CONTESTANTS:
        if contestant.name not in names:
            continue
        skipped[contestant.name] = contestant.missing()
        if not skipped[contestant.name]:
            try:
                works[contestant.name] = contestant.prepare(case, protocol.which)
                del skipped[contestant.name]
            except Unsupported as reason:
                skipped[contestant.name] = str(reason)
    _check(case, protocol.which, works)
    return {"seconds": _time(works, protocol), "skipped": skipped}


def _check(case: Case, which: str, works: dict[str, Work]) -> None:
    """Compare what the contestants return; the input's gradient of a floor has the padding around it."""
    wanted: list[np.ndarray] = []
    first = ""
    for name, work in works.items():
        found = list(results(work()))
        found = [array if array.shape in (case.x, case.weight, case.output_shape) else array[inside(case)]
                 for array in found]  # fmt: skip
        if not wanted:
            first, wanted = name, found
            continue
        for array, want in zip(found, wanted, strict=True):
            apart, largest = np.abs(array - want).max(), np.abs(want).max()
            if array.shape != want.shape or not apart <= LIMIT * largest:
                raise SystemExit(f"{name} differs from {first} by {apart:.3g}, the largest value is {largest:.3g}")


def _time(works: dict[str, Work], protocol: Protocol) -> dict[str, float]:
    """Time the contestants in turn, in another order every round; return the medians.

    Who comes after a contestant that reads the same arrays finds them in the cache.
    """
    repeats = {name: _repeats(work, protocol.warm_ups) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    shuffle = random.Random(0).shuffle
    for _ in range(protocol.rounds):
        shuffle(order)
        for name in order:
            work = works[name]
            start = time.perf_counter()
            for _ in range(repeats[name]):
                work()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(rounds) for name, rounds in times.items()}


def _repeats(work: Work, warm_ups: int) -> int:
    """Warm up; return how often short work is repeated in a round."""
    seconds = _SHORTEST
    for _ in range(warm_ups):
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
    return max(1, round(_SHORTEST / max(seconds, 1e-7)))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_run(CASES[given["case"]], Protocol(**given["protocol"]), given["names"])))
