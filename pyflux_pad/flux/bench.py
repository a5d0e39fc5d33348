"""What live models cost: the start, the first gradient, and a step of training beyond the same step inside Julia.

Run ``python -m pyflux_pad.flux.bench``. Every figure is a ratio or a time of things measured in turn in one run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np

from .model import FluxModel

_ROUNDS, _STEPS = 7, 20
_NETWORK = """
Chain(
    Conv((3, 3), 3 => 16, relu; pad=(1, 0, 0, 1)), MeanPool((2, 2)),
    Conv((3, 3), 16 => 32, relu; pad=1), MeanPool((2, 2)), Flux.flatten, Dense(1568 => 10),
)
"""
_INSIDE_JULIA = f"""
begin
    model = {_NETWORK}
    state = Flux.setup(Adam(1f-4), model)
    target = Flux.onehotbatch(mod.(0:31, 10), 0:9) .* 1f0
    function step(x)
        gradient, = Flux.gradient(m -> Flux.Losses.logitcrossentropy(m(x), target), model)
        Flux.update!(state, model, gradient)
    end
    function (x)
        step(x)
        start = time_ns()
        foreach(_ -> step(x), 1:{_STEPS})
        return Float64[(time_ns() - start) / {_STEPS} / 1e9]
    end
end
"""


def starts() -> tuple[float, float]:
    """Return the seconds from the import to a small model's first value in a fresh process, and for its gradient."""
    program = (
        "import time; t = time.perf_counter(); import numpy as np; from pyflux_pad import flux; "
        "m = flux.FluxModel(flux.Chain(flux.Conv(1, 4, (3, 3), 'relu'), flux.MeanPool((2, 2)), flux.flatten, "
        "flux.Dense(36, 10))); x = np.ones((2, 1, 8, 8), 'f'); y = m(x); u = time.perf_counter(); m.grad(x, y); "
        "print(u - t, time.perf_counter() - u)"
    )

    def seconds() -> tuple[float, float]:
        output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        first, second = map(float, output.split())
        return first, second

    seconds()  # fill the file cache, and Julia's own
    values, gradients = zip(*[seconds() for _ in range(3)], strict=True)
    return statistics.median(values), statistics.median(gradients)


def steps() -> tuple[float, float, float]:
    """Return the seconds of a step of training inside Julia, by `fit`, and through `FluxModule` with torch's Adam."""
    import torch

    from .module import FluxModule
    from .training import fit

    x = np.random.default_rng(0).standard_normal((32, 3, 32, 32)).astype(np.float32)
    labels = np.arange(32) % 10
    target = np.eye(10, dtype=np.float32)[labels]
    inside, trained = FluxModel.from_julia(_INSIDE_JULIA), FluxModel.from_julia(_NETWORK)
    module = FluxModule(FluxModel.from_julia(_NETWORK)).train()
    optimiser = torch.optim.Adam(module.parameters(), 1e-4)
    pictures, wanted = torch.from_numpy(x), torch.from_numpy(labels)

    def by_torch() -> None:
        for _ in range(_STEPS):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(pictures), wanted).backward()
            optimiser.step()

    def seconds(run: object) -> float:
        start = time.perf_counter()
        run()  # type: ignore
        return (time.perf_counter() - start) / _STEPS

    def by_fit() -> None:
        fit(trained, [(x, target)] * _STEPS, "logitcrossentropy", "Adam(1f-4)")

    for compiled in (by_fit, by_torch):
        compiled()
    rounds = [(inside(x).item(), seconds(by_fit), seconds(by_torch)) for _ in range(_ROUNDS)]
    julia, fitted, through_torch = (min(times) for times in zip(*rounds, strict=True))
    return julia, fitted, through_torch


def main() -> None:
    """Measure and print."""
    print("fresh process: first value {:.1f} s after the import began, first gradient {:.1f} s".format(*starts()))
    julia, fitted, through_torch = steps()
    print(f"a step of training: in Julia {julia * 1e3:.1f} ms, by fit {fitted / julia:.2f} times as long, through "
          f"FluxModule with torch's Adam {through_torch / julia:.2f} times")  # fmt: skip


if __name__ == "__main__":
    main()
