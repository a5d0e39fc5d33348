"""Live models over a process's life: memory over many steps, other threads, a start on another thread, the end."""

import os
import pathlib
import subprocess
import sys
import textwrap

import flux_models
import pytest

pytestmark = flux_models.needs_flux
ROOT = pathlib.Path(__file__).parents[1]

START = """
import resource, threading
import numpy as np
from pyflux_pad import flux

x = np.random.default_rng(0).standard_normal((16, 1, 28, 28)).astype(np.float32)
target = np.eye(4, dtype=np.float32)[np.arange(16) % 4]

def make():
    return flux.FluxModel(flux.Chain(flux.Conv(1, 8, (3, 3), "relu", padding=((1, 0), (0, 2))), flux.BatchNorm(8),
                                     flux.MeanPool((2, 2)), flux.flatten, flux.Dense(8 * 13 * 14, 4)))

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
"""


def run(script, status=0):
    """Run a script; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", START + textwrap.dedent(script)], env=environment, capture_output=True,
                          text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
@pytest.mark.parametrize("step", [
    "flux.fit(model, [(x, target)], 'logitcrossentropy')",
    "module(t).square().mean().backward(); optimiser.step(); optimiser.zero_grad()",
    "model(x); model.parameters()",
], ids=["fit", "FluxModule", "call"])  # fmt: skip
def test_memory_is_flat(step):
    out = run(f"""
    import torch
    model = make()
    module = flux.FluxModule(model).train()
    optimiser, t = torch.optim.Adam(module.parameters()), torch.from_numpy(x)
    for count in range(1, 1001):
        {step}
        if count in (100, 1000):
            print(resident())
    """)
    early, late = map(int, out.split())
    print(f"{early / 2**20:.0f} MiB after 100 steps, {late / 2**20:.0f} MiB after 1000")
    assert late <= 1.05 * early


def test_other_threads():
    assert run("""
    model = make()
    y = model(x)
    found = []
    def work():
        for _ in range(5):
            found.append((model(x) == y).all() and model.grad(x, y)[0].shape == x.shape)
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print(all(found), len(found))
    """) == "True 20\n"


def test_a_start_on_another_thread():
    assert run("""
    found = []
    thread = threading.Thread(target=lambda: found.append(make()(x).shape))
    thread.start(); thread.join()
    print(found[0], make()(x).shape)
    """) == "(16, 4) (16, 4)\n"


def test_flux_is_loaded_by_julias_own_thread():
    assert "call it there once" in run("""
    import pyflux_pad as pp
    pp.julia_info()
    def work():
        try:
            make()
        except pp.BackendUnavailable as error:
            print(error)
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    """)


def test_a_fork_is_refused():
    assert "forked after Julia started" in run("""
    import os, sys
    model = make()
    model(x)
    child = os.fork()
    if child == 0:
        try:
            model(x)
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    """)
