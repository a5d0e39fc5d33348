"""Smoke test of the installed wheel in an environment with numpy alone, run from outside the checkout."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import numpy as np

import pyflux_pad as pp

installed = Path(pp.__file__).resolve()
assert installed.is_relative_to(Path(sys.prefix).resolve()), f"{installed} is not the installed package"

files = importlib.metadata.files("pyflux-pad") or []
folders = {file.parts[0] for file in files if ".." not in file.parts}
assert {name for name in folders if not name.endswith(".dist-info")} == {"pyflux_pad"}, folders
assert any(file.name == "py.typed" for file in files), "the wheel lacks py.typed"

# By hand: (1, 2, 3, 0) under the kernel (1, 10), the zero being the one padded cell at the end.
y = pp.conv(np.array([[[1, 2, 3]]]), np.array([[[1, 10]]]), padding=((0, 1),))
assert y.tolist() == [[[21, 32, 3]]], y

assert importlib.util.find_spec("torch") is None, "torch is installed: this is no test of numpy alone"
try:
    pp.conv(np.zeros((1, 1, 3)), np.zeros((1, 1, 2)), backend="torch")
    refusal = "nothing was refused"
except pp.BackendUnavailable as error:
    refusal = str(error)
assert "pyflux-pad[torch]" in refusal, refusal
print(f"pyflux_pad {importlib.metadata.version('pyflux-pad')} works from {installed.parent}")
