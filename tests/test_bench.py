"""The benchmark: its cases and results are right, and it says so when they are not. No times are asserted."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pyflux_pad import cli, conv
from pyflux_pad.bench import contestants, protocol, report, resources
from pyflux_pad.bench.cases import CASES, LATENCY, PASSES

SMALL = CASES[LATENCY]


def test_cases_are_convolutions():
    assert len(CASES) == 12
    for case in CASES.values():
        x, weight = np.empty((0, *case.x[1:])), np.empty(case.weight)
        y = conv(x, weight, stride=case.stride, padding=case.padding, dilation=case.dilation, groups=case.groups)
        assert y.shape[1:] == case.output_shape[1:]
    assert sum(any(low != high for low, high in case.padding) for case in CASES.values()) == 12
    assert CASES["SAME k7 s2, 3 channels"].padding == ((2, 3), (2, 3))


@pytest.mark.parametrize("which", PASSES)
def test_everyone_agrees(which, capsys):
    """Every contestant that is installed, in a process of its own as in earnest; a wrong one would end it."""
    assert cli.main(["bench", "--quick", "--json", "--case", LATENCY, "--pass", which]) == 0
    record = json.loads(capsys.readouterr().out)
    times = record["passes"][which][LATENCY]
    assert all(seconds > 0 for seconds in times.values())
    expected = {"numpy floor", "pyflux_pad on numpy", "np.pad + einsum"} if which != "double" else set()
    assert expected <= set(times)
    assert set(times) | set(record["skipped"]) == {contestant.name for contestant in contestants.CONTESTANTS}


def test_a_wrong_result_is_not_timed():
    right = contestants._arrays("numpy")(SMALL, "forward")
    swapped = SMALL._replace(padding=tuple(pair[::-1] for pair in SMALL.padding))
    wrong = contestants._arrays("numpy")(swapped, "forward")
    with pytest.raises(SystemExit, match="ours differs from theirs by"):
        protocol._check(SMALL, "forward", {"theirs": right, "ours": wrong})
    protocol._check(SMALL, "forward", {"theirs": right, "ours": right})


def test_a_process_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match=r"(?s)bench: latency, forward: .*TypeError"):
        protocol.measure(SMALL, protocol.Protocol(rounds="many"), ["numpy floor"])  # pyright: ignore


def test_einsum_gradients():
    """The peer's gradients are checked against the engine's in the benchmark; here on every kind of case."""
    for name in ("causal k3 d8", "depthwise k5 s2", "3-D k3 s2"):
        case = CASES[name]
        small = case._replace(x=(1, case.x[1], *[12 + size % 3 for size in case.x[2:]]))
        for which in ("forward", "input", "weight"):
            works = {who: prepare(small, which) for who, prepare in (
                ("ours", contestants._arrays("numpy")), ("einsum", contestants._einsum),
                ("floor", contestants._numpy_floor))}  # fmt: skip
            protocol._check(small, which, works)


def test_ratios():
    seconds = {
        "even k2": {"torch floor": 1.0, "pyflux_pad on torch": 1.1, "F.pad + torch": 2.2},
        "even k4": {"torch floor": 1.0, "pyflux_pad on torch": 1.0, "F.pad + torch": 0.8},
        LATENCY: {"torch floor": 1.0, "pyflux_pad on torch": 9.0, "F.pad + torch": 9.0},
    }
    floor, pad = report.comparisons(seconds)
    assert (floor["against"], floor["cases"], floor["faster"]) == ("torch floor", 2, 0)
    assert floor["mean"] == pytest.approx(1.1**0.5)
    assert (floor["worst"], floor["worst_case"]) == (pytest.approx(1.1), "even k2")
    assert (pad["worst_case"], pad["faster"]) == ("even k4", 1)


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    seconds = {"even k2": {"torch floor": 1.0, "pyflux_pad on torch": 1.1}, "even k4": {"torch floor": 2.0}}
    report.plot({"forward": seconds, "input": seconds}, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_threads(capsys):
    assert cli.main(["bench", "--threads", "-1"]) == 2
    assert "--threads -1 is no number of threads" in capsys.readouterr().err


PROGRAM = """
import pyflux_pad as pp
print(pp.tune_memory(), pp.tune_memory(1 << 40))
import resource, numpy as np
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(20 << 20, np.uint8)
before = faults()
for _ in range(5):
    np.ones(20 << 20, np.uint8)
print(faults() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc keeps memory when asked")
def test_tune_memory():
    """Pages that are kept are not touched for the first time again: 5,120 of them in a block of 20 MB."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    first, again = done.stdout.splitlines()
    assert first == "True True"
    assert int(again) < 5000


@pytest.mark.skipif(not resources._resettable(), reason="only Linux tells the peak of the resident size")
def test_peak_of_the_resident_size():
    """Gathered at once, the windows of ten by ten taps take a hundred times the input."""
    case = CASES["Flux k10"]
    bound = 1.5 * sum(array.nbytes for array in case.arrays()) / 1e6 + 16
    for which in ("forward", "input", "weight"):
        assert resources._alone("peak", "pyflux_pad on numpy", case.name, which) < bound
    assert resources._alone("peak", "np.pad + einsum", case.name, "forward") > 10 * bound


def test_growth_is_fitted(monkeypatch):
    """A time that grows with the square of the size has the exponent 2."""
    shapes = [(n, 1, 1, 1) for n in (1, 2, 4)]
    round_of_steps = [step for n, repeats in ((1, 3), (2, 2), (4, 1)) for step in (0, n**2 * repeats)]
    clock = iter(np.cumsum(resources._ROUNDS * round_of_steps))
    monkeypatch.setattr(resources.random, "sample", lambda places, count: list(places))
    monkeypatch.setattr(resources.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(resources, "_convolution", lambda name, shape: lambda: None)
    assert resources._exponent("numpy", shapes) == pytest.approx(2)
