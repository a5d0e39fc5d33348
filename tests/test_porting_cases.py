"""ONNX's own cases through the porting: single operators, PyTorch's recordings, and the light models.

The cases come with the onnx package. What cannot be carried is listed below with its reason and must say so. The light
models' weights are one constant, which proves shapes only; with random weights ONNX Runtime is the reference.
"""

import collections
import pathlib
import re
import warnings
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

from pyflux_pad import porting  # noqa: E402
from pyflux_pad.porting.onnx.opsets import REWRITINGS  # noqa: E402
from pyflux_pad.porting.operators import OPERATORS  # noqa: E402

onnxruntime.set_default_logger_severity(3)
BACKENDS = ("numpy", pytest.param("torch", marks=pytest.mark.engine("torch")))

# Cases that are not carried: which, why, and what the error must say.
EXCEPTIONS = (
    ("cast(like)?_.*(FLOAT8|FLOAT4|INT4|INT2)", "dtypes of less than a byte, and of a byte of floating point",
     "graphs do not carry"),
    ("equal_string", "strings are no numbers", "graphs do not carry"),
    ("identity_(sequence|opt)$", "sequences and optional values are no arrays", "graphs carry dense arrays only"),
    ("training_dropout(_default)?(_mask)?$", "what is dropped is random", "training_mode is true"),
)
ON_TORCH = (
    ("(add|sub|div|min|max)_uint(16|32|64)$", "torch has not this arithmetic on the CPU", "not implemented for 'UInt"),
)


def node_cases() -> dict[str, Any]:
    """Return the single-operator cases whose operator is in the vocabulary, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases of other operators divide by zero on purpose
        cases = load_model_tests(kind="node")
    nodes = {case.name: (case, case.model.graph.node) for case in cases if case.model}
    known = {*OPERATORS, *REWRITINGS}
    return {name: case for name, (case, node) in nodes.items() if len(node) == 1 and node[0].op_type in known}


NODES = node_cases()
RECORDED: dict[str, Any] = {case.name: case for kind in ("pytorch-converted", "pytorch-operator")
            for case in load_model_tests(kind=kind)}
LIGHT = {path.stem: path for path in sorted(pathlib.Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))}


def exception(name, backend):
    """Return why a case is not carried and what the error says, or None."""
    for pattern, reason, message in (*EXCEPTIONS, *(ON_TORCH if backend == "torch" else ())):
        if re.match(f"test_{pattern}", name):
            return reason, message
    return None


def array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def load(path):
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def check(model, inputs, outputs, backend, rtol, atol):
    graph = porting.read_onnx(model)
    found = graph.run({value.name: array(x) for value, x in zip(graph.inputs, inputs, strict=True)}, backend=backend)
    for value, want in zip(graph.outputs, map(array, outputs), strict=True):
        got = found[value.name]
        assert (type(got), got.dtype, got.shape) == (np.ndarray, want.dtype, want.shape)
        if got.dtype.name == "bfloat16":
            got, want = got.astype(np.float32), want.astype(np.float32)
        np.testing.assert_allclose(got, want, rtol, atol)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NODES)
def test_operator(name, backend):
    case = NODES[name]
    for inputs, outputs in case.data_sets:
        excepted = exception(name, backend)
        if excepted is None:
            check(case.model.SerializeToString(), inputs, outputs, backend, case.rtol, case.atol)
        else:
            with pytest.raises(porting.ModelError, match=excepted[1]):
                check(case.model.SerializeToString(), inputs, outputs, backend, case.rtol, case.atol)


def test_counts(record_property):
    """Every operator of the vocabulary has a case, but those that ONNX has withdrawn or never gave one."""
    tested = {case.model.graph.node[0].op_type for case in NODES.values()}
    assert {*OPERATORS, *REWRITINGS} - tested == {"GlobalLpPool", "ImageScaler"}
    for backend in ("numpy", "torch"):
        excepted = [found[0] for found in (exception(name, backend) for name in NODES) if found]
        assert len(NODES) - len(excepted) >= {"numpy": 498, "torch": 483}[backend]
        listed = "; ".join(f"{count} {reason}" for reason, count in collections.Counter(excepted).items())
        record_property("coverage", f"ONNX operator cases on {backend}: {len(NODES) - len(excepted)} of {len(NODES)} "
                                    f"({listed})")  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_by_pytorch(name, backend):
    case = RECORDED[name]
    folder = pathlib.Path(case.model_dir)
    model = folder / "model.onnx"
    if name.startswith("test_operator_repeat"):
        with pytest.raises(porting.ModelError, match=r"operators that cannot be read: Tile \(node '\d'\). Known are"):
            porting.read_onnx(model)
        return
    for data in folder.glob("test_data_set_*"):
        inputs, outputs = ([load(path) for path in sorted(data.glob(f"{kind}_*.pb"))] for kind in ("input", "output"))
        check(model, inputs, outputs, backend, case.rtol, case.atol)


def test_recorded_counts(record_property):
    assert len(RECORDED) >= 117
    record_property("coverage", f"PyTorch's recorded cases: {len(RECORDED) - 2} of {len(RECORDED)} (2 with Tile)")


def test_light_are_nine():
    assert len(LIGHT) == 9


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LIGHT)
def test_light_as_stored(name, backend):
    graph = porting.read_onnx(LIGHT[name])
    shape = [int(size) for size in graph.inputs[0].shape or ()]
    x = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    if name != "light_squeezenet":
        check(LIGHT[name], [x], [load(LIGHT[name].with_name(f"{name}_output_0.pb"))], backend, 2e-3, 1e-7)
        return
    # Its thousand equal logits are about 1e10, and softmax makes e^1024 of their last bit: they are compared instead.
    logits = {}
    graph.run({graph.inputs[0].name: x}, backend=backend, observe=lambda node, arrays: logits.update({node.op: arrays}))
    (logits,) = logits["GlobalAveragePool"]
    assert logits.shape == (1, 1000, 1, 1)
    np.testing.assert_allclose(logits, 9.47569e9, 1e-6)


def randomised(path):
    """Return a light model without its softmax, whose weights are inputs, and random arrays for them.

    The arrays repeat a million random numbers, because drawing the 143 million of VGG-19 takes longer than running it.
    """
    model, random = onnx.load(path), np.random.default_rng(0)
    pool = random.standard_normal(1_000_003, np.float32)
    shapes = {tensor.name: tuple(map(int, numpy_helper.to_array(tensor))) for tensor in model.graph.initializer
              if tensor.data_type == onnx.TensorProto.INT64}
    weights, nodes = {}, list(model.graph.node)
    if nodes[-1].op_type == "Softmax":  # of many logits it keeps only the largest
        model.graph.output[0].name = nodes.pop().input[0]
    for node in [node for node in nodes if node.op_type == "ConstantOfShape"]:
        nodes.remove(node)
        shape = shapes[node.input[0]]
        values = np.resize(pool, shape)
        # Vectors are scales and variances too: positive, about 1.
        weights[node.output[0]] = values * np.float32((2 / np.prod(shape[1:])) ** 0.5) if len(shape) > 1 else (
            np.abs(values) * np.float32(0.3) + np.float32(0.7))
        model.graph.input.append(helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, shape))
    used = {name for node in nodes for name in node.input}
    for entries in (model.graph.initializer, model.graph.input):
        for entry in [entry for entry in entries if entry.name not in used]:
            entries.remove(entry)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    initial = {tensor.name for tensor in model.graph.initializer}
    (image,) = [entry for entry in model.graph.input if entry.name not in {*weights, *initial}]
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    return model.SerializeToString(), {image.name: random.standard_normal(shape, np.float32), **weights}


@pytest.mark.engine("torch")
@pytest.mark.parametrize("name", LIGHT)
def test_light_with_random_weights(name):
    model, arrays = randomised(LIGHT[name])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    (want,) = onnxruntime.InferenceSession(model, options).run(None, arrays)
    assert want.std() > 0.01 * np.abs(want).max(), "the outputs are all but constant and prove nothing"
    graph = porting.read_onnx(model)
    for backend in ("numpy", "torch"):
        (got,) = graph.run(arrays, backend=backend).values()
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
