"""Validation of graphs by the real cuDNN on the CPU: sizes and pads, as geometry computes them. No GPU runs here.

It needs two wheels, 21 MB together: ``pip install --no-deps nvidia-cudnn-jit-cu13==9.19.0.56
nvidia-cudnn-frontend==1.26.0``. cuDNN checks descriptors without a driver; plans need a device, and are not asked for.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import CONV_CASES, random_cases

from pyflux_pad.backends.cupy import frontend
from pyflux_pad.backends.cupy.layouts import FIRST, LAST, empty
from pyflux_pad.backends.cupy.prepad import pre_padding
from pyflux_pad.backends.cupy.providers import Missing
from pyflux_pad.geometry import arguments, conv_geometry

CUDNN: Any = None
REASON = ""
try:
    CUDNN = frontend.load()
except Missing as missing:
    REASON = str(missing)

pytestmark = pytest.mark.skipif(CUDNN is None, reason=f"graphs are not validated here: {REASON}")
OPERATORS = ("conv", "conv_input", "conv_weight")
operators = pytest.mark.parametrize("operator", OPERATORS)


def geometry_of(case):
    settings = arguments("test", len(case.size), case.stride, case.padding, case.dilation, case.groups, False)
    return conv_geometry("test", case.x_shape, case.weight_shape, settings)


def build(operator, geometry, dtype="float32", layout=FIRST):
    """Let cuDNN validate the graph of an operator on dense arrays."""
    shapes = {"conv": (geometry.input_shape, geometry.weight_shape, geometry.output_shape),
              "conv_input": (geometry.output_shape, geometry.weight_shape, geometry.input_shape),
              "conv_weight": (geometry.input_shape, geometry.output_shape, geometry.weight_shape)}[operator]
    tensors = tuple(frontend.describe(empty(np, shape, np.float32, layout), 16, layout) for shape in shapes)
    return frontend.operation_graph(CUDNN, None, operator, geometry, dtype, tensors)


@operators
@pytest.mark.parametrize("case", CONV_CASES, ids=str)
def test_graph_validation(operator, case):
    """Native pairs and one pad per axis, channels first and last, in every dtype."""
    for pairs in (True, False):
        geometry = pre_padding(geometry_of(case), pairs).geometry
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for layout in (FIRST, LAST):
                build(operator, geometry, dtype, layout)


@operators
@pytest.mark.parametrize("seed", range(4))
def test_graph_validation_of_random_cases(operator, seed):
    for case in random_cases(seed, 100):
        for pairs in (True, False):
            build(operator, pre_padding(geometry_of(case), pairs).geometry)


@operators
@pytest.mark.parametrize("case", [case for case in CONV_CASES if len(case.size) > 1], ids=str)
def test_graph_validation_refuses_other_sizes(operator, case):
    """One output more or less on any axis, or one pad as many as the stride more, is refused: the check can fail."""
    geometry = pre_padding(geometry_of(case), True).geometry
    for axis in range(geometry.ndim):
        for change in (-1, 1):
            sizes = list(geometry.output_size)
            sizes[axis] += change
            if sizes[axis]:
                with pytest.raises(RuntimeError, match="BAD_PARAM"):
                    build(operator, replace(geometry, output_size=tuple(sizes)))
        for low, high in ((geometry.stride[axis], 0), (0, geometry.stride[axis])):
            pads = list(geometry.padding)
            pads[axis] = (pads[axis][0] + low, pads[axis][1] + high)
            with pytest.raises(RuntimeError, match="BAD_PARAM"):
                build(operator, replace(geometry, padding=tuple(pads)))


@operators
def test_graph_validation_refuses_negative_pads(operator):
    """They must have become views of the input before."""
    case = next(case for case in CONV_CASES if case.name == "2d_crop")
    with pytest.raises(RuntimeError, match="BAD_PARAM"):
        build(operator, geometry_of(case))
    build(operator, pre_padding(geometry_of(case), True).geometry)


def test_graph_validation_says_what_it_did(record_property):
    versions = f"cuDNN {CUDNN.backend_version_string()} through frontend {CUDNN.__version__}"
    record_property("validated", f"graphs: validated by {versions} on the CPU; not planned, not run")
    assert CUDNN.backend_version() >= 90000


def test_the_names_that_are_used_are_there():
    """Names and members that graph building and planning need, on the real module."""
    for name in ("A", "FALLBACK"):
        assert hasattr(CUDNN.heur_mode, name)
    assert set(frontend._TF32) <= set(CUDNN.numerical_note.__members__)
    assert set(frontend._INEXACT) <= set(CUDNN.numerical_note.__members__)
    for name in ("create_execution_plans", "deselect_numeric_notes", "check_support", "build_plans", "execute",
                 "get_workspace_size", "build_plan_at_index", "execute_plan_at_index", "get_execution_plan_count"):
        assert callable(getattr(CUDNN.pygraph, name))
    assert issubclass(CUDNN.cudnnGraphNotSupportedError, Exception)
    assert callable(CUDNN.create_handle)
    assert callable(CUDNN.destroy_handle)
    assert callable(CUDNN.set_stream)


def test_without_a_device_the_frontend_refuses():
    """On a machine without a GPU the real frontend has no handle: the next provider computes, and says why."""
    import cupy_logic
    from cupy_host import HostDevice

    import pyflux_pad as pp
    from pyflux_pad.backends.cupy.arrays import Arrays

    device = HostDevice()
    try:
        CUDNN.destroy_handle(CUDNN.create_handle())
    except RuntimeError:
        pass
    else:
        pytest.skip("there is a device here")
    graphs = frontend.Graphs(device, CUDNN)
    engine = cupy_logic.LogicEngine(device, makers={
        "frontend": lambda: frontend.Frontend("frontend", graphs, pairs=True), "arrays": lambda: Arrays(np)})
    x, weight = np.ones((1, 2, 5, 5)), np.ones((3, 2, 2, 2))
    plan = pp.plan(x.shape, weight.shape, padding=((1, 0), (0, 2)))
    with pytest.warns(RuntimeWarning, match="frontend .cuDNN gives no handle"):
        y = engine.conv(plan._plan, x, weight)
    np.testing.assert_array_equal(y, pp.conv(x, weight, padding=((1, 0), (0, 2))))
