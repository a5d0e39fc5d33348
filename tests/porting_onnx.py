"""Small ONNX models for the porting tests, in one call."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def model(nodes, inputs, outputs=("y",), arrays=None, opset=13, ir_version=8, listed=False):
    """Return a model. `inputs` gives shapes, or (dtype, shape), by name; `listed` lists arrays among the inputs."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (arrays or {}).items()]
    described = []
    for name, given in inputs.items():
        dtype, shape = given if given and isinstance(given[-1], tuple) else (FLOAT, given)
        described.append(helper.make_tensor_value_info(name, dtype, shape))
    if listed:
        described += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in tensors]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "small", described, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def node(op, inputs, outputs="y", **attributes):
    """Return a node; names are separated by blanks, "-" is one that is left out."""
    read, made = (["" if name == "-" else name for name in text.split()] for text in (inputs, outputs))
    return helper.make_node(op, read, made, **attributes)


def ints(*values):
    """Return an int64 vector: sizes, axes and pads."""
    return np.array(values, np.int64)


def floats(*values):
    """Return a float32 vector."""
    return np.array(values, np.float32)


def random(*shape, seed=0, dtype=np.float32):
    """Return normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
