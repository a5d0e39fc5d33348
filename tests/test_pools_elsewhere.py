"""Pools against other frameworks: golden values of NNlib and five more, torch and onnxruntime on random cases."""

import dataclasses
import functools
import itertools
import json
import math

import cases
import numpy as np
import oracle_pools as oracle
import pytest
from pool_cases import KINDS, pool_cases, with_indices
from test_golden import GOLDEN, Golden
from test_random import run

import pyflux_pad as pp

# ---------------------------------------------------------------- golden values: NNlib


RECORDS = [r for r in json.loads((GOLDEN / "nnlib.json").read_text(encoding="utf-8"))["cases"] if r["op"] == "pool"]
NNLIB = [Golden(record, np.load(GOLDEN / "nnlib.npz")) for record in RECORDS]


@pytest.mark.parametrize("case", NNLIB, ids=str)
def test_nnlib(engine, case):
    """Maxima exact, means and norms to 1e-5; gradients included."""
    record = case.record
    function = {"max": pp.max_pool, "mean": pp.avg_pool, "lp": pp.lp_pool}[record["kind"]]
    options = {name: record[name] for name in ("kernel_size", "stride", "padding", "count_include_pad", "norm_type")
               if name in record}
    x, tolerance = case["x"], 0 if record["kind"] == "max" else 1e-5
    y, (dx,) = engine.vjp(function, x, grad_output=case["dy"], **options)
    np.testing.assert_allclose(y, case["y"], tolerance, tolerance)
    np.testing.assert_allclose(dx, case["dx"], tolerance, tolerance)


def test_every_nnlib_pool_is_here():
    kinds = [case.record["kind"] for case in NNLIB]
    assert [kinds.count(kind) for kind in ("max", "mean", "lp")] == [20, 20, 20]


# ---------------------------------------------------------------- golden values: other frameworks


_ALL = json.loads((GOLDEN / "frameworks.json").read_text(encoding="utf-8"))["cases"]
FRAMEWORKS = [Golden(record, np.load(GOLDEN / "frameworks.npz")) for record in _ALL if "pool" in record["op"]]
PLAIN = [case for case in FRAMEWORKS if "note" not in case.record]
DEPARTURES = [case for case in FRAMEWORKS if "note" in case.record]


def boxes_of(case, padding):
    record = case.record
    pairs = tuple(map(tuple, padding))
    return oracle.windows(case["x"].shape[2:], *(tuple(record[name]) for name in ("kernel_size", "stride")), pairs,
                          tuple(record["dilation"]), False)


def our_pool(engine, case, padding, *, ceil_mode=False, divisor=None, dilation=None):
    """Run our pool of the case's kind; an average by the divisor the record names, or by another."""
    record = case.record
    arguments = {"kernel_size": record["kernel_size"], "stride": record["stride"], "padding": padding,
                 "dilation": dilation or record["dilation"], "ceil_mode": ceil_mode}
    if record["op"] == "max_pool":
        return engine(pp.max_pool, case["x"], **arguments)
    override = divisor if divisor is not None else record.get("divisor_override")
    return engine(pp.avg_pool, case["x"], **arguments, count_include_pad=record["count_include_pad"],
                  divisor_override=override)


def in_full(engine, case):
    """Return what reproduces y from the recorded pads alone, whatever the framework's rule is."""
    record = case.record
    if record["op"] == "max_pool" or record["divisor"] in ("valid", "kernel", "override"):
        return our_pool(engine, case, record["padding"]) * np.float32(record.get("scale", 1))
    # Sums over the recorded windows, by the cells of each that lie in the declared extent of the input.
    sums = our_pool(engine, case, record["padding"], divisor=1)
    reach = [(n, *pair) for n, pair in zip(case["x"].shape[2:], record.get("divisor_padding", record["padding"]),
                                           strict=True)]
    axes = []
    for (n, low, high), (first, _), k, s, d, out in zip(
            reach, record["padding"], record["kernel_size"], record["stride"], record["dilation"], sums.shape[2:],
            strict=True):
        axes.append([sum(-low <= j * s - first + tap * d < n + high for tap in range(k)) for j in range(out)])
    counts = functools.reduce(np.multiply.outer, axes) if len(axes) > 1 else np.array(axes[0])
    return sums / np.maximum(counts, 1) * record.get("scale", 1)


def close(actual, desired, case):
    tolerance = 0 if case.record["op"] == "max_pool" else 1e-5
    np.testing.assert_allclose(actual, desired, tolerance, tolerance)


def test_every_framework_pool_is_here():
    assert len(FRAMEWORKS) == 98
    assert len(DEPARTURES) == 23
    assert sum("empty_value" in case.record for case in FRAMEWORKS) == 12
    assert {case.record["rule"] for case in PLAIN} == {"same", "same_lower", "valid", "explicit", "ceil"}


@pytest.mark.parametrize("case", FRAMEWORKS, ids=str)
def test_frameworks_explicit_pads(engine, case):
    """The recorded pads and divisor give y; a window without input cells is ours: -inf, or 0 in an average."""
    ours = in_full(engine, case)
    empty = np.zeros(ours.shape, bool)
    for index, cells, _ in boxes_of(case, case.record["padding"]):
        empty[(..., *index)] = not cells
    assert ours.shape == case["y"].shape
    assert empty.any() == ("empty_value" in case.record)
    close(ours[~empty], case["y"][~empty], case)
    assert (ours[empty] == (-np.inf if case.record["op"] == "max_pool" else 0)).all()
    if empty.any():
        np.testing.assert_array_equal(case["y"][empty], np.float32(case.record["empty_value"]))


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_frameworks_rule(engine, case):
    """The framework's call in our words: its rule, or its declared pads and ceil mode."""
    record = case.record
    ceil_mode = record["rule"] == "ceil"
    padding = record["rule"] if record["rule"] in ("same", "same_lower", "valid") else record.get(
        "declared_padding", record["padding"])
    close(our_pool(engine, case, padding, ceil_mode=ceil_mode), case["y"], case)


@pytest.mark.parametrize("case", DEPARTURES, ids=str)
def test_frameworks_departures(engine, case):
    """We do what is documented, and that is not what the framework gives."""
    record = case.record
    if record["rule"] in ("same", "same_lower"):
        ours = our_pool(engine, case, record["rule"])
        close(ours, our_pool(engine, case, record["documented_padding"]), case)
    elif record["rule"] == "ceil":
        ours = our_pool(engine, case, record["declared_padding"], ceil_mode=True)
        if "empty_value" in record:
            # Paddle keeps a window that starts in the high padding; we do not, and agree on all others where the
            # divisor is not another departure.
            assert any(mine < theirs for mine, theirs in zip(ours.shape, case["y"].shape, strict=True))
            if "documented_divisor_padding" not in record:
                close(ours, case["y"][tuple(map(slice, ours.shape))], case)
    else:
        override = record["documented_divisor"].partition("override ")[2]
        ours = our_pool(engine, case, record["padding"], divisor=int(override) if override else None)
        boxes = boxes_of(case, record["padding"])
        divisor = (record["count_include_pad"], int(override) if override else None)
        close(ours, oracle.avg_pool(case["x"], boxes, *divisor), case)
    assert ours.shape != case["y"].shape or not np.allclose(ours, case["y"], 1e-5, 1e-5)


# ---------------------------------------------------------------- torch and onnxruntime


def filled(count, seed, kinds, **options):
    """Return cases every window of which holds a cell: where none does, frameworks answer what they like."""
    drawn = (case for case in pool_cases(seed, 4 * count, kinds, **options) if all(c for _, c, _ in case.windows))
    return list(itertools.islice(drawn, count))


@pytest.mark.engine("torch")
def test_torch(engine):
    """What torch can express, values, indices and gradients: pads equal on both sides and at most half the kernel."""
    import torch

    def check(engine, case, dtype):
        functional, axes = torch.nn.functional, len(case.size)
        if case.kind == "avg":
            case = dataclasses.replace(case, dilation=(1,) * axes)
            if axes == 3 and any(n < k for n, k in zip(case.size, case.kernel, strict=True)):
                return  # torch's avg_pool3d forgets its padding when it compares the kernel with the input
        x = torch.tensor(case.x(), requires_grad=True)
        settings = case.kernel, case.stride, tuple(low for low, _ in case.padding)
        options = dict(case.options)
        if case.kind == "max":
            pool = getattr(functional, f"max_pool{axes}d")
            theirs, places = pool(x, *settings, case.dilation, case.ceil_mode, True)
            ours, where = with_indices(engine, case.x(), **case.arguments)
            np.testing.assert_array_equal(where, places.numpy())
            np.testing.assert_array_equal(ours, theirs.detach().numpy())
        else:
            if axes == 1:
                options.pop("divisor_override")
            theirs = getattr(functional, f"avg_pool{axes}d")(x, *settings, case.ceil_mode, **options)
        grad = case.grad(tuple(theirs.shape))
        (expected,) = torch.autograd.grad(theirs, x, torch.tensor(grad))
        y, (dx,) = engine.vjp(case.function, case.x(), grad_output=grad, **{**case.arguments, **(
            {} if case.kind == "max" else {"divisor_override": options.get("divisor_override")})})
        np.testing.assert_allclose(y, theirs.detach().numpy(), 1e-12, 1e-12)
        np.testing.assert_allclose(dx, expected.numpy(), 1e-12, 1e-12)

    run(check, engine, filled(400, 91, ("max", "avg"), negative=False, beyond=False, symmetric=True), "float64")


@pytest.mark.engine("torch")
def test_torch_norms(engine):
    """`lp_pool` is torch's where x >= 0 or p is even, without overhang."""
    import torch

    x = cases.fill(np.random.default_rng(0), (2, 3, 6, 8), "float64")
    for power, given in ((2, x), (4, x), (3, abs(x)), (1, abs(x))):
        theirs = torch.nn.functional.lp_pool2d(torch.tensor(given), power, (2, 3), (2, 1))
        ours = engine(pp.lp_pool2d, given, power, (2, 3), (2, 1))
        np.testing.assert_allclose(ours, theirs.numpy(), 1e-12, 1e-12)


def onnx_pool(onnx, onnxruntime, case, x):
    """Run one operator of opset 22; return its outputs."""
    attributes = {"kernel_shape": case.kernel, "strides": case.stride, "dilations": case.dilation,
                  "ceil_mode": int(case.ceil_mode),
                  "pads": [low for low, _ in case.padding] + [high for _, high in case.padding]}
    name = {"max": "MaxPool", "avg": "AveragePool", "lp": "LpPool"}[case.kind]
    options = dict(case.options)
    if case.kind == "avg":
        attributes["count_include_pad"] = int(options["count_include_pad"])
    elif case.kind == "lp":
        attributes["p"] = int(options["norm_type"])
    outputs = ["y", "where"] if case.kind == "max" else ["y"]
    types = {"x": onnx.TensorProto.FLOAT, "y": onnx.TensorProto.FLOAT, "where": onnx.TensorProto.INT64}

    def values(names):
        return [onnx.helper.make_tensor_value_info(name, types[name], [None] * x.ndim) for name in names]

    node = onnx.helper.make_node(name, ["x"], outputs, **attributes)
    graph = onnx.helper.make_graph([node], "pool", values(["x"]), values(outputs))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnxruntime(engine):
    """What ONNX can express, 500 random pools: asymmetric pads, dilation, ceil mode, both divisors, indices."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'pyflux-pad[test]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'pyflux-pad[test]'")

    def check(engine, case, dtype):
        if case.kind == "lp":
            case = dataclasses.replace(case, options=(("norm_type", 1 + case.seed % 3),))
        elif case.kind == "avg":
            case = dataclasses.replace(case, options=(case.options[0],))
        case = dataclasses.replace(case, nans=False)
        x = case.x(dtype)
        theirs = onnx_pool(onnx, runtime, case, x)
        if case.kind == "max":
            y, where = with_indices(engine, x, **case.arguments)
            np.testing.assert_array_equal(y, theirs[0])
            # ONNX counts over the whole tensor.
            np.testing.assert_array_equal(where, theirs[1] % math.prod(case.size))
        else:
            y = engine(case.function, x, **case.arguments)
            np.testing.assert_allclose(y, theirs[0], 1e-5, 1e-5)

    drawn = filled(500, 95, KINDS, negative=False, beyond=False)
    assert len(drawn) == 500
    run(check, engine, drawn, "float32")
