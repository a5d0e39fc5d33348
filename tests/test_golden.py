"""Values computed by NNlib, Flux, TensorFlow, Keras, JAX, Paddle and onnxruntime, reproduced exactly.

golden/README.md says what the files hold. Inputs are small integers, so equality is equality; only the Flux layers have
real weights.
"""

import json
import pathlib

import numpy as np
import oracle
import pytest

import pyflux_pad as pp
from pyflux_pad import Padding

GOLDEN = pathlib.Path(__file__).parent / "golden"
CONVOLUTIONS = ("conv", "conv_transpose")


class Golden:
    """One case of a golden file: its record and, when asked, its arrays."""

    def __init__(self, record, arrays):
        self.record, self._arrays = record, arrays
        self.name = record["name"]
        self.transposed = record.get("op") == "conv_transpose"

    def __str__(self):
        return self.name

    def __getitem__(self, array):
        return self._arrays[f"{self.name}/{array}"]

    @property
    def function(self):
        return pp.conv_transpose if self.transposed else pp.conv

    @property
    def arguments(self):
        """What reproduces y: explicit pads, and the settings of the call."""
        names = ("padding", "stride", "dilation", "groups", "output_padding", "flip_kernel")
        arguments = {name: self.record[name] for name in names if name in self.record}
        extra = arguments.get("output_padding", ())
        if any(e >= max(s, d) for e, s, d in zip(extra, arguments["stride"], arguments["dilation"], strict=False)):
            # JAX may add more than torch's output_padding can: a negative crop adds any number of zeros.
            pairs = zip(arguments["padding"], arguments.pop("output_padding"), strict=True)
            arguments["padding"] = [(low, high - e) for (low, high), e in pairs]
        return arguments


def load(file):
    """Return the convolutions of a golden file."""
    arrays = np.load(GOLDEN / f"{file}.npz")
    records = json.loads((GOLDEN / f"{file}.json").read_text(encoding="utf-8"))["cases"]
    return [Golden(record, arrays) for record in records if record.get("op") in CONVOLUTIONS]


NNLIB, FRAMEWORKS = load("nnlib"), load("frameworks")
nnlib_convs = pytest.mark.parametrize("case", [c for c in NNLIB if not c.transposed], ids=str)


def with_rule(*rules, transposed=None):
    """Parametrise over the framework cases of some rules, without those that depart from their documentation."""
    chosen = [c for c in FRAMEWORKS if c.record["rule"] in rules and "note" not in c.record
              and transposed in (None, c.transposed)]
    return pytest.mark.parametrize("case", chosen, ids=str)


def test_every_case_is_here():
    assert sum(not c.transposed for c in NNLIB) == 150
    assert len(NNLIB) == 210
    assert sum(not c.transposed for c in FRAMEWORKS) == 85
    assert len(FRAMEWORKS) == 157


# ---------------------------------------------------------------- NNlib


@pytest.mark.parametrize("case", NNLIB, ids=str)
def test_nnlib_forward(engine, case):
    np.testing.assert_array_equal(engine(case.function, case["x"], case["w"], **case.arguments), case["y"])


@nnlib_convs
def test_nnlib_transposes(engine, case):
    dx = engine(pp.conv_input, case["x"].shape, case["w"], case["dy"], **case.arguments)
    np.testing.assert_array_equal(dx, case["dx"], err_msg="conv_input")
    dw = engine(pp.conv_weight, case["x"], case["w"].shape, case["dy"], **case.arguments)
    np.testing.assert_array_equal(dw, case["dw"], err_msg="conv_weight")


@nnlib_convs
def test_nnlib_gradients(engine, case):
    y, (dx, dw) = engine.vjp(pp.conv, case["x"], case["w"], grad_output=case["dy"], **case.arguments)
    np.testing.assert_array_equal(y, case["y"])
    np.testing.assert_array_equal(dx, case["dx"], err_msg="gradient by x")
    np.testing.assert_array_equal(dw, case["dw"], err_msg="gradient by weight")


@pytest.mark.parametrize("case", NNLIB + FRAMEWORKS, ids=str)
def test_oracle(case):
    """The loops every other test trusts give the same values as the frameworks."""
    function = oracle.conv_transpose if case.transposed else oracle.conv
    np.testing.assert_array_equal(function(case["x"], case["w"], **case.arguments), case["y"])


# ---------------------------------------------------------------- other frameworks: explicit pads


@pytest.mark.parametrize("case", FRAMEWORKS, ids=str)
def test_frameworks_explicit_pads(engine, case):
    np.testing.assert_array_equal(engine(case.function, case["x"], case["w"], **case.arguments), case["y"])


@pytest.mark.parametrize("case", [c for c in FRAMEWORKS if "declared_padding" in c.record], ids=str)
def test_frameworks_pads_as_declared(engine, case):
    """`output_padding` and `output_size` fold into the pads the way the framework's own call does it."""
    declared = {**case.arguments, "padding": case.record["declared_padding"]}
    if "output_size" in case.record:
        declared |= {"output_padding": 0, "output_size": case.record["output_size"]}
    else:
        declared["output_padding"] = case.record["declared_output_padding"]
    np.testing.assert_array_equal(engine(case.function, case["x"], case["w"], **declared), case["y"])


# ---------------------------------------------------------------- other frameworks: rules


def by_rule(case):
    """Return the arguments of the framework's call with its rule in place of pads."""
    arguments = {**case.arguments, "padding": case.record["rule"]}
    arguments["dilation"] = case.record.get("documented_dilation", case.record["dilation"])
    if case.transposed and case.record["rule"] != "valid":
        # Where the call fixes the size, the output padding it also declares is in that size already.
        size = case.record.get("output_size")
        declared = case.record.get("declared_output_padding", 0)
        arguments |= {"output_padding": declared} if size is None else {"output_padding": 0, "output_size": size}
    return arguments


@with_rule("same", "same_lower", "causal", "valid")
def test_frameworks_rule(engine, case):
    np.testing.assert_array_equal(engine(case.function, case["x"], case["w"], **by_rule(case)), case["y"])


SAME_OF = {"tensorflow": "tf", "keras": "tf", "paddle": "tf", "jax": "jax", "onnxruntime": "onnx_upper"}


def computed_pads(case, *, dilation=None):
    """Return the pads that `Padding` computes for a convolution's rule."""
    record = case.record
    kernel, stride, dilation = record["kernel_size"], record["stride"], dilation or record["dilation"]
    if record["rule"] == "valid":
        return Padding(((0, 0),) * len(kernel))
    if record["rule"] == "causal":
        return Padding.causal(kernel, dilation)
    rule = "onnx_lower" if record["rule"] == "same_lower" else SAME_OF[record["framework"]]
    return Padding.same(rule, case["x"].shape[2:], kernel, stride, dilation)


@with_rule("same", "same_lower", "causal", "valid", transposed=False)
def test_frameworks_rule_as_padding(case):
    """`Padding.same` and `Padding.causal` give the framework's pads, and so does the plan of the rule's name."""
    assert computed_pads(case) == Padding(case.record["padding"])
    plan = pp.plan(case["x"].shape, case["w"].shape, **by_rule(case))
    assert Padding(plan.geometry.padding) == Padding(case.record["padding"])


def test_every_rule_is_exercised():
    """Nothing above passes because its list of cases is empty."""
    found = {(c.record["op"], c.record["rule"]) for c in FRAMEWORKS if "note" not in c.record}
    assert found == {("conv", "same"), ("conv", "same_lower"), ("conv", "causal"), ("conv", "valid"),
                     ("conv", "explicit"), ("conv_transpose", "same"), ("conv_transpose", "same_lower"),
                     ("conv_transpose", "valid"), ("conv_transpose", "explicit")}


# ---------------------------------------------------------------- departures


DEPARTURES = [c for c in FRAMEWORKS if "note" in c.record]


def departures(framework, transposed):
    chosen = [c for c in DEPARTURES if c.record["framework"] == framework and c.transposed == transposed]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=str)


def test_departures_are_the_known_ones():
    assert sorted(c.name for c in DEPARTURES) == [
        "ort_conv_transpose2d_lower_k_lt_s",
        "ort_conv_transpose2d_output_shape_past_full_slack",
        "ort_conv_transpose2d_output_shape_upper_past_full_slack",
        "ort_conv_transpose2d_upper_k_lt_s",
        "paddle_conv1d_same_d2",
        "paddle_conv2d_same_d2",
        "paddle_conv2d_same_s2_d23",
        "paddle_conv2d_transpose_same_d2",
        "paddle_conv2d_transpose_same_output_size",
        "paddle_conv2d_transpose_same_s2",
    ]


@departures("paddle", transposed=False)
def test_paddle_same_ignores_dilation(engine, case):
    """Our rule gives the pads Paddle documents; Paddle computes with others, and with dilation 1."""
    documented = Padding(case.record["documented_padding"])
    assert computed_pads(case, dilation=case.record["documented_dilation"]) == documented
    assert documented != Padding(case.record["padding"])
    ours = engine(pp.conv, case["x"], case["w"], **by_rule(case))
    assert not np.array_equal(ours, case["y"])


@departures("paddle", transposed=True)
def test_paddle_transposed_same(engine, case):
    """Our rule is the documented one, n*s or the size asked for; Paddle takes its total from the transposed input."""
    ours = engine(pp.conv_transpose, case["x"], case["w"], **by_rule(case))
    documented = {**case.arguments, "padding": case.record["documented_padding"]}
    documented["dilation"] = case.record.get("documented_dilation", case.record["dilation"])
    np.testing.assert_array_equal(ours, engine(pp.conv_transpose, case["x"], case["w"], **documented))
    assert not np.array_equal(ours, case["y"])


@departures("onnxruntime", transposed=True)
def test_onnxruntime_past_the_full_output(engine, case):
    """ONNX splits a negative total over both sides, onnxruntime does not; neither do we: zeros go to the high end."""
    full = engine(pp.conv_transpose, case["x"], case["w"], **{**case.arguments, "padding": 0, "output_padding": 0})
    ours = engine(pp.conv_transpose, case["x"], case["w"], **by_rule(case))
    wanted = case.record.get("output_size") or [
        n * s for n, s in zip(case["x"].shape[2:], case.record["stride"], strict=True)]
    missing = [(0, out - have) for out, have in zip(wanted, full.shape[2:], strict=True)]
    np.testing.assert_array_equal(ours, np.pad(full, [(0, 0), (0, 0), *missing]))
    # With the size given, onnxruntime does what we do; left to itself it stops at the full output, short of n*s.
    assert np.array_equal(ours, case["y"]) == ("output_size" in case.record)
    documented = {**case.arguments, "padding": case.record["documented_padding"],
                  "output_padding": case.record["documented_output_padding"]}
    assert not np.array_equal(ours, engine(pp.conv_transpose, case["x"], case["w"], **documented))


# ---------------------------------------------------------------- Flux layers

# How each plain layer of golden/flux.json reads here; pads in Flux's own order, everything else first axis first.
# SamePad() of a ConvTranspose crops (k - s) * d cells, the odd one at the low side.
FLUX_LAYERS = {
    "flux_00": {"padding": Padding.from_flux((0, 1, 2, 0), 2)},
    "flux_01": {"padding": Padding.from_flux((1, 2, 0, 3), 2), "stride": (2, 1)},
    "flux_02": {"padding": Padding.from_flux((9, 0, 9, 0), 2)},
    "flux_03": {"padding": Padding.from_flux((4, 0), 1), "dilation": 2},
    "flux_04": {"padding": Padding.from_flux((1, 0, 0, 1, 1, 1), 3), "stride": 2},
    "flux_05": {"padding": Padding.from_flux((1, 0, 0, 2), 2), "groups": 2},
    "flux_06": {"padding": Padding.from_flux((0, 1, 1, 0), 2), "groups": 3},
    "flux_07": {"padding": Padding.from_flux((1, 0, 0, 1), 2), "flip_kernel": False},
    "flux_08": {"padding": Padding.same("flux", (5, 6), 2)},
    "flux_09": {"padding": Padding.same("flux", (9, 8), 4, stride=2), "stride": 2},
    "flux_10": {"padding": Padding.same("flux", (7, 8), 3, dilation=2), "dilation": 2},
    "flux_11": {"padding": Padding.from_flux((1, 0, 0, 1), 2), "stride": 2},
    "flux_12": {"padding": Padding.from_flux(1, 2), "stride": 2, "output_padding": 1},
    "flux_13": {"padding": Padding.from_flux((1, 2), 1), "stride": 2},
    "flux_14": {"stride": (1, 2), "groups": 2, "output_padding": (0, 1)},
    "flux_15": {"padding": ((1, 0), (1, 0)), "stride": 2},
}


@pytest.mark.parametrize("name", FLUX_LAYERS)
def test_flux_layer(engine, name):
    records = json.loads((GOLDEN / "flux.json").read_text(encoding="utf-8"))["cases"]
    record = next(record for record in records if record["name"] == name)
    case = Golden(record, np.load(GOLDEN / "flux.npz"))
    function = pp.conv_transpose if "ConvTranspose" in record["julia"] else pp.conv
    x, weight, bias = case["x"], case["layer1.weight"], case["layer1.bias"]
    relu = "relu" in record["julia"]
    dy = case["dy"] * (case["y"] > 0) if relu else case["dy"]
    arguments = {"flip_kernel": True, **FLUX_LAYERS[name]}
    y, gradients = engine.vjp(function, x, weight, bias, grad_output=dy, **arguments)
    results = zip((np.maximum(y, 0) if relu else y, *gradients), ("y", "dx", "d_layer1.weight", "d_layer1.bias"),
                  strict=True)
    for result, golden in results:
        np.testing.assert_allclose(result, case[golden], rtol=1e-5, atol=1e-5, err_msg=golden)
