"""Where the Julia half of the installed package lies: juliapkg finds it, whole, whatever the kind of installation.

Usage: python julia_half.py inside|beside [run]: "inside" the Python package, as in a wheel, or "beside" it, as in a
checkout and an editable install; with "run" also compute a convolution there, which needs a Julia.
"""

import importlib.metadata
import sys
from pathlib import Path

from juliapkg.deps import find_requirements

import pyflux_pad as pp

where, *run = sys.argv[1:]
package = Path(pp.__file__).resolve().parent
expected = package / "julia" if where == "inside" else package.parent / "julia"
compat, packages = find_requirements()
ours = {spec.name: spec for spec in packages}
of_juliacall = {"PythonCall", "OpenSSL_jll"}
assert set(ours) - of_juliacall == {"PyFluxPad", "NNlib"}, f"juliapkg would install {sorted(ours)}"
spec = ours["PyFluxPad"]
assert spec.dev, "PyFluxPad must be used from its folder, no registry has it"
assert Path(spec.path) == expected, f"juliapkg looks in {spec.path}, not in {expected}"
project = (expected / "Project.toml").read_text("utf-8")
assert spec.uuid in project, "juliapkg.json and Project.toml name different packages"
assert spec.version == f"={pp.__version__}", f"juliapkg.json asks for {spec.version}, this is {pp.__version__}"
assert f'version = "{pp.__version__}"' in project, "Project.toml is of another version"
for name in ("src/PyFluxPad.jl", "src/convolution.jl", "src/windows.jl", "src/entries.jl", "src/precompile.jl", "ext"):
    assert (expected / name).exists(), f"{name} is missing in {expected}"
files = [file for found in importlib.metadata.distributions(name="pyflux-pad") for file in found.files or []]
assert not any(file.parts[0] == "julia" for file in files), "something named julia is at the top of site-packages"
if run:
    import numpy as np

    x, weight = np.arange(4, dtype=np.float32)[None, None], np.array([[[1, 10]]], np.float32)
    y = pp.conv(x, weight, padding=((0, 1),), backend="julia")
    assert y.tolist() == [[[10, 21, 32, 3]]], y
print(f"the Julia half of pyflux_pad {pp.__version__} is {expected}{', and it works' if run else ''}")
