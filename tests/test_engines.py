"""Which engine serves a call, what is known of those that cannot, and the harness that says so."""

import os
import pathlib
import subprocess
import sys

import engines
import numpy as np
import pytest

import pyflux_pad as pp

X, WEIGHT = np.ones((1, 1, 4)), np.ones((1, 1, 2))
ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _own_default():
    """Each test starts and ends without a default engine."""
    pp.set_default_backend(None)
    yield
    pp.set_default_backend(None)


def python(code, **environment):
    """Run code in a fresh interpreter with some environment variables; return (status, output and errors)."""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                          capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_available_backends():
    found = pp.available_backends()
    assert set(found) == {"numpy", "torch", "julia", "cupy"}
    assert found["numpy"].available
    assert found["numpy"].version == np.__version__
    assert found["numpy"].device == "cpu"
    for name, backend in found.items():
        assert backend.name == name
        assert backend.available or (backend.reason and backend.remedy)


def test_a_missing_engine_is_said_with_its_remedy():
    """Torch that cannot be found: no fallback, and the message says how to get it."""
    code = """
import sys
sys.modules["torch"] = None  # what an import then does is what it does where torch is not installed
import numpy, pyflux_pad as pp
info = pp.available_backends()["torch"]
assert not info.available and "torch" in info.reason and "pip install" in info.remedy, info
for call in (lambda: pp.conv(numpy.ones((1, 1, 4)), numpy.ones((1, 1, 2)), backend="torch"),
             lambda: pp.set_default_backend("torch")):
    try:
        call()
    except pp.BackendUnavailable as error:
        assert "torch" in str(error) and info.reason in str(error) and info.remedy in str(error), error
    else:
        raise SystemExit("a missing engine did not raise")
assert issubclass(pp.BackendUnavailable, RuntimeError)
"""
    status, output = python(code)
    assert status == 0, output


@pytest.mark.engine("torch")
@pytest.mark.parametrize(("environment", "expected"), [
    ("", {(None, None): "numpy", ("torch", None): "torch", ("torch", "numpy"): "numpy", (None, "torch"): "torch"}),
    ("torch", {(None, None): "torch", ("numpy", None): "numpy", (None, "numpy"): "numpy", ("numpy", "torch"): "torch"}),
    ("numpy", {(None, None): "numpy", ("torch", None): "torch", (None, "torch"): "torch"}),
], ids=["unset", "torch", "numpy"])
def test_precedence(environment, expected):
    """`backend=`, then the default, then the environment, then the array's own engine."""
    # Only the NumPy engine writes into `out`: that tells which one it was.
    code = f"""
import numpy, pyflux_pad as pp
for default, backend in {list(expected)}:
    pp.set_default_backend(default)
    try:
        pp.conv(numpy.ones((1, 1, 4)), numpy.ones((1, 1, 2)), out=numpy.empty((1, 1, 3)), backend=backend)
        print("numpy")
    except TypeError:
        print("torch")
"""
    status, output = python(code, PYFLUX_PAD_BACKEND=environment)
    assert status == 0, output
    assert output.split() == list(expected.values())


@pytest.mark.engine("torch")
def test_the_default_serves_both_kinds_of_arrays():
    """A default engine takes NumPy arrays and tensors alike and gives each back its own kind."""
    import torch

    for name in ("numpy", "torch"):
        pp.set_default_backend(name)
        assert type(pp.conv(X, WEIGHT)) is np.ndarray
        assert type(pp.conv(torch.tensor(X), torch.tensor(WEIGHT))) is torch.Tensor


def test_environment_with_an_unknown_name():
    status, output = python("import numpy as n, pyflux_pad as p; p.conv(n.ones((1, 1, 4)), n.ones((1, 1, 2)))",
                            PYFLUX_PAD_BACKEND="jax")
    assert status != 0
    assert "PYFLUX_PAD_BACKEND" in output
    assert "'jax'" in output


# ---------------------------------------------------------------- the harness


def run_tests(**environment):
    """Run one small test file in a fresh process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
               "tests/test_values.py::test_infinities_meet_zeros"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                          capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_requested_engine_that_is_missing_fails():
    status, output = run_tests(PYFLUX_PAD_TEST_BACKENDS="numpy,cupy")
    assert status != 0
    assert "'cupy'" in output
    assert "cannot run" in output


def test_the_run_ends_with_a_line_per_engine():
    status, output = run_tests(PYFLUX_PAD_TEST_BACKENDS="numpy")
    assert status == 0, output
    lines = {line.split()[0]: line for line in output.splitlines() if line.split() and line.split()[0] in engines.NAMES}
    assert set(lines) == set(engines.NAMES)
    assert "tests passed" in lines["numpy"]
    assert np.__version__ in lines["numpy"]
    assert ("tests passed" if engines.status("julia").runs else "skipped: ") in lines["julia"]
    assert ("tests passed" if engines.status("cupy").runs else "skipped: ") in lines["cupy"]
