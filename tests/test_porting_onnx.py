"""Reading ONNX: rules become pads by ONNX's own arithmetic, old opsets the newest one, a Pad part of what follows."""

import itertools
import weakref

import numpy as np
import pytest

pytest.importorskip("onnx")

from porting_onnx import FLOAT, floats, ints, model, node, random

import pyflux_pad as pp
from pyflux_pad import porting

BACKENDS = ("numpy", pytest.param("torch", marks=pytest.mark.engine("torch")))


def read(*args, sizes=None, **given):
    return porting.read_onnx(model(*args, **given).SerializeToString(), sizes=sizes)


def ops(graph):
    return [entry.op for entry in graph.nodes]


def pads(graph, place=-1):
    return graph.nodes[place].attributes["pads"]


def run(graph, backend="numpy", **inputs):
    (y,) = graph.run(inputs, backend=backend).values()
    return y


# ---------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rule", "dilation", "pairs"),
    [
        ("SAME_UPPER", 1, ((0, 1), (1, 2))),
        ("SAME_LOWER", 1, ((1, 0), (2, 1))),
        ("SAME_UPPER", 2, ((1, 2), (3, 3))),
        ("VALID", 1, ((0, 0), (0, 0))),
    ],
)
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_auto_pad_of_known_sizes(op, rule, dilation, pairs, backend):
    """The worked example of the reference: 8x9 input, kernel 3x4, stride 2. Values against a Pad and VALID."""
    x, w = random(2, 3, 8, 9), random(4, 3, 3, 4, seed=1)
    given = {"strides": [2, 2], "dilations": [dilation] * 2, "kernel_shape": [3, 4]}
    opset = 19 if op in ("AveragePool", "LpPool") else 13
    inputs = "x w" if op == "Conv" else "x"
    arrays = {"w": w} if op == "Conv" else {}
    graph = read([node(op, inputs, auto_pad=rule, **given)], {"x": x.shape}, arrays=arrays, opset=opset)
    assert pads(graph) == porting.Pads(rule.lower(), pp.Padding(pairs))
    fill = {"MaxPool": -np.inf}.get(op, 0)
    padded = np.pad(x, ((0, 0), (0, 0), *pairs), constant_values=fill)
    window = {"stride": 2, "dilation": dilation}
    if op == "Conv":
        want = pp.conv(padded, w, **window)
    elif op == "MaxPool":
        want = pp.max_pool(padded, (3, 4), **window)
    elif op == "LpPool":
        want = pp.lp_pool(padded, (3, 4), **window)
    else:  # the divisor counts cells of the input alone
        cells = np.pad(np.ones_like(x), ((0, 0), (0, 0), *pairs))
        want = pp.avg_pool(padded, (3, 4), **window) / pp.avg_pool(cells, (3, 4), **window)
    np.testing.assert_allclose(run(graph, backend, x=x), want, 1e-5, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_of_open_sizes_is_resolved_when_it_runs(op, rule, backend):
    w = random(2, 1, 2, 3)
    nodes = [node(op, "x w" if op == "Conv" else "x", auto_pad=rule, strides=[2, 3], kernel_shape=[2, 3])]
    arrays = {"w": w} if op == "Conv" else {}
    graph = read(nodes, {"x": (1, 1, "H", "W")}, arrays=arrays)
    assert pads(graph) == porting.Pads(rule.lower(), None)
    for size in ((5, 7), (6, 8), (9, 9)):
        x = random(1, 1, *size)
        fixed = read(nodes, {"x": (1, 1, "H", "W")}, arrays=arrays, sizes={"H": size[0], "W": size[1]})
        assert pads(fixed).padding == pp.Padding.same(f"onnx_{rule[5:].lower()}", size, (2, 3), (2, 3))
        np.testing.assert_allclose(run(graph, backend, x=x), run(fixed, "numpy", x=x), 1e-6, 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("given", "size", "crops"),
    [
        ({"auto_pad": "SAME_UPPER"}, (16, 18), ((0, 1), (1, 1))),
        ({"auto_pad": "SAME_LOWER"}, (16, 18), ((1, 0), (1, 1))),
        ({"pads": [1, 0, 2, 3]}, (14, 17), ((1, 2), (0, 3))),
        ({"pads": [1, 1, 1, 1], "output_padding": [1, 0]}, (16, 18), ((1, 0), (1, 1))),
        ({"output_shape": [16, 17]}, (16, 17), ((1, 0), (2, 1))),
        ({"output_shape": [16, 17], "auto_pad": "SAME_UPPER"}, (16, 17), ((0, 1), (1, 2))),
        ({"output_shape": [18, 21]}, (18, 21), ((0, -1), (0, -1))),
    ],
)
def test_transposed_convolutions_have_one_neutral_form(given, size, crops, backend):
    """8x9, kernel 3x4, stride 2: the full result has 17x20 cells; everything that fixes the size becomes its crops."""
    x, w = random(1, 2, 8, 9), random(2, 3, 3, 4, seed=1)
    nodes = [node("ConvTranspose", "x w", strides=[2, 2], **given)]
    graph = read(nodes, {"x": x.shape}, arrays={"w": w})
    assert pads(graph).padding == pp.Padding(crops)
    assert graph.nodes[0].attributes["output_padding"] is None
    full = np.pad(pp.conv_transpose(x, w, stride=2), ((0, 0), (0, 0), (0, 2), (0, 2)))
    (top, _), (left, _) = crops
    want = full[:, :, top : top + size[0], left : left + size[1]]
    np.testing.assert_allclose(run(graph, backend, x=x), want, 1e-5, 1e-5)
    open_graph = read(nodes, {"x": (1, 2, "H", "W")}, arrays={"w": w})
    np.testing.assert_allclose(run(open_graph, backend, x=x), want, 1e-5, 1e-5)


def test_same_of_a_transposed_convolution_with_a_small_kernel_fills_up_with_zeros():
    x = random(1, 1, 4)
    graph = read([node("ConvTranspose", "x w", strides=[3], auto_pad="SAME_UPPER")], {"x": x.shape},
                 arrays={"w": np.ones((1, 1, 1), np.float32)})  # fmt: skip
    y = run(graph, x=x)
    np.testing.assert_array_equal(y[0, 0].reshape(4, 3), np.stack([x[0, 0], 0 * x[0, 0], 0 * x[0, 0]], 1))


# ---------------------------------------------------------------------------------------------------------- old opsets


X = random(2, 3, 4, 5)
SLOPE, VECTOR = random(3, seed=1), random(4, seed=2)


def softmax(x, axes):
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


OLD = {
    "Add along an axis": (node("Add", "x a", broadcast=1, axis=1), 6, {"a": SLOPE}, X + SLOPE[:, None, None]),
    "Mul along an inner axis": (node("Mul", "x a", broadcast=1, axis=2), 6, {"a": VECTOR}, X * VECTOR[:, None]),
    "Sub of two axes": (node("Sub", "x a", broadcast=1, axis=1), 6, {"a": random(3, 4)}, X - random(3, 4)[:, :, None]),
    "Div at the end": (node("Div", "x a", broadcast=1), 6, {"a": X[0, 0, 0] + 9}, X / (X[0, 0, 0] + 9)),
    "PRelu per channel": (
        node("PRelu", "x a"), 6, {"a": SLOPE}, np.where(X < 0, X * SLOPE[:, None, None], X)),
    "Clip with attributes": (node("Clip", "x", min=-0.5, max=0.25), 6, {}, X.clip(-0.5, 0.25)),
    "Clip with one limit": (node("Clip", "x", max=0.25), 6, {}, X.clip(None, 0.25)),
    "Slice with attributes": (
        node("Slice", "x", starts=[1, -3], ends=[9, -1], axes=[1, 3]), 9, {}, X[:, 1:, :, -3:-1]),
    "Unsqueeze with attributes": (node("Unsqueeze", "x", axes=[0, 5]), 11, {}, X[None, ..., None]),
    "ReduceSum with attributes": (node("ReduceSum", "x", axes=[1, -1], keepdims=0), 11, {}, X.sum((1, 3))),
    "ReduceMean with attributes": (node("ReduceMean", "x", axes=[2]), 13, {}, X.mean(2, keepdims=True)),
    "Pad with attributes": (
        node("Pad", "x", pads=[0, 1, 0, 2, 0, 0, 3, 0], value=1.5), 10, {},
        np.pad(X, ((0, 0), (1, 0), (0, 3), (2, 0)), constant_values=1.5)),
    "Upsample with attributes": (node("Upsample", "x", scales=[1.0, 1, 2, 3]), 7, {}, X.repeat(2, 2).repeat(3, 3)),
    "Upsample with an input": (
        node("Upsample", "x s"), 9, {"s": floats(1, 1, 2, 1)}, X.repeat(2, 2)),
    "Resize with two inputs": (node("Resize", "x s"), 10, {"s": floats(1, 1, 1, 2)}, X.repeat(2, 3)),
    "Upsample, linear": (
        node("Upsample", "x s", mode="linear"), 9, {"s": floats(1, 1, 2, 1)},
        (X.repeat(2, 2) + np.concatenate([X[:, :, i : i + 1] for i in (0, 1, 1, 2, 2, 3, 3, 3)], 2)) / 2),
    "Softmax over all that follows": (node("Softmax", "x"), 11, {}, softmax(X, (1, 2, 3))),
    "LogSoftmax from an axis on": (node("LogSoftmax", "x", axis=2), 11, {}, np.log(softmax(X, (2, 3)))),
    "Dropout when tested": (node("Dropout", "x", is_test=1, ratio=0.4), 6, {}, X),
    "BatchNormalization when tested": (
        node("BatchNormalization", "x a b c d", is_test=1, epsilon=0.1), 6,
        {"a": SLOPE, "b": SLOPE + 1, "c": SLOPE - 1, "d": SLOPE**2},
        (X - (SLOPE - 1)[:, None, None]) / np.sqrt(SLOPE**2 + 0.1)[:, None, None] * SLOPE[:, None, None]
        + (SLOPE + 1)[:, None, None]),
    "GroupNormalization per group": (
        node("GroupNormalization", "x a b", num_groups=1), 18, {"a": floats(2), "b": floats(1)},
        2 * (X - X.mean((1, 2, 3), keepdims=True)) / np.sqrt(X.var((1, 2, 3), keepdims=True) + 1e-5) + 1),
    "ImageScaler": (
        node("ImageScaler", "x", scale=0.5, bias=[1.0, 2.0, 3.0]), 8, {},
        X * 0.5 + floats(1, 2, 3)[:, None, None]),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OLD)
def test_old_opsets(name, backend):
    entry, opset, arrays, want = OLD[name]
    graph = read([entry], {"x": X.shape}, arrays=arrays, opset=opset, listed=opset < 9)
    assert [value.name for value in graph.inputs] == ["x"], "initialisers are no inputs"
    np.testing.assert_allclose(run(graph, backend, x=X), want, 1e-5, 1e-5)


def test_split_and_squeeze_with_attributes():
    graph = read([node("Split", "x", "p q", axis=1, split=[1, 2]), node("Squeeze", "p", "r", axes=[1])],
                 {"x": X.shape}, ("q", "r"), opset=11)  # fmt: skip
    found = graph.run({"x": X})
    np.testing.assert_array_equal(found["q"], X[:, 1:])
    np.testing.assert_array_equal(found["r"], X[:, 0])


def test_old_meanings_become_new_operators():
    assert ops(read([OLD["ImageScaler"][0]], {"x": X.shape}, opset=8)) == ["Mul", "Add"]
    assert ops(read([OLD["Upsample with attributes"][0]], {"x": X.shape}, opset=7)) == ["Resize"]
    assert ops(read([OLD["Softmax over all that follows"][0]], {"x": X.shape}, opset=11)) == [
        "Flatten", "Softmax", "Reshape"]  # fmt: skip
    flat = read([node("Softmax", "x")], {"x": (2, 3, 1, 1)}, opset=11)
    assert (ops(flat), flat.nodes[0].attributes["axis"]) == (["Softmax"], 1)


# ------------------------------------------------------------------------------------------------------------- folding


def test_pads_computed_from_constants_are_resolved():
    """How torch's exporter writes F.pad: a chain of shape arithmetic that ends in the pads."""
    nodes = [
        node("Constant", "", "half", value_ints=[0, 2, 1, 0]),
        node("ConstantOfShape", "four", "zeros", value=_tensor(ints(0))),
        node("Concat", "half zeros", "flat", axis=0),
        node("Reshape", "flat columns", "pairs"),
        node("Transpose", "pairs", "rows", perm=[1, 0]),
        node("Slice", "rows first last", "swapped"),
        node("Reshape", "rows all", "pads"),
        node("Pad", "x pads"),
    ]
    arrays = {"four": ints(4), "columns": ints(-1, 2), "all": ints(-1), "first": ints(0),
              "last": ints(9)}  # fmt: skip
    graph = read(nodes, {"x": (1, 1, 3, 4)}, arrays=arrays)
    assert ops(graph) == ["Pad"]
    assert graph.nodes[0].inputs == ("x",)
    assert pads(graph).padding == pp.Padding(((0, 2), (1, 0), (0, 0), (0, 0)))


def _tensor(array):
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pads_that_are_an_input_are_read_when_it_runs(backend):
    graph = read([node("Pad", "x pads")], {"x": (1, 2, 3), "pads": (7, (6,))})
    assert pads(graph) == porting.Pads("computed", None)
    x = random(1, 2, 3)
    y = run(graph, backend, x=x, pads=ints(0, 0, 2, 0, 1, 1))
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (0, 1), (2, 1))))


def test_shapes_that_are_known_are_constants():
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Concat", "n rest", "to", axis=0),
             node("Reshape", "x to")]  # fmt: skip
    arrays = {"zero": ints(0), "rest": ints(-1)}
    assert ops(read(nodes, {"x": (2, 3, 4)}, arrays=arrays)) == ["Reshape"]
    open_graph = read(nodes, {"x": ("N", 3, 4)}, arrays=arrays)
    assert ops(open_graph) == ["Shape", "Gather", "Concat", "Reshape"]
    assert run(open_graph, x=random(5, 3, 4)).shape == (5, 12)


def test_weights_behind_a_view_are_still_trained():
    nodes = [node("Unsqueeze", "w axes", "v"), node("Mul", "x v")]
    graph = read(nodes, {"x": (1, 3, 4, 4)}, arrays={"w": random(3), "axes": ints(1, 2)})
    assert graph.parameters == {"w"}
    assert ops(graph) == ["Unsqueeze", "Mul"]
    assert read([node("Mul", "x s")], {"x": (3,)}, arrays={"s": floats(2)}).parameters == set()


# --------------------------------------------------------------------------------------------------------------- fusing


def pad_then(second, amounts, value=None, arrays=None, more=(), opset=19):
    settings = {"p": ints(*amounts)} | ({} if value is None else {"v": np.float32(value)})
    return read([node("Pad", "x p v" if value is not None else "x p", "padded"), second, *more], {"x": (2, 3, 9, 8)},
                ("y", *(entry.output[0] for entry in more)), arrays={**settings, **(arrays or {})}, opset=opset)


WEIGHT = random(4, 3, 3, 2)
FUSED = {
    "zeros into a convolution": (
        node("Conv", "padded w", pads=[1, 0, 0, 2], strides=[2, 2]), [0, 0, 0, 1, 0, 0, 2, 0], None,
        ((1, 2), (1, 2)), {}),
    "crops into a convolution": (
        node("Conv", "padded w", pads=[0, 1, 0, 1]), [0, 0, -1, 0, 0, 0, -2, 3], None, ((-1, -2), (1, 4)), {}),
    "-inf into a maximum": (
        node("MaxPool", "padded", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), [0, 0, 0, 1, 0, 0, 2, 0], -np.inf,
        ((1, 3), (2, 1)), {}),
    "counted zeros into an average": (
        node("AveragePool", "padded", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        [0, 0, 0, 1, 0, 0, 2, 0], None, ((1, 3), (2, 1)), {"count_include_pad": 1}),
    "zeros into an average without pads": (
        node("AveragePool", "padded", kernel_shape=[3, 3]), [0, 0, 0, 1, 0, 0, 2, 0], None,
        ((0, 2), (1, 0)), {"count_include_pad": 1}),
}  # fmt: skip
LEFT = {
    "zeros before a maximum": (node("MaxPool", "padded", kernel_shape=[3, 3]), [0, 0, 0, 1, 0, 0, 2, 0], None),
    "ones before a convolution": (node("Conv", "padded w"), [0, 0, 0, 1, 0, 0, 2, 0], 1),
    "channels": (node("MaxPool", "padded", kernel_shape=[3, 3]), [0, 1, 0, 1, 0, 0, 2, 0], -np.inf),
    "ceil mode": (
        node("MaxPool", "padded", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1), [0, 0, 0, 0, 0, 0, 3, 3], -np.inf),
    "an average that does not count its own pads": (
        node("AveragePool", "padded", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), [0, 0, 0, 1, 0, 0, 2, 0], None),
    "a crop before a pad": (node("Conv", "padded w", pads=[1, 0, 0, 0]), [0, 0, -1, 0, 0, 0, 0, 0], None),
    "indices": (node("MaxPool", "padded", "y i", kernel_shape=[3, 3]), [0, 0, 0, 1, 0, 0, 2, 0], -np.inf),
}  # fmt: skip


def unfused(monkeypatch, *args, **given):
    """Return the same graph with its Pad left in place."""
    from pyflux_pad.porting import fusing

    with monkeypatch.context() as patch:
        patch.setattr(fusing, "_fused", lambda pad, node: None)
        return pad_then(*args, **given)


@pytest.mark.parametrize("name", FUSED)
def test_pad_is_fused(name, monkeypatch):
    second, amounts, value, pairs, changes = FUSED[name]
    arrays = {"w": WEIGHT} if second.op_type == "Conv" else {}
    graph, apart = pad_then(second, amounts, value, arrays), unfused(monkeypatch, second, amounts, value, arrays)
    assert (ops(graph), ops(apart)) == ([second.op_type], ["Pad", second.op_type])
    assert pads(graph) == porting.Pads.explicit(pairs)
    assert {key: graph.nodes[0].attributes[key] for key in changes} == changes
    x = random(2, 3, 9, 8)
    np.testing.assert_allclose(run(graph, x=x), run(apart, x=x), 1e-5, 1e-5)


@pytest.mark.parametrize("name", LEFT)
def test_pad_is_left_where_it_would_change_the_result(name):
    second, amounts, value = LEFT[name]
    arrays = {"w": WEIGHT} if second.op_type == "Conv" else {}
    assert ops(pad_then(second, amounts, value, arrays)) == ["Pad", second.op_type]


def test_pad_stays_for_others():
    graph = pad_then(node("Conv", "padded w"), [0, 0, 0, 1, 0, 0, 2, 0], arrays={"w": WEIGHT},
                     more=[node("Relu", "padded", "z")])  # fmt: skip
    assert ops(graph) == ["Pad", "Conv", "Relu"]
    assert graph.nodes[1].inputs[0] == "x"


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("op", "bias"), list(itertools.product(["Conv", "ConvTranspose"], [False, True])))
def test_fold_bn(op, bias, group):
    shape = (6, 4 // group, 3, 3) if op == "Conv" else (4, 6 // group, 3, 3)
    arrays = {"w": random(*shape), "b": random(6, seed=1), "scale": random(6, seed=2), "shift": random(6, seed=3),
              "mean": random(6, seed=4), "var": np.abs(random(6, seed=5)) + 0.1}  # fmt: skip
    nodes = [node(op, "x w b" if bias else "x w", "c", group=group, pads=[0, 1, 1, 0]),
             node("BatchNormalization", "c scale shift mean var", epsilon=1e-3)]  # fmt: skip
    graph = read(nodes, {"x": (2, 4, 5, 6)}, arrays=arrays, opset=15)
    folded = porting.fold_bn(graph)
    assert ops(folded) == [op]
    assert folded.parameters == {"w", "b" if bias else "w.bias"}
    x = random(2, 4, 5, 6)
    np.testing.assert_allclose(run(folded, x=x), run(graph, x=x), 1e-4, 1e-4)
    twice = read([*nodes, node("Relu", "c", "z")], {"x": (2, 4, 5, 6)}, ("y", "z"), arrays=arrays, opset=15)
    assert ops(porting.fold_bn(twice)) == ops(twice), "something else reads the convolution"


# ---------------------------------------------------------------------------------------------------------- round trips


def same(first, second):
    assert [(v.name, v.dtype, v.shape) for v in first.inputs] == [(v.name, v.dtype, v.shape) for v in second.inputs]
    assert [v.name for v in first.outputs] == [v.name for v in second.outputs]
    assert first.parameters == second.parameters
    assert first.arrays.keys() >= first.parameters
    for ours, theirs in zip(first.nodes, second.nodes, strict=True):
        assert (ours.name, ours.op, ours.inputs, ours.outputs) == (
            theirs.name, theirs.op, theirs.inputs, theirs.outputs)  # fmt: skip
        np.testing.assert_equal(dict(ours.attributes), dict(theirs.attributes))
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name])
        assert array.dtype == second.arrays[name].dtype


ROUND = {
    **{name: (entry, opset, arrays) for name, (entry, opset, arrays, _) in OLD.items()},
    "open rule": (node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2, 2]), 13, {"w": WEIGHT}),
    "negative pads": (None, 19, {}),
    "cast": (node("Cast", "x", to=11), 13, {}),
    "fill": (node("ConstantOfShape", "n", value=_tensor(np.array([3], np.float16))), 13, {"n": ints(2000)}),
}


@pytest.mark.parametrize("name", ROUND)
def test_round_trip(name, tmp_path):
    entry, opset, arrays = ROUND[name]
    if name == "negative pads":
        second, amounts, value, _, _ = FUSED["crops into a convolution"]
        graph = pad_then(second, amounts, value, {"w": WEIGHT})
    else:
        shape = (2, 3, "H", "W") if name == "open rule" else X.shape
        graph = read([entry], {"x": (FLOAT, shape)}, arrays=arrays, opset=opset)
    path = tmp_path / "model.onnx"
    porting.write_onnx(graph, path)
    same(graph, porting.read_onnx(path))


@pytest.mark.parametrize("rule", ["VALID", "SAME_UPPER", "SAME_LOWER"])
def test_rules_are_written_as_numbers(rule, tmp_path):
    graph = read([node("Conv", "x w", auto_pad=rule, strides=[2, 2])], {"x": (1, 3, 8, 9)}, arrays={"w": WEIGHT})
    porting.write_onnx(graph, tmp_path / "model.onnx")
    again = porting.read_onnx(tmp_path / "model.onnx")
    assert (pads(graph).rule, pads(again).rule) == (rule.lower(), "explicit")
    assert pads(graph).padding == pads(again).padding


def test_constants_in_the_place_of_weights_stay_constants(tmp_path):
    nodes = [node("Constant", "", "grid", value_floats=[1.0, 2.0, 3.0]), node("Add", "x grid", "z"),
             node("Mul", "z w")]  # fmt: skip
    graph = read(nodes, {"x": (3,)}, arrays={"w": random(3)})
    assert graph.parameters == {"w"}
    porting.write_onnx(graph, tmp_path / "model.onnx")
    same(graph, porting.read_onnx(tmp_path / "model.onnx"))


def test_weights_that_are_all_constants_are_trained():
    """Paddle's exporter has no initialisers."""
    nodes = [node("Constant", "", "w", value=_tensor(WEIGHT)), node("Conv", "x w")]
    assert read(nodes, {"x": (1, 3, 9, 9)}).parameters == {"w"}


# --------------------------------------------------------------------------------------------------- crops and biases


def sliced(op, starts, ends, axes, steps=None, more=()):
    shape = (4, 3, 3, 2) if op == "Conv" else (3, 4, 3, 2)
    window = node(op, "x w", "full", strides=[2, 1], pads=[2, 0, 1, 1])
    settings = {"s": ints(*starts), "e": ints(*ends), "a": ints(*axes)} | ({"t": ints(*steps)} if steps else {})
    return read([window, node("Slice", f"full {' '.join(settings)}"), *more], {"x": (1, 3, 9, 8)},
                ("y", *(entry.output[0] for entry in more)), arrays={"w": random(*shape), **settings})  # fmt: skip


@pytest.mark.parametrize(
    ("op", "starts", "ends", "pairs"),
    [
        ("Conv", (1,), (9,), ((0, 0), (0, 1))),
        ("Conv", (0, 2), (-1, -1), ((2, -2), (-2, 0))),
        ("Conv", (0,), (2**62,), ((2, 0), (0, 1))),
        ("ConvTranspose", (1,), (9,), ((3, 8), (0, 1))),
        ("ConvTranspose", (1, 0), (-2, -3), ((3, 3), (0, 4))),
    ],
)
def test_a_slice_of_a_convolution_becomes_its_pads(op, starts, ends, pairs):
    axes = (2, 3)[: len(starts)]
    graph = sliced(op, starts, ends, axes)
    assert ops(graph) == [op]
    assert pads(graph) == porting.Pads.explicit(pairs)
    x = random(1, 3, 9, 8)
    full = run(read([node(op, "x w", strides=[2, 1], pads=[2, 0, 1, 1])], {"x": x.shape},
                    arrays={"w": graph.arrays["w"]}), x=x)  # fmt: skip
    cells = [slice(None)] * 4
    for axis, start, end in zip(axes, starts, ends, strict=True):
        cells[axis] = slice(start, end)
    np.testing.assert_allclose(run(graph, x=x), full[tuple(cells)], 1e-5, 1e-5)


def test_a_slice_that_does_something_else_is_left():
    assert ops(sliced("Conv", (1,), (4,), (1,))) == ["Conv", "Slice"], "channels"
    assert ops(sliced("Conv", (0,), (4,), (2,), (2,))) == ["Conv", "Slice"], "steps"
    assert ops(sliced("Conv", (2,), (2,), (2,))) == ["Conv", "Slice"], "nothing left"
    assert ops(sliced("Conv", (1,), (4,), (2,), more=[node("Relu", "full", "z")])) == ["Conv", "Slice", "Relu"]


def test_a_vector_that_is_added_per_channel_becomes_the_bias():
    nodes = [node("Conv", "x w", "c"), node("Reshape", "b to", "r"), node("Add", "c r")]
    arrays = {"w": WEIGHT, "b": random(4), "to": ints(4, 1, 1)}
    graph = read(nodes, {"x": (1, 3, 9, 8)}, arrays=arrays)
    assert [(entry.op, entry.inputs, entry.outputs) for entry in graph.nodes] == [("Conv", ("x", "w", "b"), ("y",))]
    x = random(1, 3, 9, 8)
    np.testing.assert_allclose(run(graph, x=x), pp.conv(x, WEIGHT, arrays["b"]), 1e-5, 1e-5)
    wide = read(nodes, {"x": (1, 3, 9, 8)}, arrays={**arrays, "b": random(7), "to": ints(7)})
    assert ops(wide) == ["Conv", "Reshape", "Add"], "a vector over the columns"


# ------------------------------------------------------------------------------------------------------------- running


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_an_even_lrn_reaches_one_channel_further_up(size, backend):
    x = random(2, 5, 3, 4)
    graph = read([node("LRN", "x", size=size, alpha=0.5, beta=0.6, bias=2.0)], {"x": x.shape})
    want = np.empty_like(x)
    for channel in range(5):
        first, last = channel - (size - 1) // 2, channel + size // 2
        near = x[:, max(first, 0) : last + 1]
        want[:, channel] = x[:, channel] / (2 + 0.5 / size * (near**2).sum(1)) ** 0.6
    np.testing.assert_allclose(run(graph, backend, x=x), want, 1e-5, 1e-6)


def test_arrays_are_forgotten_after_their_last_use():
    """While a node runs only its inputs are alive: an observer counts what is left of what was made before."""
    chain = [node("Neg", "x" if step == 0 else f"a{step - 1}", f"a{step}") for step in range(6)]
    graph = read([*chain, node("Add", "a5 a1")], {"x": (3,)})
    made, alive = {}, []

    def observe(entry, arrays):
        alive.append([name for name, array in made.items() if array() is not None])
        made[entry.outputs[0]] = weakref.ref(arrays[0])

    graph.run({"x": random(3)}, observe=observe)
    assert alive == [[], ["a0"], ["a1"], ["a1", "a2"], ["a1", "a3"], ["a1", "a4"], ["a1", "a5"]]


def test_the_observer_sees_every_array():
    graph = read([node("Split", "x", "p q", axis=0), node("Sub", "q p")], {"x": (4,)})
    seen = {}
    graph.run({"x": np.arange(4, dtype=np.float32)},
              observe=lambda entry, arrays: seen.update(zip(entry.outputs, arrays, strict=True)))  # fmt: skip
    assert {name: array.tolist() for name, array in seen.items()} == {"p": [0, 1], "q": [2, 3], "y": [2, 2]}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("Softplus", lambda x: np.log1p(np.exp(x))),
        ("Elu", lambda x: np.where(x < 0, np.expm1(x), x)),
        ("Mish", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    ],
)
def test_activations_keep_their_digits_where_they_are_small(op, exact, backend):
    x = np.array([-80, -20, -5, -1e-4, 0, 1e-4, 5, 20, 80], np.float32)
    got = run(read([node(op, "x")], {"x": x.shape}, opset=18), backend, x=x)
    np.testing.assert_allclose(got, exact(x.astype(float)), 1e-5)
