"""From a node of any opset to nodes of the neutral vocabulary: one small rewriting per thing that ONNX changed.

Where an old opset wrote axes, sizes or limits as attributes and a newer one as inputs, they become inputs; operators
that were withdrawn become those that took their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...padding import GeometryError, Padding
from ..graph import ModelError, Node, Pads, Value
from ..operators import OPERATORS

RULES = {"SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid", "NOTSET": "explicit", "": "explicit"}


@dataclass
class Raw:
    """A node as the file has it: attributes as Python values, opset as the file declares."""

    name: str
    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    opset: int

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.op}, opset {self.opset})"

    def input(self, place: int) -> str:
        """Return the name of an input, "" if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else ""


@dataclass
class Context:
    """What a rewriting may know and make besides its node."""

    values: Mapping[str, Value]
    arrays: dict[str, np.ndarray]
    names: set[str] = field(default_factory=set)

    def fresh(self, stem: str) -> str:
        """Return a name that nothing has yet."""
        name, number = stem, 1
        while name in self.names:
            number += 1
            name = f"{stem}_{number}"
        self.names.add(name)
        return name

    def constant(self, stem: str, values: Any, dtype: str = "int64") -> str:
        """Add a small array; return its name."""
        name = self.fresh(stem)
        self.arrays[name] = np.asarray(values, dtype)
        return name

    def shape(self, name: str) -> tuple[int | str, ...] | None:
        """Return the shape of an array, None if it is not known."""
        return self.arrays[name].shape if name in self.arrays else self.values.get(name, Value(name)).shape

    def rank(self, raw: Raw, name: str) -> int:
        """Return the number of axes."""
        shape = self.shape(name)
        if shape is None:
            raise ModelError(f"{raw}: the number of axes of {name!r} is not known, and this opset's meaning needs it")
        return len(shape)

    def dtype(self, name: str) -> str:
        """Return the dtype of an array; float32 where it is not known."""
        known = self.arrays[name].dtype.name if name in self.arrays else self.values.get(name, Value(name)).dtype
        return known or "float32"


Rewriting = Callable[[Raw, Context], Sequence[Raw] | None]
REWRITINGS: dict[str, Rewriting] = {}


def neutral(raw: Raw, context: Context) -> list[Node]:
    """Return the neutral nodes of a node; the last one makes its outputs."""
    rewrite = REWRITINGS.get(raw.op)
    try:
        done = (rewrite(raw, context) if rewrite else None) or [raw]
    except GeometryError as error:
        raise ModelError(f"{raw}: {error}") from None
    nodes = []
    for part in done:
        while part.inputs and not part.inputs[-1]:
            part.inputs.pop()
        while part.outputs and not part.outputs[-1]:
            part.outputs.pop()
        operator = OPERATORS[part.op]
        least, most = operator.inputs
        if not least <= len(part.inputs) <= most or "" in part.inputs[:least]:
            raise ModelError(f"{raw} has the inputs {part.inputs}; {part.op} takes {least} to {most}")
        attributes = operator.complete(str(raw), part.attributes)
        nodes.append(Node(part.name, part.op, tuple(part.inputs), tuple(part.outputs), attributes))
    return nodes


def _rewrites(*ops: str) -> Callable[[Rewriting], Rewriting]:
    def enter(rewriting: Rewriting) -> Rewriting:
        REWRITINGS.update(dict.fromkeys(ops, rewriting))
        return rewriting

    return enter


def _drop(raw: Raw, *names: str) -> None:
    for name in names:
        raw.attributes.pop(name, None)


def _refuse(raw: Raw, why: str) -> ModelError:
    return ModelError(f"{raw}: {why}")


def _to_input(raw: Raw, context: Context, attribute: str, place: int, dtype: str = "int64") -> None:
    """Turn an attribute into the input at a place."""
    value = raw.attributes.pop(attribute, None)
    if value is not None:
        raw.inputs += [""] * (place + 1 - len(raw.inputs))
        raw.inputs[place] = context.constant(f"{raw.name}.{attribute}", value, dtype)


def _before(raw: Raw, context: Context, op: str, place: int, *more: str, **attributes: Any) -> Raw:
    """Return a node that an input goes through first; `raw` then reads its output."""
    name = context.fresh(f"{raw.name}.{op}")
    before = Raw(name, op, [raw.inputs[place], *more], [name], attributes, raw.opset)
    raw.inputs[place] = name
    return before


def _after(raw: Raw, context: Context, op: str, *more: str, **attributes: Any) -> Raw:
    """Return a node that the first output goes through; it makes what `raw` made."""
    name = context.fresh(f"{raw.name}.{op}")
    after = Raw(name, op, [name, *more], [raw.outputs[0]], attributes, raw.opset)
    raw.outputs[0] = name
    return after


# ---------------------------------------------------------------------- windows


def _window(raw: Raw, kernel: Sequence[int]) -> None:
    """Fill in what convolutions and pools share; strides default to 1, pools' too."""
    given, ndim = raw.attributes, len(kernel)
    given["kernel_shape"] = tuple(kernel)
    for name in ("strides", "dilations"):
        given[name] = tuple(given.get(name) or (1,) * ndim)
        if len(given[name]) != ndim or min(given[name]) < 1:
            raise _refuse(raw, f"{name}={given[name]} does not fit the kernel {tuple(kernel)}")
    rule = given.pop("auto_pad", "NOTSET")
    if rule not in RULES:
        raise _refuse(raw, f"auto_pad={rule!r} is unknown; there are {', '.join(filter(None, RULES))}")
    flat = given.pop("pads", None)
    if RULES[rule] != "explicit" and flat is not None and any(flat):
        raise _refuse(raw, f"auto_pad={rule} and pads={flat} exclude each other")
    if RULES[rule] == "explicit":
        flat = flat or (0,) * (2 * ndim)
        if len(flat) != 2 * ndim:
            raise _refuse(raw, f"pads={tuple(flat)} must have {2 * ndim} entries for the kernel {tuple(kernel)}")
        given["pads"] = Pads("explicit", Padding.from_onnx(flat))
    elif rule == "VALID":
        given["pads"] = Pads("valid", Padding(((0, 0),) * ndim))
    else:
        given["pads"] = Pads(RULES[rule], None)


@_rewrites("Conv", "ConvTranspose")
def _convolution(raw: Raw, context: Context) -> None:
    shape = context.shape(raw.input(1))
    kernel = raw.attributes.get("kernel_shape")
    if shape is not None and all(isinstance(size, int) for size in shape[2:]):
        spatial = tuple(map(int, shape[2:]))
        if kernel is not None and tuple(kernel) != spatial:
            raise _refuse(raw, f"kernel_shape={tuple(kernel)}, but the weight {raw.input(1)!r} has {spatial}")
        kernel = spatial
    if kernel is None:
        raise _refuse(raw, f"the kernel size is not known: no kernel_shape, weight {raw.input(1)!r} of shape {shape}")
    _window(raw, kernel)
    if raw.op == "ConvTranspose":
        _transposed(raw, len(kernel))


def _transposed(raw: Raw, ndim: int) -> None:
    """Put everything that fixes the size of a transposed convolution into its pads."""
    given = raw.attributes
    extra = tuple(given.pop("output_padding", None) or (0,) * ndim)
    size = given.pop("output_shape", None)
    pads: Pads = given["pads"]
    if size is not None:
        # The total crop follows from the shape; only SAME_UPPER puts the odd cell at the end.
        rule = "output_shape_upper" if pads.rule == "same_upper" else "output_shape_lower"
        given |= {"pads": Pads(rule, None), "output_shape": tuple(size)[-ndim:], "output_padding": extra}
    elif pads.padding is None:
        given["output_padding"] = extra
    else:
        pairs = [(low, high - more) for (low, high), more in zip(pads.padding, extra, strict=True)]
        given["pads"] = Pads(pads.rule, Padding(tuple(pairs)))


@_rewrites("MaxPool", "AveragePool", "LpPool")
def _pool(raw: Raw, context: Context) -> None:
    kernel = raw.attributes.get("kernel_shape")
    if not kernel:
        raise _refuse(raw, "a pool needs kernel_shape")
    _window(raw, kernel)


@_rewrites("Pad")
def _pad(raw: Raw, context: Context) -> None:
    given = raw.attributes
    if raw.opset >= 11:
        given["pads"] = Pads("computed", None)
        return
    padding = Padding.from_onnx(given.pop("paddings", None) or given.pop("pads"))
    given |= {"pads": Pads("explicit", padding), "constant_value": float(given.pop("value", 0.0))}


# ---------------------------------------------------------------------- arithmetic


@_rewrites("Add", "Sub", "Mul", "Div", "Pow", "Equal")
def _limited_broadcasting(raw: Raw, context: Context) -> Sequence[Raw] | None:
    """Opset 6: the second operand lies at `axis` of the first, at its end if there is none."""
    _drop(raw, "consumed_inputs")
    broadcasts, axis = raw.attributes.pop("broadcast", 0), raw.attributes.pop("axis", None)
    if not broadcasts or axis is None:
        return None
    ours, theirs = (context.rank(raw, name) for name in raw.inputs)
    trailing = ours - axis % ours - theirs
    if trailing <= 0:
        return None
    axes = context.constant(f"{raw.name}.axes", range(theirs, theirs + trailing))
    return _before(raw, context, "Unsqueeze", 1, axes), raw


@_rewrites("PRelu")
def _prelu(raw: Raw, context: Context) -> Sequence[Raw] | None:
    """Opset 6: a vector of slopes has one per channel."""
    _drop(raw, "consumed_inputs")
    shape = context.shape(raw.input(1))
    if raw.opset >= 7 or shape is None or len(shape) != 1 or shape[0] == 1:
        return None
    ndim = context.rank(raw, raw.inputs[0])
    if ndim <= 2:
        return None
    return _before(raw, context, "Unsqueeze", 1, context.constant(f"{raw.name}.axes", range(1, ndim - 1))), raw


@_rewrites("Clip")
def _clip(raw: Raw, context: Context) -> None:
    _drop(raw, "consumed_inputs")
    dtype = context.dtype(raw.inputs[0])
    _to_input(raw, context, "min", 1, dtype)
    _to_input(raw, context, "max", 2, dtype)


@_rewrites(
    "Sum", "Mean", "Max", "Min", "Exp", "Log", "Sqrt", "Abs", "Neg", "Tanh", "Sigmoid", "Relu", "LeakyRelu", "Elu",
    "Selu", "HardSigmoid",
)  # fmt: skip
def _in_place(raw: Raw, context: Context) -> None:
    _drop(raw, "consumed_inputs")


@_rewrites("Cast")
def _cast(raw: Raw, context: Context) -> None:
    # Both tell of conversions to dtypes of 8 bits and less, which are not carried.
    _drop(raw, "saturate", "round_mode")


@_rewrites("ImageScaler")
def _image_scaler(raw: Raw, context: Context) -> Sequence[Raw]:
    dtype = context.dtype(raw.inputs[0])
    scale = context.constant(f"{raw.name}.scale", raw.attributes.get("scale", 1.0), dtype)
    bias = np.reshape(raw.attributes.get("bias", (0.0,)), (1, -1, 1, 1))
    multiply = Raw(raw.name, "Mul", [raw.inputs[0], scale], list(raw.outputs), {}, raw.opset)
    return multiply, _after(multiply, context, "Add", context.constant(f"{raw.name}.bias", bias, dtype))


@_rewrites("Gemm")
def _gemm(raw: Raw, context: Context) -> None:
    _drop(raw, "broadcast")  # opset 6 had to ask for what has since been the rule


# ---------------------------------------------------------------------- axes and sizes that were attributes


@_rewrites("Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
def _axes(raw: Raw, context: Context) -> None:
    _to_input(raw, context, "axes", 1)


@_rewrites("Slice")
def _slice(raw: Raw, context: Context) -> None:
    for place, name in enumerate(("starts", "ends", "axes"), 1):
        _to_input(raw, context, name, place)


@_rewrites("Split")
def _split(raw: Raw, context: Context) -> None:
    _to_input(raw, context, "split", 1)
    if not raw.input(1):
        raw.attributes.setdefault("num_outputs", len(raw.outputs))


@_rewrites("Dropout")
def _dropout(raw: Raw, context: Context) -> None:
    if raw.attributes.pop("is_test", 1) == 0 and raw.opset < 7:
        raise _refuse(raw, "is_test=0 drops at random; export the model for inference")
    _drop(raw, "seed", "consumed_inputs", "ratio")


@_rewrites("Constant")
def _constant(raw: Raw, context: Context) -> None:
    (name, value), *others = raw.attributes.items()
    if others or name not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        raise _refuse(raw, f"a Constant of the kind {', '.join(raw.attributes)} is not carried")
    dtype = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}.get(name)
    raw.attributes = {"value": value if dtype is None else np.asarray(value, dtype)}


# ---------------------------------------------------------------------- normalisation, softmax


@_rewrites("BatchNormalization")
def _batch_normalization(raw: Raw, context: Context) -> None:
    if raw.attributes.pop("spatial", 1) == 0:
        raise _refuse(raw, "spatial=0 (statistics for every cell) is not carried; export with spatial=1")
    trains = raw.opset < 7 and raw.attributes.pop("is_test", 0) == 0
    if raw.opset < 14 and (trains or any(raw.outputs[1:])):
        raise _refuse(raw, "it is in training mode; export the model for inference")
    _drop(raw, "consumed_inputs", "is_test")


@_rewrites("InstanceNormalization")
def _instance_normalization(raw: Raw, context: Context) -> None:
    _drop(raw, "consumed_inputs")


@_rewrites("GroupNormalization")
def _group_normalization(raw: Raw, context: Context) -> Sequence[Raw] | None:
    """Before opset 21 scale and bias had one entry per group."""
    shape = context.shape(raw.inputs[0])
    if raw.opset >= 21:
        return None
    if shape is None or not isinstance(shape[1], int):
        raise _refuse(raw, "the number of channels is not known, and before opset 21 scale and bias are per group")
    groups = raw.attributes["num_groups"]
    index = context.constant(f"{raw.name}.groups", np.repeat(np.arange(groups), shape[1] // groups))
    return [*(_before(raw, context, "Gather", place, index, axis=0) for place in (1, 2)), raw]


@_rewrites("Softmax", "LogSoftmax")
def _softmax(raw: Raw, context: Context) -> Sequence[Raw] | None:
    """Before opset 13: over all axes from `axis` on, which is 1 by default."""
    if raw.opset >= 13:
        return None
    axis = raw.attributes.get("axis", 1)
    shape = context.shape(raw.inputs[0])
    if shape is not None:
        axis %= len(shape)
        if all(size == 1 for size in shape[axis + 1 :]):
            raw.attributes["axis"] = axis
            return None
    sizes = context.fresh(f"{raw.name}.Shape")
    shape_of = Raw(sizes, "Shape", [raw.inputs[0]], [sizes], {}, raw.opset)
    raw.attributes["axis"] = 1
    flat = _before(raw, context, "Flatten", 0, axis=axis)
    return shape_of, flat, raw, _after(raw, context, "Reshape", sizes, allowzero=1)


# ---------------------------------------------------------------------- resizing, recurrence


@_rewrites("Upsample")
def _upsample(raw: Raw, context: Context) -> Sequence[Raw]:
    given = raw.attributes
    if raw.opset < 7:
        given["scales"] = (1.0, 1.0, given.pop("height_scale"), given.pop("width_scale"))
    scales = raw.input(1) or context.constant(f"{raw.name}.scales", given["scales"], "float32")
    mode = {"bilinear": "linear"}.get(given.get("mode", "nearest"), given.get("mode", "nearest"))
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return [Raw(raw.name, "Resize", [raw.inputs[0], "", scales], raw.outputs, attributes, raw.opset)]


@_rewrites("Resize")
def _resize(raw: Raw, context: Context) -> Sequence[Raw] | None:
    """Opset 10 had two inputs and the coordinates of Upsample."""
    if raw.opset > 10:
        return None
    raw.inputs.append("")
    return _upsample(raw, context)


@_rewrites("LSTM", "GRU")
def _recurrent(raw: Raw, context: Context) -> None:
    _drop(raw, "output_sequence")  # opset 6; whether the first output has a name says the same


@_rewrites("ConstantOfShape")
def _constant_of_shape(raw: Raw, context: Context) -> None:
    value = raw.attributes.get("value")
    if value is not None and math.prod(np.shape(value)) != 1:
        raise _refuse(raw, f"value must be one number, got the shape {np.shape(value)}")
