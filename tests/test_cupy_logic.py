"""Logic of the CuPy engine on NumPy arrays, without a GPU: pre-padding, and the engine around its providers."""

import checks
import cupy_logic
import numpy as np
import pytest
from cases import CONV_CASES, TRANSPOSED_CASES

from pyflux_pad.backends.cupy.arrays import Arrays

registered = cupy_logic.registered
SYMMETRIC = cupy_logic.engine("logic-symmetric", {"prepad": cupy_logic.Symmetric})
PAIRS = cupy_logic.engine("logic-pairs", {"frontend": lambda: cupy_logic.Symmetric(pairs=True)})
ARRAYS = cupy_logic.engine("logic-arrays", {"arrays": lambda: Arrays(np)})
every_case = pytest.mark.parametrize("case", CONV_CASES + TRANSPOSED_CASES, ids=str)
convs = pytest.mark.parametrize("case", CONV_CASES, ids=str)
engines = pytest.mark.parametrize("engine", [SYMMETRIC, PAIRS, ARRAYS], ids=str)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])


@engines
@every_case
@dtypes
def test_logic_forward(engine, case, dtype):
    checks.forward(engine, case, dtype)


@engines
@every_case
@dtypes
def test_logic_gradients(engine, case, dtype):
    checks.gradients(engine, case, dtype)


@engines
@convs
@dtypes
def test_logic_transposes(engine, case, dtype):
    checks.transposes(engine, case, dtype)


def test_logic_says_what_it_did(record_property):
    record_property("validated", "logic: planner, providers and array code on NumPy arrays with a symmetric-only "
                    "provider; no GPU ran")
