"""The command line: what people read, what programs read, and the exit status."""

import itertools
import json
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

import pyflux_pad
from pyflux_pad import backends

REFERENCE_VALUES = resources.files("pyflux_pad").joinpath("reference_values.json").read_text("utf-8")
STORED = json.loads(REFERENCE_VALUES)["cases"]
AVAILABLE = [name for name, engine in pyflux_pad.available_backends().items() if engine.available]

# 8x9 input, kernel 3x4, stride 2: a geometry in which the frameworks' "same" rules give the same output size and
# different pads. The values are worked out by hand.
WORKED = ("--input", "8", "9", "--kernel", "3", "4", "--stride", "2")


@pytest.fixture
def pads(run):
    """Run ``pads --json`` on the worked example and return the record."""

    def pads(*options):
        status, out, err = run("pads", *WORKED, *options, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return pads


# ---------------------------------------------------------------------------------------------------------------- pads


@pytest.mark.parametrize(
    ("rule", "pairs", "output"),
    [
        ("valid", [[0, 0], [0, 0]], [3, 3]),
        ("same", [[0, 1], [1, 2]], [4, 5]),
        ("tf", [[0, 1], [1, 2]], [4, 5]),
        ("jax", [[0, 1], [1, 2]], [4, 5]),
        ("onnx_upper", [[0, 1], [1, 2]], [4, 5]),
        ("same_lower", [[1, 0], [2, 1]], [4, 5]),
        ("onnx_lower", [[1, 0], [2, 1]], [4, 5]),
        ("flux", [[1, 1], [2, 1]], [4, 5]),
        ("causal", [[2, 0], [0, 0]], [4, 3]),
    ],
)
def test_rules(pads, rule, pairs, output):
    record = pads("--rule", rule)
    assert record["pads"]["pairs"] == pairs
    assert record["output_size"] == output


def test_torch_same_at_stride_one(pads):
    assert pads("--rule", "torch", "--stride", "1")["pads"]["pairs"] == [[1, 1], [1, 2]]


@pytest.mark.parametrize(
    "options",
    [
        ("--pairs", "1", "2", "0", "3"),
        ("--onnx", "1", "0", "2", "3"),
        ("--caffe2", "1", "0", "2", "3"),
        ("--torch", "0", "3", "1", "2"),
        ("--flux", "0", "3", "1", "2"),
        ("--tf", "0", "0", "1", "2", "0", "3", "0", "0"),
        ("--tf", "0", "0", "0", "0", "1", "2", "0", "3", "--data-format", "NCHW"),
    ],
    ids=" ".join,
)
def test_every_dialect_reads_the_same_pads(pads, options):
    record = pads(*options)
    assert record["pads"] == {
        "pairs": [[1, 2], [0, 3]],
        "onnx": [1, 0, 2, 3],
        "torch": [0, 3, 1, 2],
        "flux": [0, 3, 1, 2],
        "tf": {"NHWC": [[0, 0], [1, 2], [0, 3], [0, 0]], "NCHW": [[0, 0], [0, 0], [1, 2], [0, 3]]},
        "jax": [[1, 2], [0, 3]],
    }
    assert record["output_size"] == [5, 5]
    assert record["symmetric_equivalent"] is None


def test_short_forms(pads):
    assert pads("--flux", "2")["pads"]["pairs"] == [[2, 2], [2, 2]]
    assert pads("--flux", "1", "2")["pads"]["pairs"] == [[2, 2], [1, 1]]
    assert pads("--torch", "1", "2")["pads"]["pairs"] == [[0, 0], [1, 2]]
    assert pads("--pairs", "-1", "2", "0", "0")["pads"]["onnx"] == [-1, 0, 2, 0]


def test_symmetric_equivalent(pads):
    # The last window ends at 2*(4-1) + 3 = 9 = 1 + 8 + 0 cells on the first axis: a cell at the end is never read. On
    # the second, (2, 2) reads 2*(5-1) + 4 = 12 of 13 cells, so (2, 1) gives the same.
    assert pads("--pairs", "1", "0", "2", "1")["symmetric_equivalent"] == [1, 2]
    # Without the cell at the end (2, 0) has one window less, which no symmetric padding has.
    assert pads("--pairs", "1", "0", "2", "0")["symmetric_equivalent"] is None


def test_same_rules(pads):
    rules = pads("--rule", "valid")["same_rules"]
    assert rules["tf"] == {"pads": [[0, 1], [1, 2]], "output_size": [4, 5], "agrees_with": ["onnx_upper", "jax"]}
    # The last window of the first axis ends at 2*(4-1) + 3 = 9 = 1 + 8 cells: the one that flux adds is never read.
    assert rules["onnx_lower"] == {"pads": [[1, 0], [2, 1]], "output_size": [4, 5], "agrees_with": ["flux"]}
    assert rules["flux"] == {"pads": [[1, 1], [2, 1]], "output_size": [4, 5], "agrees_with": ["onnx_lower"]}
    assert list(rules["torch"]) == ["error"]
    assert "stride 1 only" in rules["torch"]["error"]


def test_same_rules_at_stride_one(pads):
    rules = pads("--rule", "valid", "--stride", "1")["same_rules"]
    assert {rule: result["agrees_with"] for rule, result in rules.items()} == {
        "tf": ["onnx_upper", "jax", "torch"],
        "onnx_upper": ["tf", "jax", "torch"],
        "jax": ["tf", "onnx_upper", "torch"],
        "torch": ["tf", "onnx_upper", "jax"],
        "onnx_lower": ["flux"],
        "flux": ["onnx_lower"],
    }


def test_pads_for_people(run):
    status, out, _ = run("pads", *WORKED, "--rule", "same")
    table, refusal = out.split("torch: ", 1)
    assert status == 0
    assert refusal.startswith("Padding.same: torch has padding='same' for stride 1 only")
    assert table == """\
input 8 x 9, kernel 3 x 4, stride 2 x 2, dilation 1 x 1

dialect          order                             pads
---------------  --------------------------------  --------------------------------
pyflux_pad, JAX  low high pairs, first axis first  ((0, 1), (1, 2))
ONNX, Caffe2     all begins, then all ends         (0, 1, 1, 2)
torch F.pad      low high, last axis first         (1, 2, 0, 1)
Flux, NNlib      low high, width first             (1, 2, 0, 1)
TensorFlow       NHWC                              ((0, 0), (0, 1), (1, 2), (0, 0))
TensorFlow       NCHW                              ((0, 0), (0, 0), (0, 1), (1, 2))

output size           4 x 5
symmetric equivalent  none: no symmetric padding gives this result

The "same" rules for these sizes:

rule        pads              output size  same result as
----------  ----------------  -----------  ---------------
tf          ((0, 1), (1, 2))  4 x 5        onnx_upper, jax
onnx_upper  ((0, 1), (1, 2))  4 x 5        tf, jax
jax         ((0, 1), (1, 2))  4 x 5        tf, onnx_upper
onnx_lower  ((1, 0), (2, 1))  4 x 5        flux
flux        ((1, 1), (2, 1))  4 x 5        onnx_lower
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*WORKED, "--onnx", "1", "0", "2"), "all begins, then all ends"),
        ((*WORKED, "--onnx", "1", "0"), "for 1 spatial axes, but --kernel has 2"),
        ((*WORKED, "--pairs", "1", "0", "2"), "--pairs takes pairs of low and high, got 3 ints"),
        ((*WORKED, "--tf", "1", "2", "0", "3"), "one pair for each axis of 'NHWC'"),
        ((*WORKED, "--caffe2", "1", "2"), "top, left, bottom, right"),
        ((*WORKED, "--rule", "torch"), "stride 1 only"),
        ((*WORKED, "--rule", "SAME"), "invalid choice: 'SAME'"),
        (WORKED, "one of the arguments --rule"),
        ((*WORKED, "--rule", "same", "--onnx", "1", "0", "2", "3"), "not allowed with argument"),
        ((*WORKED, "--stride", "0", "--rule", "same"), "stride must be at least 1, got 0"),
        ((*WORKED, "--stride", "1", "2", "3", "--rule", "same"), "--stride 1 2 3 has 3 sizes for the 2 axes"),
        ((*WORKED, "--stride", "2.5", "--rule", "same"), "invalid int value: '2.5'"),
        (("--input", "8", "--kernel", "3", "4", "--rule", "same"), "--input 8 has 1 sizes for the 2 axes"),
        (("--input", "2", "--kernel", "5", "--rule", "valid"), "axis 0"),
        (("--input", *"1111", "--kernel", *"1111", "--rule", "valid"), "one to three sizes, got 4"),
    ],
)
def test_wrong_pads_are_one_line_and_status_2(run, options, message):
    status, out, err = run("pads", *options)
    assert (status, out) == (2, "")
    assert err.startswith("pyflux-pad pads: error: ")
    assert err.count("\n") == 1
    assert message in err


# ---------------------------------------------------------------------------------------------------------------- info


def test_info(run):
    status, out, _ = run("info", "--json")
    record = json.loads(out)
    assert status == 0
    assert record["pyflux_pad"] == pyflux_pad.__version__
    numpy = next(engine for engine in record["engines"] if engine["name"] == "numpy")
    assert numpy == {
        "name": "numpy", "available": True, "version": np.__version__, "device": "cpu", "reason": "", "remedy": ""
    }  # fmt: skip


def test_info_for_people_names_what_is_missing(run, monkeypatch):
    missing = backends.BackendInfo("torch", "", "", False, "the package torch is not installed", "pip install torch")
    monkeypatch.setattr(pyflux_pad, "available_backends", lambda: {"torch": missing})
    status, out, _ = run("info")
    assert status == 0
    assert out.splitlines()[2:] == [
        "engine  status   version  device",
        "------  -------  -------  ------",
        "torch   missing  -        -",
        "",
        "torch is missing: the package torch is not installed",
        "  remedy: pip install torch",
    ]


def test_no_command(run):
    assert run()[0] == 2
    assert run("--version") == (0, f"pyflux-pad {pyflux_pad.__version__}\n", "")


# --------------------------------------------------------------------------------------------------------------- check


def test_check(run):
    status, out, _ = run("check")
    assert status == 0, out
    lines = out.splitlines()
    assert "NNlib 0.9.36" in lines[0]
    assert "onnxruntime 1.32.0" in lines[0]
    assert lines[-1] == "every engine is right"


def test_check_for_programs(run):
    status, out, _ = run("check", "--json")
    record = json.loads(out)
    assert status == 0, out
    assert record["passed"] is True
    rows = {(row["op"], row["engine"], row["against"]): row for row in record["comparisons"]}
    operations = {"conv", "conv_transpose", "conv_input", "conv_weight"}
    for engine in AVAILABLE:
        assert {op for op, name, against in rows if (name, against) == (engine, "stored results")} == operations
    for first, second in itertools.combinations(AVAILABLE, 2):
        assert {op for op, name, against in rows if (name, against) == (second, first)} == operations
    assert all(row["mismatches"] == [] for row in rows.values())
    # Every stored case runs with its pads, and once more with the rule that computes them.
    for op in ("conv", "conv_transpose"):
        of_op = [case for case in STORED if case["op"] == op]
        assert rows[op, "numpy", "stored results"]["comparisons"] == len(of_op) + sum("rule" in case for case in of_op)


def test_check_of_one_engine(run):
    status, out, _ = run("check", "--backend", "numpy", "--json")
    assert status == 0
    assert {(row["engine"], row["against"]) for row in json.loads(out)["comparisons"]} == {("numpy", "stored results")}


@pytest.mark.parametrize("engine", AVAILABLE)
@pytest.mark.parametrize("operation", ["conv", "conv_input", "conv_weight"])
def test_check_finds_a_corrupt_engine(run, monkeypatch, engine, operation):
    backend = type(backends.get(engine))
    right = getattr(backend, operation)

    def one_cell_off(self, *args, **kwargs):
        result = right(self, *args, **kwargs)
        result.reshape(-1)[-1:] += 1
        return result

    monkeypatch.setattr(backend, operation, one_cell_off)
    status, out, _ = run("check")
    assert status == 1
    assert out.splitlines()[-1] == "an engine is wrong"
    wrong = [line for line in out.splitlines() if "MISMATCH" in line]
    assert any(line.split()[:2] == [operation, engine] for line in wrong)
    assert f"{operation} on {engine} against stored results: " in out


@pytest.mark.engine("torch")
def test_check_finds_a_lost_bias(run, monkeypatch):
    backend = type(backends.get("numpy"))
    right = backend.conv
    monkeypatch.setattr(
        backend, "conv", lambda self, plan, x, weight, bias, *rest: right(self, plan, x, weight, None, *rest)
    )
    status, out, _ = run("check", "--json")
    wrong = {(row["op"], row["against"]) for row in json.loads(out)["comparisons"] if not row["passed"]}
    assert (status, wrong) == (1, {("conv", "numpy")})


def test_check_goes_on_after_an_engine_that_breaks(run, monkeypatch):
    def breaks(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(type(backends.get("numpy")), "conv", breaks)
    status, out, _ = run("check", "--backend", "numpy", "--json")
    rows = {row["op"]: row for row in json.loads(out)["comparisons"]}
    assert status == 1
    assert rows["conv"]["worst_error"] is None
    assert rows["conv"]["mismatches"][0]["remark"] == "RuntimeError: out of order"
    assert rows["conv_weight"]["passed"]
    assert "no result" in run("check", "--backend", "numpy")[1]


def test_check_refuses_an_engine_that_is_unknown_or_missing(run, monkeypatch):
    status, _, err = run("check", "--backend", "nunpy")
    assert status == 2
    assert err.startswith("pyflux-pad check: error: --backend nunpy: there is no such engine; there are numpy, ")
    missing = backends.BackendInfo("torch", "", "", False, "the package torch is not installed", "pip install torch")
    monkeypatch.setattr(pyflux_pad, "available_backends", lambda: {"torch": missing})
    status, _, err = run("check", "--backend", "torch")
    assert status == 2
    assert err.endswith("--backend torch cannot run: the package torch is not installed; pip install torch\n")


def test_stored_results_cover_what_they_should():
    assert len(REFERENCE_VALUES) < 60_000
    assert {case["framework"] for case in STORED} == {
        "NNlib", "TensorFlow", "Keras", "JAX", "PaddlePaddle", "onnxruntime"
    }  # fmt: skip
    for op in ("conv", "conv_transpose"):
        of_op = [case for case in STORED if case["op"] == op]
        assert {len(case["stride"]) for case in of_op} == {1, 2, 3}
        for covered in (
            lambda case: any(low != high for low, high in case["padding"]),
            lambda case: min(map(min, case["padding"])) < 0,
            lambda case: max(case["stride"]) > 1,
            lambda case: max(case["dilation"]) > 1,
            lambda case: case["groups"] > 1,
            lambda case: case["flip_kernel"],
        ):
            assert any(map(covered, of_op))
    rules = {(case["op"], case["rule"]["padding"]) for case in STORED if "rule" in case}
    assert rules >= {("conv", rule) for rule in ("valid", "same", "same_lower", "causal")}
    assert rules >= {("conv_transpose", rule) for rule in ("same", "same_lower")}
    from_nnlib = [case for case in STORED if (case["op"], case["framework"]) == ("conv", "NNlib")]
    assert all({"grad_x", "grad_weight"} <= set(case["arrays"]) for case in from_nnlib)


# ------------------------------------------------------------------------------------------------------ as a program


@pytest.mark.parametrize(("argv", "status"), [
    (("check", "--backend", "numpy"), 0),
    (("pads", *WORKED, "--onnx", "1"), 2),
])
def test_as_a_module(argv, status):
    done = subprocess.run(
        [sys.executable, "-m", "pyflux_pad", *argv], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("every engine is right" in done.stdout) == (status == 0)
