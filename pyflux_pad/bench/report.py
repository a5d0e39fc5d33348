"""What the measurements say: rows of ratios, their means, and a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .cases import CASES, LATENCY
from .contestants import CONTESTANTS

# What is compared with what: the floors, and this package with every peer on its side.
_PAIRS = (
    ("pyflux_pad on torch", ("torch floor", "F.pad + torch", "torch same", "onnxruntime", "JAX", "NNlib",
                             "np.pad + einsum")),
    ("pyflux_pad on numpy", ("numpy floor", "np.pad + einsum")),
    ("pyflux_pad on julia", ("NNlib",)),
)  # fmt: skip


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def comparisons(seconds: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return, for this package's engines against floor and peers, the ratios of their times over the cases.

    Parameters
    ----------
    seconds
        By case, by contestant. The latency case is left out: its time is the call itself.
    """
    rows = []
    for ours, others in _PAIRS:
        for other in others:
            ratios = {
                case: times[ours] / times[other]
                for case, times in seconds.items()
                if case != LATENCY and ours in times and other in times
            }
            if ratios:
                worst = max(ratios, key=lambda case: ratios[case])
                rows.append({
                    "ours": ours, "against": other, "cases": len(ratios), "mean": geometric_mean(ratios.values()),
                    "worst": ratios[worst], "worst_case": worst, "faster": sum(r < 1 for r in ratios.values()),
                })  # fmt: skip
    return rows


def columns(seconds: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the contestants that ran, in their order."""
    ran = {name for times in seconds.values() for name in times}
    return [contestant.name for contestant in CONTESTANTS if contestant.name in ran]


def case_rows(seconds: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, ...]]:
    """Yield a row per case: the milliseconds of every contestant."""
    names = columns(seconds)
    for case, times in seconds.items():
        yield (case, *(_milliseconds(times.get(name)) for name in names))


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g}"


def rates(seconds: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    """Return the multiply-adds per second of a contestant by case."""
    return {case: CASES[case].multiply_adds / times[name] for case, times in seconds.items() if name in times}


def plot(passes: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Draw a group of bars per case and a panel per pass: time relative to torch's floor."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(passes), 1, figsize=(13, 1.5 + 3.2 * len(passes)), squeeze=False)
    for panel, (which, seconds) in zip(panels[:, 0], passes.items(), strict=True):
        _panel(panel, which, seconds)
    panels[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


_COLOURS = {
    "torch floor": "#b8b8b8", "pyflux_pad on torch": "#1f6fb4", "F.pad + torch": "#9ecae1", "torch same": "#c6dbef",
    "onnxruntime": "#e6a04b", "JAX": "#d1495b", "numpy floor": "#d9d9d9", "pyflux_pad on numpy": "#2a7f3f",
    "np.pad + einsum": "#a1d99b", "NNlib": "#9467bd", "pyflux_pad on julia": "#5e3c99",
}  # fmt: skip


def _panel(panel: Any, which: str, seconds: Mapping[str, Mapping[str, float]]) -> None:
    names: Sequence[str] = columns(seconds)
    width = 0.86 / max(len(names), 1)
    for place, name in enumerate(names):
        ratios = [
            times[name] / times.get("torch floor", min(times.values())) if name in times else 0.0
            for times in seconds.values()
        ]
        centres = [case + (place - (len(names) - 1) / 2) * width for case in range(len(ratios))]
        panel.bar(centres, ratios, width, label=name, color=_COLOURS[name])
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_yscale("log")
    panel.set_ylim(0.4, None)
    panel.set_xticks(range(len(seconds)), seconds, rotation=18, ha="right", fontsize=8)
    panel.set_ylabel("time / torch's floor")
    panel.set_title(f"{which}: lower is better")
    panel.spines[["top", "right"]].set_visible(False)
