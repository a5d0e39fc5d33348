"""ONNX's own conformance cases of the operators this package computes, on every engine, through a small adapter.

The cases come with the onnx package: single-node models with inputs and outputs. They never pad one side of an axis
explicitly more than the other; what they add is ONNX's reading of its attributes.
"""

import math
import re
import warnings

import numpy as np
import pytest

import pyflux_pad as pp

pytest.importorskip("onnx")

PREFIXES = ("basic_conv", "conv_with", "convtranspose", "averagepool", "maxpool", "lppool", "constant_pad", "edge_pad",
            "reflect_pad", "wrap_pad", "col2im", "globalaveragepool", "globalmaxpool")  # fmt: skip
AUTO_PAD = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}
MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def load():
    """Return the single-node cases by name, each with its node."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases of other operators divide by zero on purpose
        cases = load_model_tests(kind="node")
    wanted = re.compile("test_(" + "|".join(PREFIXES) + ")")
    found = {case.name: (case, case.model.graph.node) for case in cases if case.model and wanted.match(case.name)}
    return {name: (case, nodes[0]) for name, (case, nodes) in found.items() if len(nodes) == 1}


CASES = load()


def attributes(node):
    """Return a node's attributes as Python values, strings decoded."""
    from onnx.helper import get_attribute_value

    values = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def padding_of(given):
    """Return our padding for `auto_pad` and `pads`."""
    rule = given.get("auto_pad", "NOTSET")
    if rule != "NOTSET":
        return AUTO_PAD[rule]
    return pp.Padding.from_onnx(given["pads"]) if "pads" in given else 0


def window(given):
    """Return the arguments that convolutions and pools share; ONNX's strides default to 1."""
    return {"stride": given.get("strides", 1), "padding": padding_of(given), "dilation": given.get("dilations", 1)}


def conv(engine, given, x, weight, *bias):
    return engine(pp.conv, x, weight, *bias, groups=given.get("group", 1), **window(given))


def conv_transpose(engine, given, x, weight, *bias):
    options = window(given)
    if "output_shape" in given:
        # The padding follows from the shape; without a rule the odd cell is cropped at the start.
        rule = given.get("auto_pad", "NOTSET")
        options |= {"output_size": given["output_shape"], "padding": AUTO_PAD.get(rule, "same_lower")}
    return engine(pp.conv_transpose, x, weight, *bias, groups=given.get("group", 1),
                  output_padding=given.get("output_padding", 0), **options)  # fmt: skip


def max_pool(engine, given, x):
    options = {"ceil_mode": bool(given.get("ceil_mode", 0)), **window(given)}
    y = engine(pp.max_pool, x, kernel_size=given["kernel_shape"], **options)
    _, index = pp.max_pool(x, given["kernel_shape"], return_indices=True, **options)
    if given.get("storage_order", 0):  # the plane is counted column by column
        rows, columns = np.divmod(index, x.shape[3])
        index = rows + columns * x.shape[2]
    planes = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
    return y, index + planes * math.prod(x.shape[2:])  # ONNX counts through the whole tensor


def avg_pool(engine, given, x):
    return engine(pp.avg_pool, x, kernel_size=given["kernel_shape"], ceil_mode=bool(given.get("ceil_mode", 0)),
                  count_include_pad=bool(given.get("count_include_pad", 0)), **window(given))  # fmt: skip


def lp_pool(engine, given, x):
    return engine(pp.lp_pool, x, kernel_size=given["kernel_shape"], norm_type=given.get("p", 2), **window(given))


def pad(engine, given, x, pads, value=None, axes=None):
    axes = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    pairs = dict.fromkeys(range(x.ndim), (0, 0)) | dict(zip(axes, pp.Padding.from_onnx(pads), strict=True))
    assert pairs.pop(0) == pairs.pop(1) == (0, 0), "batch and channels are not padded here"
    fill = 0.0 if value is None or value.size == 0 else float(value)
    return engine(pp.pad, x, padding=tuple(pairs.values()), mode=MODES[given.get("mode", "constant")], value=fill)


def col2im(engine, given, x, image_shape, block_shape):
    return engine(pp.fold, x, output_size=tuple(image_shape), kernel_size=tuple(block_shape), **window(given))


def global_avg_pool(engine, given, x):
    return engine(pp.adaptive_avg_pool, x, output_size=1)


def global_max_pool(engine, given, x):
    return engine(pp.adaptive_max_pool, x, output_size=1)


ADAPTER = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": max_pool, "AveragePool": avg_pool, "LpPool": lp_pool,
    "Pad": pad, "Col2Im": col2im, "GlobalAveragePool": global_avg_pool, "GlobalMaxPool": global_max_pool,
}  # fmt: skip


def test_every_operator_has_cases():
    assert {node.op_type for _, node in CASES.values()} == set(ADAPTER)
    assert len(CASES) >= 75


@pytest.mark.parametrize("name", CASES)
def test_case(engine, name):
    case, node = CASES[name]
    assert case.data_sets, "the case has no data"
    for inputs, outputs in case.data_sets:
        found = ADAPTER[node.op_type](engine, attributes(node), *map(np.asarray, inputs))
        found = found if isinstance(found, tuple) else (found,)
        assert len(outputs) <= len(found)
        for ours, theirs in zip(found, outputs, strict=False):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, case.rtol, case.atol, err_msg=name)
