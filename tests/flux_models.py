"""Whether this process may use Flux, and the golden models: what the tests of live Flux models share."""

import functools
import json
import os
import pathlib

import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).parent / "golden"
_PROJECT = pathlib.Path(os.environ.get("PYTHON_JULIACALL_PROJECT", "none")) / "Project.toml"
HAS_FLUX = _PROJECT.is_file() and "Flux =" in _PROJECT.read_text("utf-8")

needs_flux = [
    pytest.mark.engine("julia"),
    pytest.mark.skipif(not HAS_FLUX, reason="this process's Julia project, PYTHON_JULIACALL_PROJECT, has no Flux; "
                                            ".ci/run tests live models in a process with PYFLUX_PAD_FLUX_PROJECT"),
]  # fmt: skip
"""A process has one Julia with one project: a module of tests says `pytestmark = needs_flux`."""


@functools.cache
def golden():
    return np.load(GOLDEN / "flux.npz")


CASES = json.loads((GOLDEN / "flux.json").read_text("utf-8"))["cases"]
_GREEK = {"β": "beta", "γ": "gamma", "μ": "mean", "σ²": "variance"}  # noqa: RUF001


def named(case, parameter):
    """Return the package's name of a golden parameter, ``layer1.β``."""
    layer, field = parameter.split(".")
    field = str(_GREEK.get(field, field))
    return f"layers.{int(layer[5:]) - 1}.{field}" if case["julia"].startswith("Chain") else field


def golden_model(case):
    """Return a live model with the golden parameters."""
    from pyflux_pad.flux import FluxModel

    model = FluxModel.from_julia(case["julia"])
    for parameter in case["params"]:
        model.parameters()[named(case, parameter)][...] = golden()[f"{case['name']}/{parameter}"]
    return model
