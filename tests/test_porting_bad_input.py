"""What is wrong with a model is said before any work is done, with node, values and remedy; nothing is left behind."""

import os
import pathlib
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from porting_onnx import FLOAT, floats, ints, model, node, random  # noqa: E402

import pyflux_pad as pp  # noqa: E402
from pyflux_pad import porting  # noqa: E402
from pyflux_pad.porting import ModelError  # noqa: E402

X = {"x": (1, 3, 8, 8)}
WEIGHT = random(2, 3, 3, 3)
BYTES = WEIGHT.tobytes()


def small(**given):
    return model([node("Conv", "x w", pads=[0, 1, 2, 0], name="first")], X, arrays={"w": WEIGHT}, **given)


def refuses(match, source, **given):
    with pytest.raises(ModelError, match=match):
        porting.read_onnx(source if isinstance(source, bytes) else source.SerializeToString(), **given)


# ---------------------------------------------------------------------------------------------------------------- files


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"none\.onnx: there is no such file"):
        porting.read_onnx(tmp_path / "none.onnx")


def test_every_truncation_is_an_error():
    """Cut anywhere: protocol buffers notice most cuts, the wiring of the graph the others."""
    whole = small().SerializeToString()
    porting.read_onnx(whole)
    for end in range(0, len(whole) - 1, 7):
        refuses("truncated|incomplete|corrupted|made by no node|no graph|contradict|opset", whole[:end])


def test_random_corruption_is_an_error_or_another_model():
    """Bytes changed, bits flipped and bytes dropped: nothing but ModelError may come of it."""
    nodes = [
        node("Conv", "x w", "a", pads=[2, 1, 0, 1]),
        node("MaxPool", "a", "b", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Shape", "b", "s"), node("Slice", "s i0 i1", "t"), node("Concat", "t m", "to", axis=0),
        node("Reshape", "b to", "r"), node("Gemm", "r g", "e", alpha=0.5), node("Softmax", "e", axis=1),
        node("Pad", "b p", "padded", mode="reflect"), node("Resize", "padded - scales", "z", mode="linear"),
        node("LSTM", "l lw lr", "lo", hidden_size=2),
    ]  # fmt: skip
    arrays = {"w": random(4, 3, 3, 3), "i0": ints(0), "i1": ints(1), "m": ints(-1), "g": random(64, 5),
              "p": ints(0, 0, 1, 0, 0, 0, 0, 2), "scales": floats(1, 1, 2, 2), "lw": random(1, 8, 3),
              "lr": random(1, 8, 2)}  # fmt: skip
    whole = model(nodes, {**X, "l": (4, 1, 3)}, ("y", "z", "lo"), arrays=arrays).SerializeToString()
    chance, refused = np.random.default_rng(0), 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.integers(1, 4)):
            place, kind = chance.integers(len(data)), chance.integers(3)
            if kind == 0:
                data[place] = chance.integers(256)
            elif kind == 1:
                data[place] ^= 1 << chance.integers(8)
            else:
                del data[place]
        try:
            porting.read_onnx(bytes(data))
        except ModelError:
            refused += 1
    assert 200 < refused < 480, "a good part of the bytes are weights, which may be anything"


def test_garbage():
    refuses("not an ONNX model, or truncated or corrupted", b"\xff" * 64)
    refuses("no graph with nodes and outputs in it", b"")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_never_loaded(protocol, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    refuses("a pickle or a torch checkpoint, which can run any code .* never is", pickle.dumps(Trap(), protocol))
    assert not (tmp_path / "sprung").exists()


def test_torch_checkpoints_are_never_loaded(tmp_path):
    path = tmp_path / "model.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    with pytest.raises(ModelError, match="a pickle or a torch checkpoint"):
        porting.read_onnx(path)


def test_a_file_over_two_gib_is_not_read(tmp_path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 + 8)  # sparse: it takes no room
    with pytest.raises(ModelError, match=r"2,147,483,656 bytes are more than the 2 GiB .* save_as_external_data=True"):
        porting.read_onnx(path)


@pytest.mark.parametrize("opset", [5, 99])
def test_unknown_opset(opset):
    newest = onnx.defs.onnx_opset_version()
    remedy = "install a newer onnx package" if opset == 99 else "convert it, onnx.version_converter"
    refuses(f"opset {opset} is outside 6 to {newest}; {remedy}", small(opset=opset))


def test_no_opset():
    proto = small()
    del proto.opset_import[:]
    refuses("does not say which opset it uses", proto)


@pytest.mark.parametrize(
    ("missing", "call", "message"),
    [
        ("onnx", "read_onnx(b'')", "read_onnx needs the package onnx; pip install 'pyflux-pad[onnx]'"),
        ("onnx", "write_onnx(graph, 'm.onnx')", "write_onnx needs the package onnx; pip install 'pyflux-pad[onnx]'"),
        ("torch", "read_torch(None, ())", "read_torch needs the package torch; pip install 'pyflux-pad[torch]'"),
        ("torch", "write_torch(graph, 'm')", "write_torch needs torch and safetensors; pip install 'pyflux-pad[torch"),
        ("safetensors", "write_torch(graph, 'm')", "write_torch needs torch and safetensors"),
    ],
)
def test_missing_packages_are_named_with_the_extra(missing, call, message, tmp_path):
    code = (f"import sys; sys.modules[{missing!r}] = None\n"
            "import pyflux_pad.cli\n"
            "from pyflux_pad.porting import *\n"
            "graph = Graph('g', (Value('x'),), (Value('y'),), (Node('r', 'Relu', ('x',), ('y',)),), {})\n"
            f"try: {call}\n"
            "except ModelError as error: print(error)")
    path = pathlib.Path(pp.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          check=False, env={**os.environ, "PYTHONPATH": str(path)})  # fmt: skip
    assert done.stdout.startswith(message), done.stderr
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------- external data


def external(tmp_path, location="weights.bin", offset=0, length: int | None = 216, data=BYTES):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(data)
    (tmp_path / "secret.bin").write_bytes(data)
    proto = small()
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("length", [None, len(BYTES)])
def test_external_data_beside_the_model(tmp_path, length):
    graph = porting.read_onnx(external(tmp_path, offset=4, length=length, data=b"1234" + BYTES))
    np.testing.assert_array_equal(graph.arrays["w"], WEIGHT)


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "{parent}/secret.bin", ""])
def test_external_data_outside_the_folder(tmp_path, location):
    path = external(tmp_path, location.format(parent=tmp_path))
    with pytest.raises(ModelError, match=r"array 'w': its external data '.*' points outside the model's folder"):
        porting.read_onnx(path)


def test_external_data_behind_a_link(tmp_path):
    path = external(tmp_path, "link.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="points outside the model's folder"):
        porting.read_onnx(path)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"length": 2**40}, "needs 216 bytes at 0, but its entry says 1,099,511,627,776 and the file .* has 216"),
        ({"length": 215}, "needs 216 bytes at 0, but its entry says 215"),
        ({"offset": 1}, "needs 216 bytes at 1, .* the file 'weights.bin' has 216"),
        ({"offset": -8}, "needs 216 bytes at -8"),
        ({"offset": "many"}, "offset, length or shape of its external data are no sizes"),
        ({"location": "none.bin"}, "its external file 'none.bin' is not beside the model"),
    ],
)
def test_external_data_of_a_wrong_size(tmp_path, given, match):
    with pytest.raises(ModelError, match=match):
        porting.read_onnx(external(tmp_path, **given))


def test_external_data_of_a_huge_shape(tmp_path):
    path = external(tmp_path, length=None)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[0] = 2**40
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="needs 118,747,255,799,808 bytes"):
        porting.read_onnx(path)


def test_external_data_of_bytes(tmp_path):
    refuses("read the model from its path, not from bytes", external(tmp_path).read_bytes())


# --------------------------------------------------------------------------------------------------------------- graphs


def test_cycle():
    nodes = [node("Add", "x b", "a", name="one"), node("Relu", "a", "b", name="two"), node("Relu", "x", name="three")]
    refuses(r"the graph has a cycle through node 'one' \(Add, opset 13\), node 'two' \(Relu, opset 13\)",
            model(nodes, X))  # fmt: skip


def test_nodes_in_another_order_are_sorted():
    nodes = [node("Relu", "b", name="last"), node("Neg", "a", "b", name="middle"), node("Abs", "x", "a", name="first")]
    graph = porting.read_onnx(model(nodes, X).SerializeToString())
    assert [entry.name for entry in graph.nodes] == ["first", "middle", "last"]


def test_missing_initialiser():
    proto = small()
    del proto.graph.initializer[:]
    refuses(r"node 'first' \(Conv, opset 13\) reads 'w', which is no input, no array and no node's output", proto)


def test_corrupted_initialiser():
    proto = small()
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]
    refuses(r"array 'w': its data does not fit float32 of the shape \(2, 3, 3, 3\)", proto)


def test_two_of_a_name():
    refuses(r"node 'n2' \(Relu\) makes 'y', which node 'n1' \(Relu\) makes too",
            model([node("Relu", "x", name="n1"), node("Relu", "x", name="n2")], X))  # fmt: skip
    proto = small()
    proto.graph.initializer.append(proto.graph.initializer[0])
    refuses("two initialisers have the same name", proto)


def test_an_output_that_nothing_makes():
    refuses("the output 'z' is made by no node", model([node("Relu", "x")], X, ("y", "z")))


# ---------------------------------------------------------------------------------------------------- operators, dtypes


def test_unknown_operators_are_named_before_any_work():
    nodes = [node("Tile", "x r", "a", name="t"), node("Einsum", "a", "b", name="e", equation="ii"),
             helper.make_node("Swish", ["b"], ["y"], name="s", domain="com.vendor")]  # fmt: skip
    refuses(r"operators that cannot be read: Tile \(node 't'\); Einsum \(node 'e'\); com\.vendor\.Swish \(node 's'\)\. "
            r"Known are Abs, Add, .*", model(nodes, X, arrays={"r": ints(1, 1, 1, 1)}))  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "opset", "match"),
    [
        (node("Conv", "x", name="c"), 13, r"node 'c' \(Conv\) is not as ONNX defines it"),
        (node("Conv", "x w", name="c", colour=1), 13, r"node 'c' \(Conv\) is not as ONNX defines it.*colour"),
        (node("Gelu", "x", name="g"), 13, r"node 'g' \(Gelu\) is not as ONNX defines it.*Gelu"),
        (node("Conv", "x w", name="c", pads=[1, 1]), 13, r"node 'c' .*pads=\(1, 1\) must have 4 entries"),
        (node("Conv", "x w", name="c", strides=[1]), 13, r"node 'c' .*strides=\(1,\) does not fit the kernel \(3, 3\)"),
        (node("Conv", "x w", name="c", kernel_shape=[3, 2]), 13, r"kernel_shape=\(3, 2\), but the weight 'w' has"),
        (node("Conv", "x w", name="c", auto_pad="SAME"), 13, "auto_pad='SAME' is unknown; there are SAME_UPPER"),
        (node("Conv", "x w", name="c", auto_pad="VALID", pads=[1, 1, 1, 1]), 13, "exclude each other"),
        (node("BatchNormalization", "x b b b b", name="n"), 6, "it is in training mode; export the model"),
        (node("BatchNormalization", "x b b b b", name="n", spatial=0), 8, "spatial=0"),
        (node("Dropout", "x", name="d", is_test=0), 6, "is_test=0 drops at random"),
        (node("Pad", "x p", name="p", mode="mirror"), 13, r"mode='mirror' is no padding mode; there are constant"),
        (node("Resize", "x - s", name="r", mode="lanczos"), 13, "Resize with mode='lanczos' is not carried"),
        (node("LSTM", "x l l", name="l", direction="up", hidden_size=1), 13, "direction='up' is unknown"),
        (node("LSTM", "x l l", name="l", activations=["Sin"] * 3, hidden_size=1), 13, "activation 'Sin' is unknown"),
    ],
)  # fmt: skip
def test_bad_nodes(entry, opset, match):
    arrays = {"w": WEIGHT, "b": random(3), "p": ints(*[0] * 8), "s": floats(1, 1, 1, 1), "l": random(1, 4, 1)}
    used = {name: arrays[name] for name in entry.input if name in arrays}
    refuses(match, model([entry], X, arrays=used, opset=opset))


def test_dtypes():
    refuses(r"node 'c' \(Conv\): 'x' is float32, but 'w' is float64; they must have one dtype",
            model([node("Conv", "x w", name="c")], X, arrays={"w": WEIGHT.astype(float)}))  # fmt: skip
    refuses("'x' is STRING, which graphs do not carry; they carry bool, int8",
            model([node("Identity", "x")], {"x": (TensorProto.STRING, (2,))}))  # fmt: skip
    proto = small(listed=True)
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 7
    refuses("the initialiser 'w' is float32 2x3x3x3, but the input of that name is declared float32 7x3x3x3", proto)
    proto = small()
    proto.graph.initializer[0].data_type = 77
    refuses("array 'w' has the dtype number 77, which ONNX does not know", proto)


def test_sequences():
    proto = model([node("Identity", "x")], X)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    proto.graph.input[0].type.CopyFrom(kind)
    refuses("'x' is a sequence; graphs carry dense arrays only", proto)


def test_sparse():
    proto = small()
    dense = numpy_helper.from_array(floats(1), "v")
    sparse = helper.make_sparse_tensor(dense, numpy_helper.from_array(ints(0)), [4])
    proto.graph.sparse_initializer.append(sparse)
    refuses("sparse initialisers are not carried; make them dense", proto)


# --------------------------------------------------------------------------------------------------------------- inputs


def test_inputs_when_it_runs():
    graph = porting.read_onnx(model([node("Add", "x z", name="sum")], {"x": ("N", 3), "z": ("N", 3)})
                              .SerializeToString())  # fmt: skip
    x = random(2, 3)
    with pytest.raises(ModelError, match=r"the inputs are x: float32 Nx3, z: float32 Nx3; missing \['z'\]; unknown"):
        graph.run({"x": x, "w": x})
    with pytest.raises(TypeError, match="input 'z' must be float32, got float64; nothing is converted silently"):
        graph.run({"x": x, "z": x.astype(float)})
    with pytest.raises(ModelError, match="input 'z' must have the shape Nx3, got 5x3"):
        graph.run({"x": x, "z": random(5, 3)})
    with pytest.raises(TypeError, match=r"small: z is a builtins\.list; it must be an array of"):
        graph.run({"x": x, "z": x.tolist()})
    with pytest.raises(ValueError, match="backend='metal' is no backend"):
        graph.run({"x": x, "z": x}, backend="metal")


@pytest.mark.engine("torch")
def test_mixed_libraries():
    import torch

    graph = porting.read_onnx(model([node("Add", "x z")], {"x": (3,), "z": (3,)}).SerializeToString())
    with pytest.raises(TypeError, match=r"different libraries, \{'x': 'numpy', 'z': 'torch'\}; nothing is converted"):
        graph.run({"x": random(3), "z": torch.ones(3)})


def test_a_node_that_fails_is_named_with_its_shapes():
    graph = porting.read_onnx(model([node("Conv", "x w", name="wide")], {"x": (1, 3, "H", "W")}, arrays={"w": WEIGHT})
                              .SerializeToString())  # fmt: skip
    with pytest.raises(ModelError, match=r"node 'wide' \(Conv\) failed on inputs of the shapes 1x3x2x9, 2x3x3x3: conv: "
                                         r"no output on spatial axis 0"):  # fmt: skip
        graph.run({"x": random(1, 3, 2, 9)})


def test_sizes_that_are_not_open():
    refuses(r"sizes \['batch'\] are not open in this model; open are none", small(), sizes={"batch": 1})


def test_a_size_without_a_name_is_called_after_its_place():
    proto = small()
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert porting.read_onnx(proto.SerializeToString()).inputs[0].shape == ("x.0", 3, 8, 8)
    assert porting.read_onnx(proto.SerializeToString(), sizes={"x.0": 2}).inputs[0].shape == (2, 3, 8, 8)


# -------------------------------------------------------------------------------------------------------------- writing


@pytest.fixture
def graph():
    return porting.read_onnx(small().SerializeToString())


def test_nothing_is_overwritten_without_force(graph, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(ModelError, match=r"write_onnx: .*model\.onnx exists and is not overwritten; force it"):
        porting.write_onnx(graph, path)
    assert path.read_bytes() == b"precious"
    porting.write_onnx(graph, path, force=True)
    assert porting.read_onnx(path).nodes == graph.nodes
    with pytest.raises(ModelError, match="is a folder; name a file in it"):
        porting.write_onnx(graph, tmp_path, force=True)


@pytest.mark.parametrize("force", [False, True])
def test_a_failed_write_leaves_nothing(graph, tmp_path, monkeypatch, force):
    path = tmp_path / "model.onnx"
    if force:
        path.write_bytes(b"precious")

    def broken(graph, place):
        place.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyflux_pad.porting.onnx.write._write", broken)
    with pytest.raises(ModelError, match=r"model\.onnx cannot be written: No space left on device"):
        porting.write_onnx(graph, path, force=force)
    assert [entry.name for entry in tmp_path.iterdir()] == (["model.onnx"] if force else [])
    assert not force or path.read_bytes() == b"precious"


def test_a_folder_that_is_not_there(graph, tmp_path):
    with pytest.raises(ModelError, match="cannot be written: No such file or directory"):
        porting.write_onnx(graph, tmp_path / "none" / "model.onnx")


def test_what_onnx_cannot_say(graph, tmp_path):
    weight = np.ones((1, 1, 3), np.float32)
    value = porting.Value("x", "float32", (1, 1, 5))
    attributes = {"kernel_shape": (3,), "pads": porting.Pads.explicit([(-1, 0)]), "strides": (1,), "dilations": (1,),
                  "group": 1, "output_padding": None, "output_shape": None}  # fmt: skip
    crooked = porting.Graph("g", (value,), (porting.Value("y"),),
                            (porting.Node("t", "ConvTranspose", ("x", "w"), ("y",), attributes),), {"w": weight})
    with pytest.raises(ModelError, match=r"node 't' \(ConvTranspose\) adds cells at the low side, \(-1,0\)"):
        porting.write_onnx(crooked, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_model_over_two_gib_is_not_written(graph, tmp_path):
    huge = np.broadcast_to(np.zeros((), np.float32), (2**30, 3, 3, 3))
    with pytest.raises(ModelError, match=r"115,964,116,992 bytes of arrays are more than the 2 GiB"):
        porting.write_onnx(graph.replaced(arrays={"w": huge}), tmp_path / "model.onnx")


# --------------------------------------------------------------------------------------------------------------- record


def test_the_record_is_immutable(graph):
    with pytest.raises(AttributeError):
        graph.name = "other"
    with pytest.raises(TypeError):
        graph.arrays["w"] = WEIGHT
    with pytest.raises(ValueError, match="read-only"):
        graph.arrays["w"][0] = 0
    with pytest.raises(TypeError):
        graph.nodes[0].attributes["group"] = 2


def test_the_record_checks_its_wiring():
    relu = porting.Node("r", "Relu", ("x",), ("y",))
    x = (porting.Value("x", "float32", (1,)),)
    y = (porting.Value("y"),)
    with pytest.raises(ModelError, match=r"node 'r' \(Relu\) reads 'x', which nothing before it makes"):
        porting.Graph("g", (), y, (relu,), {})
    with pytest.raises(ModelError, match="two nodes have the name 'r'"):
        porting.Graph("g", x, y, (relu, relu), {})
    with pytest.raises(ModelError, match="input 'x' has the name of an array"):
        porting.Graph("g", x, y, (relu,), {"x": np.ones(1)})


def test_the_record_prints_as_a_table(graph):
    assert str(graph).splitlines() == [
        "small",
        "input   x: float32 1x3x8x8",
        "",
        "name   op    shape    pads         parameters",
        "-----  ----  -------  -----------  ----------",
        "first  Conv  1x2x8x7  (0,2) (1,0)  54",
        "",
        "output  y: float32 1x2x8x7",
        "1 nodes, 54 parameters, 1 arrays of 0.0 MiB",
    ]
    assert graph.nodes[0].pads == porting.Pads("explicit", pp.Padding(((0, 2), (1, 0))))
