"""The command ``pyflux-pad bench``: records of plain values, and their text."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..console import Progress, table
from .cases import CASES, PASSES
from .contestants import CONTESTANTS
from .protocol import Protocol, measure
from .report import case_rows, columns, comparisons, plot

AddCommand = Callable[..., argparse.ArgumentParser]


def add_commands(commands: Any, add_command: AddCommand) -> None:
    """Add the command to the command line; `add_command` is its own way of adding one."""
    bench = add_command(commands, "bench", "the same convolutions on every engine and peer, timed in turn", _bench,
                        _text)  # fmt: skip
    bench.add_argument("--pass", dest="passes", nargs="+", choices=PASSES, default=["forward"],
                       help="what is timed (default: forward)")  # fmt: skip
    bench.add_argument("--case", dest="cases", nargs="+", choices=tuple(CASES), default=list(CASES), metavar="CASE",
                       help=f"which convolutions (default: all): {', '.join(CASES)}")  # fmt: skip
    bench.add_argument("--only", nargs="+", choices=[c.name for c in CONTESTANTS], metavar="NAME",
                       help=f"who takes part (default: all): {', '.join(c.name for c in CONTESTANTS)}")  # fmt: skip
    bench.add_argument("--threads", type=int, default=0, metavar="N", help="threads of every contestant")
    bench.add_argument("--cold", action="store_true", help="in fresh memory, as in the first seconds of a program")
    bench.add_argument("--tune-memory", action="store_true", help="call pyflux_pad.tune_memory() first")
    bench.add_argument("--quick", action="store_true", help="run everything once: are the results right?")
    bench.add_argument("--plot", metavar="FILE", help="draw bars (needs matplotlib)")
    bench.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                       help="cuda: what is right bit for bit and how fast on a GPU (default: cpu)")  # fmt: skip
    bench.add_argument("--output", metavar="FILE", help="where the GPU's report goes, as JSON, after every step")
    bench.add_argument(
        "--overhead",
        action="store_true",
        help="measure calls, imports, growth, resident memory and Julia's start instead",
    )


def _bench(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.device == "cuda":
        from .gpu import report
        from .machine import CupyMachine

        return {"device": "cuda", **report(CupyMachine(), arguments.output)}
    if arguments.output:
        raise ValueError("--output is for --device cuda; use --json")
    if arguments.overhead:
        from .overhead import measure_all

        return measure_all()
    if arguments.threads < 0:
        raise ValueError(f"--threads {arguments.threads} is no number of threads")
    names = arguments.only or [contestant.name for contestant in CONTESTANTS]
    once = {"processes": 1, "warm_ups": 0, "rounds": 1} if arguments.quick else {}
    record: dict[str, Any] = {"machine": host(), "cold": arguments.cold, "tuned": arguments.tune_memory,
                              "passes": {}, "skipped": {}, "comparisons": {}}  # fmt: skip
    with Progress("measuring", len(arguments.passes) * len(arguments.cases)) as bar:
        for which in arguments.passes:
            protocol = Protocol(which, arguments.threads, arguments.cold, arguments.tune_memory, **once)
            seconds = record["passes"][which] = {}
            for name in arguments.cases:
                seconds[name], skipped = measure(CASES[name], protocol, names)
                for contestant, reason in skipped.items():
                    record["skipped"].setdefault(contestant, {})[f"{which}, {name}"] = reason
                bar.step()
            record["comparisons"][which] = comparisons(seconds)
    if arguments.plot:
        plot(record["passes"], Path(arguments.plot))
    return record


def host() -> dict[str, str]:
    """Return what the figures depend on: processor, cores, versions, date."""
    import importlib.metadata

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = found[0] if found else processor
    versions = {}
    for name in ("torch", "numpy", "jax", "onnxruntime", "juliacall"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"processor": processor, "cores": str(os.cpu_count()), "python": platform.python_version(), **versions,
            "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def _text(record: dict[str, Any]) -> Iterator[str]:
    if record.get("device") == "cuda":
        from .gpu import text

        yield from text(record)
        return
    if "passes" not in record:
        from .overhead import describe

        yield from describe(record)
        return
    yield ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    memory = "fresh memory" if record["cold"] else "warm memory"
    for which, seconds in record["passes"].items():
        yield ""
        yield f"{which}, milliseconds, {memory}{', tune_memory()' * record['tuned']}"
        yield ""
        yield from table(("case", *columns(seconds)), list(case_rows(seconds)))
        yield ""
        yield from table(
            ("", "against", "mean ratio", "worst", "", "faster"),
            [
                (row["ours"], row["against"], f"{row['mean']:.3f}", f"{row['worst']:.3f}", row["worst_case"],
                 f"{row['faster']} of {row['cases']}")
                for row in record["comparisons"][which]
            ],
        )  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for contestant, where in record["skipped"].items():
        for reason in sorted(set(where.values())):
            reasons.setdefault(f"{contestant}: {reason}", []).extend(w for w, r in where.items() if r == reason)
    if reasons:
        yield ""
        yield from (f"not run: {reason} ({len(where)} of the cases)" for reason, where in reasons.items())
