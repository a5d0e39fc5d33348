"""Random single operators with their own pads on every side, against ONNX Runtime.

ONNX's own cases never pad one side of an axis explicitly more than the other. ONNX Runtime's CPU kernels are right for
explicit pads and ceil mode; onnx's reference evaluator is not.
"""

import collections
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from porting_onnx import model, node  # noqa: E402

from pyflux_pad import porting  # noqa: E402

onnxruntime.set_default_logger_severity(3)
COUNT = 60
OPS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")


def draw(random, op):
    """Return a model of one node, its input, and what is special about it."""
    ndim = int(random.choice([1, 2, 2, 3]))
    pools = not op.startswith("Conv")
    kernel, stride = random.integers(1 + pools, 4, ndim), random.integers(1, 4, ndim)
    dilation = random.integers(1, 3, ndim) if op != "AveragePool" else np.ones(ndim, int)
    extent = dilation * (kernel - 1) + 1
    most = kernel if pools else np.minimum(extent, 3)  # ONNX Runtime wants a pool's pads smaller than its kernel
    low, high = random.integers(0, most), random.integers(0, most)
    size = random.integers(4, 8, ndim) + extent
    drawn: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": [*low, *high]}
    group = 1 if pools else int(random.choice([1, 2]))
    arrays = {}
    if not pools:
        drawn["group"] = group
        into, out = 2 * group, 3 * group
        shape = (out, into // group) if op == "Conv" else (into, out // group)
        arrays = {"w": random.standard_normal((*shape, *kernel), np.float32),
                  "b": random.standard_normal(out, np.float32)}  # fmt: skip
    else:
        into = 2
        drawn["ceil_mode"] = int(random.integers(2))
    if op == "AveragePool":
        drawn["count_include_pad"] = int(random.integers(2))
        del drawn["dilations"]
    if op == "ConvTranspose":
        drawn["output_padding"] = random.integers(0, stride)
    given: dict[str, Any] = {
        name: value if isinstance(value, int) else list(map(int, value)) for name, value in drawn.items()
    }
    x = random.standard_normal((2, into, *size), np.float32) - (2 if op == "MaxPool" else 0)  # padding must not win
    entry = node(op, " ".join(["x", *arrays]), **given)
    traits = {"lo != hi": bool((low != high).any()), "groups": group > 1, "dilation": bool((dilation > 1).any()),
              "ceil mode": bool(given.get("ceil_mode")), "stride > kernel": bool((stride > kernel).any()),
              "three axes": ndim == 3, "one axis": ndim == 1}  # fmt: skip
    return model([entry], {"x": x.shape}, arrays=arrays, opset=13).SerializeToString(), x, traits


@pytest.mark.engine("torch")
@pytest.mark.parametrize("op", OPS)
def test_random_nodes(op, record_property, tmp_path):
    random = np.random.default_rng(OPS.index(op))
    seen: collections.Counter[str] = collections.Counter()
    for number in range(COUNT):
        data, x, traits = draw(random, op)
        (want,) = onnxruntime.InferenceSession(data).run(None, {"x": x})
        graph = porting.read_onnx(data)
        for backend in ("numpy", "torch"):
            (got,) = graph.run({"x": x}, backend=backend).values()
            np.testing.assert_allclose(got, want, 1e-4, 1e-4, err_msg=f"{op} {number} on {backend}: {graph.nodes[0]}")
        porting.write_onnx(graph, tmp_path / "again.onnx", force=True)
        assert porting.read_onnx(tmp_path / "again.onnx").nodes == graph.nodes
        seen.update(name for name, holds in traits.items() if holds)
    record_property("coverage", f"random {op} nodes against ONNX Runtime: {COUNT}, of which {dict(seen)}")
    assert seen["lo != hi"] >= COUNT // 2
    assert min(seen[name] for name in ("stride > kernel", "three axes", "one axis")) >= 3
    assert seen["dilation"] >= 20 or op == "AveragePool"
    assert seen["groups" if op.startswith("Conv") else "ceil mode"] >= 15
