"""Logic of the providers on a frontend that records: what cuDNN is asked and caches, who takes over. No GPU runs."""

import contextlib
import threading
import types
import warnings
from typing import Any

import checks
import cupy_fakes
import cupy_logic
import numpy as np
import pytest
from cases import CONV_CASES, TRANSPOSED_CASES, arrays
from cupy_host import HostDevice

import pyflux_pad as pp
from pyflux_pad.backends import BackendUnavailable
from pyflux_pad.backends.cupy import frontend
from pyflux_pad.backends.cupy.arrays import Arrays

registered = cupy_logic.registered
CASE = next(case for case in CONV_CASES if case.name == "2d_groups")
X, WEIGHT, _, GRAD = arrays(CASE, "float32")


@pytest.fixture
def cudnn():
    return cupy_fakes.Cudnn()


def makers(cudnn, device, names=("frontend", "prepad", "arrays")):
    """Return providers on one fake cuDNN."""
    graphs = frontend.Graphs(device, cudnn)
    found = {
        "frontend": lambda: frontend.Frontend("frontend", graphs, pairs=True),
        "prepad": lambda: frontend.Frontend("prepad", graphs, pairs=False),
        "arrays": lambda: Arrays(np),
    }
    return {name: found[name] for name in names}


def engine(cudnn, names=("frontend", "prepad", "arrays"), device=None, **options):
    device = device or HostDevice()
    return cupy_logic.LogicEngine(device, makers=makers(cudnn, device, names), **options)


def graphs_of(engine: Any) -> Any:
    return engine.chain.provider("frontend").graphs


def convolve(engine: Any, x=X, weight=WEIGHT, case=CASE, operator="conv", out=None):
    """Call an engine as the public functions do."""
    planned = pp.plan(x.shape, weight.shape, **case.arguments)._plan
    if operator == "conv":
        return engine.conv(planned, x, weight, None, True, out)
    return getattr(engine, operator)(planned.geometry, *((GRAD, weight) if operator == "conv_input" else (x, GRAD)))


def expected(operator="conv"):
    if operator == "conv":
        return pp.conv(X, WEIGHT, **CASE.arguments)
    if operator == "conv_input":
        return pp.conv_input(X.shape, WEIGHT, GRAD, **CASE.arguments)
    return pp.conv_weight(X, WEIGHT.shape, GRAD, **CASE.arguments)


OPERATORS = ("conv", "conv_input", "conv_weight")
operators = pytest.mark.parametrize("operator", OPERATORS)

_DEVICE = HostDevice()
_CUDNN = cupy_fakes.Cudnn()
NATIVE = cupy_logic.engine("graphs-native", makers(_CUDNN, _DEVICE, ("frontend",)), device=_DEVICE)
PREPAD = cupy_logic.engine("graphs-prepad", makers(_CUDNN, _DEVICE, ("prepad",)), device=_DEVICE)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("engine", [NATIVE, PREPAD], ids=str)
@pytest.mark.parametrize("case", CONV_CASES + TRANSPOSED_CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logic_of_graphs(engine, case, dtype):
    """Sizes, strides, pads and pointers of every graph give the oracle's results and gradients."""
    checks.forward(engine, case, dtype)
    checks.gradients(engine, case, dtype)
    if case in CONV_CASES:
        checks.transposes(engine, case, dtype)


@pytest.mark.parametrize("engine", [NATIVE, PREPAD], ids=str)
@pytest.mark.parametrize("case", CONV_CASES, ids=str)
def test_logic_of_layouts(engine, case):
    """Channels-last and strided operands in every combination; the result follows the first operand's layout."""

    def last(array):
        order = (0, *range(2, array.ndim), 1)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))

    def gaps(array):
        wide = np.full((*array.shape[:-1], array.shape[-1] + 3), np.nan)
        wide[..., 1:-2] = array
        return wide[..., 1:-2]

    forms = (last, gaps, lambda array: array[..., ::-1].copy()[..., ::-1], np.asfortranarray)
    x, weight, _, grad = arrays(case, "float64")
    y = pp.conv(x, weight, **case.arguments)
    for form in forms:
        for other in (form, np.ascontiguousarray):
            checks.close(engine(pp.conv, form(x), other(weight), **case.arguments), y, case)
            checks.close(engine(pp.conv_input, x.shape, other(weight), form(grad), **case.arguments),
                         pp.conv_input(x.shape, weight, grad, **case.arguments), case)
            checks.close(engine(pp.conv_weight, form(x), weight.shape, other(grad), **case.arguments),
                         pp.conv_weight(x, weight.shape, grad, **case.arguments), case)
    if case.name == "2d_four_sides":
        y = engine(pp.conv, last(x), weight, **case.arguments)
        assert y.transpose(0, 2, 3, 1).flags.c_contiguous
        assert not engine(pp.conv, x, weight, **case.arguments).transpose(0, 2, 3, 1).flags.c_contiguous


def test_logic_of_one_and_three_axes(cudnn):
    """One axis is lifted to two; an idle third one, as torch's operators bring it, is dropped."""
    made = engine(cudnn, ("frontend",))
    one = next(case for case in CONV_CASES if case.name == "1d_groups")
    x, weight, _, _ = arrays(one, "float64")
    checks.close(convolve(made, x, weight, one), pp.conv(x, weight, **one.arguments), one)
    assert [len(tensor.dim) for tensor in cudnn.graphs[-1].operands] == [4, 4]
    lifted = pp.plan((2, 4, 1, 5, 6), (6, 2, 1, 3, 2), padding=((0, 0), (2, 0), (0, 1)), groups=2)
    x, weight = np.arange(240.0).reshape(lifted.geometry.input_shape), np.arange(72.0).reshape(6, 2, 1, 3, 2)
    y = made.conv(lifted._plan, x, weight)
    np.testing.assert_array_equal(y, pp.conv(x, weight, padding=((0, 0), (2, 0), (0, 1)), groups=2))
    assert len(cudnn.graphs[-1].operands[0].dim) == 4


# ---------------------------------------------------------------- what cuDNN is asked


@pytest.mark.parametrize("dtype, allow, exact", [("float32", False, True), ("float32", True, False),
                                                 ("float16", False, False), ("float64", False, False)])
def test_logic_of_plans(cudnn, dtype, allow, exact):
    """Heuristics A and FALLBACK; no plan that rounds more than sums of products do, no TF32 unless it is allowed."""
    made = engine(cudnn, ("frontend",), allow_tf32=allow)
    convolve(made, X.astype(dtype), WEIGHT.astype(dtype))
    graph, note = cudnn.graphs[-1], cupy_fakes.Note
    assert graph.modes == [cupy_fakes.Heuristics.A, cupy_fakes.Heuristics.FALLBACK]
    inexact = {note.REDUCED_PRECISION_REDUCTION, note.FFT, note.WINOGRAD}
    assert set(graph.notes) == inexact | ({note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS} if exact else set())
    assert graph.compute.name == ("DOUBLE" if dtype == "float64" else "FLOAT")


@operators
def test_logic_of_the_native_path(cudnn, operator):
    """Pairs of pads reach cuDNN as they are, on the arrays' own memory."""
    made = engine(cudnn, ("frontend",))
    checks.close(np.asarray(convolve(made, operator=operator)), expected(operator), operator)
    graph, pointers, _ = cudnn.executed[-1]
    assert (graph.integers["pre_padding"], graph.integers["post_padding"]) == ([2, 0], [0, 0])  # (0, 1) has slack
    first, second = {"conv": (X, WEIGHT), "conv_input": (GRAD, WEIGHT), "conv_weight": (X, GRAD)}[operator]
    assert (pointers[1], pointers[2]) == (first.ctypes.data, second.ctypes.data)


@operators
def test_logic_of_the_pre_padded_path(cudnn, operator):
    """One pad per axis, what both sides have in common; the gradient by x is the interior of the padded one."""
    made = engine(cudnn, ("prepad",))
    result = convolve(made, operator=operator)
    checks.close(result, expected(operator), operator)
    graph = cudnn.graphs[-1]
    assert graph.integers["pre_padding"] == graph.integers["post_padding"]
    if operator == "conv_input":
        assert result.base is not None, "a view, not a copy"


def test_logic_of_slack(cudnn):
    """Stride 2 on an even axis: (1, 0) is (1, 1), and nothing is copied on the way to a symmetric engine."""
    x, weight = np.ones((1, 2, 6, 8), np.float32), np.ones((3, 2, 3, 3), np.float32)
    planned = pp.plan(x.shape, weight.shape, stride=2, padding=((1, 0), (1, 0)))
    engine(cudnn, ("prepad",)).conv(planned._plan, x, weight)
    graph, pointers, _ = cudnn.executed[-1]
    assert graph.integers["pre_padding"] == graph.integers["post_padding"] == [1, 1]
    assert pointers[1] == x.ctypes.data


def test_logic_of_alignment(cudnn):
    """A view that begins in the middle of 16 bytes says so, and has a plan of its own."""
    made = engine(cudnn, ("frontend",))
    memory = np.zeros(X.size + 8, np.float32)
    start = -memory.ctypes.data % 16 // 4
    found = []
    for shift, alignment in ((0, 16), (1, 4), (2, 8)):
        x = memory[start + shift : start + shift + X.size].reshape(X.shape)
        x[...] = X
        checks.close(convolve(made, x), expected(), "shifted")
        found.append(cudnn.graphs[-1].operands[0].alignment == alignment)
    assert all(found)
    assert len(cudnn.graphs) == 3


def test_logic_of_a_frontend_without_alignment(cudnn, monkeypatch):
    """Version 1.28 takes 16 bytes for granted: a view that begins elsewhere is left to the next provider."""
    monkeypatch.delattr(cupy_fakes.Tensor, "set_alignment")
    made = engine(cudnn)
    memory = np.zeros(X.size + 8, np.float32)
    start = -memory.ctypes.data % 16 // 4
    for shift in (0, 1):
        x = memory[start + shift : start + shift + X.size].reshape(X.shape)
        x[...] = X
        with pytest.warns(RuntimeWarning, match="16-byte borders") if shift else contextlib.nullcontext():
            checks.close(convolve(made, x, dense(WEIGHT)), expected(), "shifted")
    native, padded = [graph.integers for graph, _, _ in cudnn.executed]
    assert native["pre_padding"] != native["post_padding"]
    assert padded["pre_padding"] == padded["post_padding"], "the copy begins where it should"


def dense(array):
    """A copy that begins at a 16-byte border."""
    memory = np.zeros(array.size + 4, array.dtype)
    start = -memory.ctypes.data % 16 // array.itemsize
    copy = memory[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def test_logic_of_out(cudnn):
    """A result goes straight into `out`, with gaps or without."""
    made, y = engine(cudnn, ("frontend",)), expected()
    for out in (np.empty_like(y), np.full((*y.shape[:-1], y.shape[-1] + 2), np.nan, np.float32)[..., :-2]):
        assert convolve(made, out=out) is out
        checks.close(out, y, "out")
        assert cudnn.executed[-1][1][3] == out.ctypes.data
    reversed_out = np.empty_like(y)[..., ::-1]
    assert convolve(made, out=reversed_out) is reversed_out
    checks.close(reversed_out, y, "reversed out")


# ---------------------------------------------------------------- what is cached


def test_logic_of_the_cache(cudnn):
    """One plan per geometry, dtype, strides, alignment and permission; a second call builds nothing."""
    made = engine(cudnn, ("frontend",))
    for _ in range(3):
        convolve(made)
    assert len(cudnn.graphs) == 1
    for change in (lambda: convolve(made, X.astype("float64"), WEIGHT.astype("float64")),
                   lambda: convolve(made, X.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)),
                   lambda: made.configure(None, True) or convolve(made)):
        before = len(cudnn.graphs)
        for _ in range(2):
            change()
        assert len(cudnn.graphs) == before + 1


def test_logic_of_a_full_cache(cudnn, monkeypatch):
    monkeypatch.setattr(frontend, "_PLANS", 3)
    made = engine(cudnn, ("frontend",))
    forgotten = []
    graphs = graphs_of(made)
    graphs.plans.dropped = forgotten.append
    for size in range(4, 10):
        x = np.ones((1, 6, size, size), np.float32)
        convolve(made, x)
    assert (len(graphs.plans), len(forgotten)) == (3, 3)


def test_logic_of_cached_refusals(cudnn):
    """What cuDNN has no plan for is not asked again, and the next provider is not warned of again."""
    def refuse(graph):
        raise cupy_fakes.NotSupportedError("no valid engine configs")

    cudnn.refuse = refuse
    made = engine(cudnn)
    with pytest.warns(RuntimeWarning, match=r"by provider 'arrays'.*frontend .*no valid engine configs") as seen:
        results = [convolve(made, operator=operator) for operator in ("conv", "conv_weight") * 3]
    assert len(seen) == 1
    checks.close(results[-2], expected(), "after a refusal")
    assert len(cudnn.graphs) == 4  # pairs and pre-padded, once for each operator


@pytest.mark.parametrize("error", [cupy_fakes.NotSupportedError, ValueError, RuntimeError])
@operators
def test_logic_of_a_refused_pair(cudnn, error, operator):
    """Each of the three classes of planning errors moves a call to the pre-padded path, with one warning."""
    def refuse(graph):
        if graph.integers["pre_padding"] != graph.integers["post_padding"]:
            raise error("NOT_SUPPORTED_PADDING")

    cudnn.refuse = refuse
    with pytest.warns(RuntimeWarning, match="'prepad', because these cannot: frontend .*NOT_SUPPORTED_PADDING"):
        checks.close(convolve(engine(cudnn), operator=operator), expected(operator), operator)


@pytest.mark.parametrize("error", [cupy_fakes.NotSupportedError, ValueError, RuntimeError])
def test_logic_of_an_error_of_the_execution(cudnn, error):
    """It reaches the caller: no other provider hides it."""
    def execute():
        raise error("an illegal memory access")

    cudnn.execute = execute
    with pytest.raises(error, match="illegal memory access"):
        convolve(engine(cudnn))


# ---------------------------------------------------------------- handles, streams, threads


def test_logic_of_streams(cudnn):
    """A handle is told of a stream when that changes, and keeps the stream alive; a lost one costs a new handle."""
    device = HostDevice()
    streams = [types.SimpleNamespace(ptr=pointer) for pointer in (0, 7)]
    current = [streams[0]]
    device.stream = lambda: current[0]
    made = engine(cudnn, ("frontend",), device)
    for stream in (0, 0, 1, 1, 0):
        current[0] = streams[stream]
        convolve(made)
    assert cudnn.streams == [(1000, 0), (1000, 7), (1000, 0)]
    assert len(cudnn.graphs) == 1

    def lost(*, handle, stream):
        if handle == 1000:
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM_STREAM")
        told(handle=handle, stream=stream)

    told, cudnn.set_stream = cudnn.set_stream, lost
    current[0] = streams[1]
    checks.close(convolve(made), expected(), "after the loss of a stream")
    assert cudnn.executed[-1][2] == 1001
    assert cudnn.destroyed == [1000]


def test_logic_of_threads(cudnn):
    """Every thread has its own handle, and all share the plans."""
    made = engine(cudnn, ("frontend",))
    barrier, results, errors = threading.Barrier(4), [], []

    def work():
        try:
            barrier.wait(20)
            results.extend(convolve(made) for _ in range(20))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(results) == 80
    for result in results:
        checks.close(result, expected(), "in a thread")
    assert len({handle for _, _, handle in cudnn.executed}) == 4
    assert len(graphs_of(made).plans) == 1


# ---------------------------------------------------------------- providers


def test_logic_of_a_wanted_provider(cudnn):
    """The one that is asked for computes, or the call fails; nothing takes its place."""
    for name in ("frontend", "prepad", "arrays"):
        before = len(cudnn.executed)
        checks.close(convolve(engine(cudnn, provider=name)), expected(), name)
        assert (len(cudnn.executed) > before) == (name != "arrays")

    def refuse(graph):
        raise RuntimeError("NOT_SUPPORTED_PADDING")

    cudnn.refuse = refuse
    with pytest.raises(BackendUnavailable, match=r"'frontend' was asked for .*NOT_SUPPORTED_PADDING.*prepad, arrays"):
        convolve(engine(cudnn, provider="frontend"))
    with pytest.raises(TypeError, match=r"provider 'frontend' does not compute complex64; .*'arrays'"):
        convolve(engine(cudnn, provider="frontend"), X.astype("complex64"), WEIGHT.astype("complex64"))


@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_logic_of_dtypes_that_cudnn_has_not(cudnn, dtype):
    """They go to CuPy's own kernels without a warning: no provider of cuDNN could."""
    x, weight = X.astype(dtype), WEIGHT.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks.close(convolve(engine(cudnn), x, weight), pp.conv(x, weight, **CASE.arguments), dtype)
    assert not cudnn.graphs


@pytest.mark.engine("torch")
@pytest.mark.parametrize("case", CONV_CASES, ids=str)
@operators
def test_logic_of_torchs_provider(case, operator):
    """torch's own kernels of the CPU in the place of its cuDNN, on the arrays' memory, one pad per axis."""
    import torch

    from pyflux_pad.backends.cupy.bridge import Bridge

    device = HostDevice()
    bridge = Bridge(device, torch, lambda torch, device, number: contextlib.nullcontext())
    made = cupy_logic.LogicEngine(device, makers={"torch": lambda: bridge})
    x, weight, _, grad = arrays(case, "float64")
    geometry = pp.plan(x.shape, weight.shape, **case.arguments)
    if operator == "conv":
        result, reference = made.conv(geometry._plan, x, weight), pp.conv(x, weight, **case.arguments)
    elif operator == "conv_input":
        result = made.conv_input(geometry.geometry, grad, weight)
        reference = pp.conv_input(x.shape, weight, grad, **case.arguments)
    else:
        result = made.conv_weight(geometry.geometry, x, grad)
        reference = pp.conv_weight(x, weight.shape, grad, **case.arguments)
    checks.close(np.asarray(result), reference, case)


def test_the_engines_here_are_graphs():
    """The values above came from graphs: the fake cuDNN executed them."""
    assert cupy_logic.MADE["graphs-native"].chain.makers.keys() == {"frontend"}
