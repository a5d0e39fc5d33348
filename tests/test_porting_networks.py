"""Whole networks: GoogLeNet and tiny YOLOv2, which need asymmetric pads, and two real models where they are there."""

import importlib.util
import pathlib

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

import engines  # noqa: E402
import porting_models  # noqa: E402

from pyflux_pad import Padding, porting  # noqa: E402

onnxruntime.set_default_logger_severity(3)

BACKENDS = ("numpy", "torch", "julia") if engines.status("julia").runs else ("numpy", "torch")


def reference(model, inputs):
    """Return ONNX Runtime's outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    return dict(zip([entry.name for entry in session.get_outputs()], session.run(None, inputs), strict=True))


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        assert found[name].shape == want.shape
        assert np.abs(found[name] - want).max() <= 1e-4 * np.abs(want).max(), name


def pools(graph):
    return [node.attributes["pads"].padding for node in graph.nodes if node.op == "MaxPool"]


@pytest.fixture(scope="module")
def googlenet():
    model = porting_models.googlenet().SerializeToString()
    return model, porting.read_onnx(model)


def test_googlenet_as_read(googlenet):
    graph = googlenet[1]
    assert [pad for pad in pools(graph) if not pad.is_symmetric] == [Padding(((0, 2), (0, 2)))] * 4
    assert [graph.value(node.outputs[0]).shape[2:] for node in graph.nodes
            if node.op == "MaxPool" and node.attributes["strides"] == (2, 2)] == [(56, 56), (28, 28), (14, 14), (7, 7)]
    assert sum(graph.arrays[name].size for name in graph.parameters) == 6_998_552


def test_googlenet_runs(googlenet):
    model, graph = googlenet
    inputs = {"image": np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)}
    wanted = reference(model, inputs)
    for backend in BACKENDS:
        assert_equal(graph.run(inputs, backend=backend), wanted)


def test_googlenet_without_its_pads_is_another_network(googlenet):
    """The test above can fail: Caffe's ceil mode read as symmetric pads has the same shapes and other values."""
    graph = googlenet[1]
    swapped = graph.replaced(nodes=tuple(
        porting.Node(node.name, node.op, node.inputs, node.outputs, {
            **node.attributes, "pads": porting.Pads.explicit(pair[::-1] for pair in node.attributes["pads"].padding)})
        if node.op == "MaxPool" else node for node in graph.nodes))  # fmt: skip
    inputs = {"image": np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)}
    (right,), (wrong,) = (g.run(inputs).values() for g in (graph, swapped))
    assert right.shape == wrong.shape
    assert np.abs(right - wrong).max() > 1e-3 * np.abs(right).max()


def test_tiny_yolov2():
    model = porting_models.tiny_yolov2().SerializeToString()
    graph = porting.read_onnx(model)
    assert sum(array.size for array in graph.arrays.values()) == 15_867_889
    none, end = Padding(((0, 0), (0, 0))), Padding(((0, 1), (0, 1)))
    assert pools(graph) == [none, none, none, none, none, end]
    assert graph.nodes[-1].attributes["pads"] == porting.Pads("valid", none)
    inputs = {"image": np.random.default_rng(1).uniform(0, 255, (1, 3, 416, 416)).astype(np.float32)}
    wanted = reference(model, inputs)
    assert [array.shape for array in wanted.values()] == [(1, 125, 13, 13)]
    for backend in BACKENDS:
        assert_equal(graph.run(inputs, backend=backend), wanted)
    folded = porting.fold_bn(graph)
    assert not any(node.op == "BatchNormalization" for node in folded.nodes)
    assert_equal(folded.run(inputs, backend="torch"), wanted)


def test_tiny_yolov2_is_the_same_with_open_sizes():
    """Sizes that are not known leave the rule in place; it is resolved when the model runs."""
    model = porting_models.tiny_yolov2(width=2, size=64)
    for axis, name in ((0, "batch"), (2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_param = f"{name}_out"
    data = model.SerializeToString()
    graph = porting.read_onnx(data)
    assert pools(graph) == [None] * 6
    assert graph.inputs[0].shape == ("batch", 3, "height", "width")
    x = np.random.default_rng(1).uniform(0, 255, (2, 3, 96, 64)).astype(np.float32)
    wanted = reference(data, {"image": x})
    for backend in BACKENDS:
        assert_equal(graph.run({"image": x}, backend=backend), wanted)
    fixed = porting.read_onnx(data, sizes={"batch": 2, "height": 96, "width": 64})
    assert pools(fixed)[-1] == Padding(((0, 1), (0, 1)))
    assert_equal(fixed.run({"image": x}), wanted)


# ---------------------------------------------------------------------------------------------------------- real models


def installed(package, path):
    """Return the path of a model that comes with a package, or skip."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed; pip install --no-deps {package.replace('_', '-')}")
    return pathlib.Path(next(iter(spec.submodule_search_locations))) / path


RATE, SAMPLES, TIMES, KEYS, LOWEST = 22050, 43844, 172, 88, 21


def tone(*keys):
    """Return a signal in which piano keys (MIDI numbers) sound with a few harmonics."""
    time = np.arange(SAMPLES) / RATE
    waves = [np.sin(2 * np.pi * 440 * 2 ** ((key - 69) / 12) * n * time) / n for key in keys for n in (1, 2, 3, 4)]
    signal = np.sum(waves, 0) / len(keys)
    return (0.3 * signal).astype(np.float32).reshape(1, SAMPLES, 1)


def in_float64(graph):
    """Return the graph with every weight and input in float64."""
    arrays = {name: array.astype(np.float64) if array.dtype == np.float32 else array
              for name, array in graph.arrays.items()}
    inputs = tuple(porting.Value(value.name, "float64", value.shape) for value in graph.inputs)
    return porting.Graph(graph.name, inputs, graph.outputs, graph.nodes, arrays)


@pytest.mark.parametrize("keys", [(69,), (60, 64, 67)], ids=("A4", "C major"))
def test_basic_pitch_hears_the_notes(keys):
    """Notes are right, and every engine is as near to the result in float64 as ONNX Runtime is.

    The model takes logarithms of the power in silent bands, which are rounding errors: two right answers in float32
    may lie further apart than 1e-4.
    """
    path = installed("basic_pitch", "saved_models/icassp_2022/nmp.onnx")
    graph = porting.read_onnx(path)
    inputs = {graph.inputs[0].name: tone(*keys)}
    wanted = reference(path.read_bytes(), inputs)
    exact = in_float64(graph).run({name: array.astype(np.float64) for name, array in inputs.items()})
    for backend in BACKENDS:
        found = graph.run(inputs, backend=backend)
        for name, want in wanted.items():
            error, theirs = (np.abs(array - exact[name]).max() for array in (found[name], want))
            assert error <= max(1e-4 * np.abs(want).max(), 1.5 * theirs), name
        notes = found["StatefulPartitionedCall:1"]
        assert notes.shape == (1, TIMES, KEYS)
        heard = np.argsort(notes[0].mean(0))[-len(keys):] + LOWEST
        assert sorted(heard) == sorted(keys)


def test_rapidocr_classifies_the_direction():
    path = installed("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    graph = porting.read_onnx(path)
    (value,) = graph.inputs
    random = np.random.default_rng(0)
    for shape in ((1, 3, 48, 192), (2, 3, 48, 100)):
        inputs = {value.name: random.standard_normal(shape, np.float32)}
        wanted = reference(path.read_bytes(), inputs)
        for backend in BACKENDS:
            assert_equal(graph.run(inputs, backend=backend), wanted)
