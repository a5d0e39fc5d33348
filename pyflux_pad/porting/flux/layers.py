"""Everything but windows in Julia: arithmetic, shapes, products and normalisations.

Axes are reversed, so that axis k of n is dimension n - k. NumPy's broadcasting aligns the last axes, Julia's the first
dimensions: the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph import Node
from ..operators.resize import nearest_cells, places_of
from .code import TYPES, Code, dim, ints, layer, number, refused

# Element by element; {x} and {y} are the inputs, other names are attributes.
_ELEMENTWISE = {
    "Identity": "{x}", "Dropout": "{x}", "Exp": "exp.({x})", "Log": "log.({x})", "Sqrt": "sqrt.({x})",
    "Abs": "abs.({x})", "Neg": "-{x}", "Tanh": "tanh.({x})", "Sigmoid": "sigmoid.({x})", "Relu": "relu.({x})",
    "LeakyRelu": "leakyrelu.({x}, {alpha})", "PRelu": "ifelse.({x} .< 0, {x} .* {y}, {x})",
    "Elu": "elu.({x}, {alpha})", "Selu": "{gamma} .* elu.({x}, {alpha})",
    "HardSigmoid": "clamp.({alpha} .* {x} .+ {beta}, 0, 1)", "HardSwish": "hardswish.({x})",
    "Softplus": "softplus.({x})", "Mish": "mish.({x})",
    "Add": "{x} .+ {y}", "Sub": "{x} .- {y}", "Mul": "{x} .* {y}", "Pow": "{x} .^ {y}", "Equal": "{x} .== {y}",
    "Where": "ifelse.({x}, {y}, {z})",
}  # fmt: skip


@layer(*_ELEMENTWISE)
def _elementwise(code: Code, node: Node) -> str:
    dtype = code.dtype(node.inputs[0])
    settings = {
        name: number(value, dtype) for name, value in node.attributes.items() if isinstance(value, (int, float))
    }
    arrays = dict(zip("xyz", (code.ref(name) for name in node.inputs if name), strict=False))
    return _ELEMENTWISE[node.op].format(**settings, **arrays)


@layer("Div")
def _div(code: Code, node: Node) -> str:
    x, y = map(code.ref, node.inputs)
    return f"{x} ./ {y}" if code.dtype(node.inputs[0]).startswith("float") else f"div.({x}, {y})"


@layer("Erf")
def _erf(code: Code, node: Node) -> str:
    return f"{code.need('erf')}.({code.ref(node.inputs[0])})"


@layer("Gelu")
def _gelu(code: Code, node: Node) -> str:
    x = code.ref(node.inputs[0])
    if node.attributes["approximate"] == "tanh":
        return f"NNlib.gelu_tanh.({x})"
    half, root = (number(value, code.dtype(node.inputs[0])) for value in (0.5, 0.5**0.5))
    return f"{half} .* {x} .* (1 .+ {code.need('erf')}.({x} .* {root}))"


@layer("Clip")
def _clip(code: Code, node: Node) -> str:
    x, low, high = [code.ref(name) if name else "" for name in (*node.inputs, "", "")[:3]]
    if low:
        x = f"max.({x}, {low})"
    return f"min.({x}, {high})" if high else x


@layer("Cast")
def _cast(code: Code, node: Node) -> str:
    x, to, source = code.ref(node.inputs[0]), node.attributes["to"], code.dtype(node.inputs[0])
    if to not in TYPES:
        raise refused(node, f"Julia does not have {to}")
    if to == "bool":
        return f"{x} .!= 0"
    return f"trunc.({TYPES[to]}, {x})" if source.startswith("float") and "int" in to else f"{TYPES[to]}.({x})"


@layer("Sum", "Mean", "Max", "Min")
def _variadic(code: Code, node: Node) -> str:
    arrays = [code.ref(name) for name in node.inputs]
    if node.op in ("Max", "Min"):
        return f"{node.op.lower()}.({', '.join(arrays)})" if len(arrays) > 1 else arrays[0]
    total = " .+ ".join(arrays)
    return total if node.op == "Sum" else f"({total}) ./ {number(len(arrays), code.dtype(node.inputs[0]))}"


# --------------------------------------------------------------------------------------------------------------- shapes


@layer("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(code: Code, node: Node) -> str:
    """Leave the batch open where it is the first axis before and after."""
    before, after = code.shape(node.inputs[0]), code.shape(node.outputs[0])
    sizes = [str(size) for size in reversed(after)]
    if before and after and before[0] == after[0] and 0 not in after:
        sizes[-1] = ":"
    return f"reshape({code.ref(node.inputs[0])}, ({', '.join(sizes)}{',' if len(sizes) == 1 else ''}))"


@layer("Transpose")
def _transpose(code: Code, node: Node) -> str:
    ndim = len(code.shape(node.inputs[0]))
    perm = node.attributes["perm"] or tuple(reversed(range(ndim)))
    return f"permutedims({code.ref(node.inputs[0])}, {_dims(reversed(perm), ndim)})"


def _dims(axes: Iterable[int], ndim: int) -> str:
    return ints(dim(axis, ndim) for axis in axes)


@layer("Expand")
def _expand(code: Code, node: Node) -> str:
    return f"{code.need('expanded')}({code.ref(node.inputs[0])}, {ints(reversed(code.shape(node.outputs[0])))})"


@layer("Concat")
def _concat(code: Code, node: Node) -> str:
    arrays = ", ".join(code.ref(name) for name in node.inputs)
    return f"cat({arrays}; dims={dim(node.attributes['axis'], len(code.shape(node.inputs[0])))})"


def _indexed(x: str, ndim: int, chosen: dict[int, str]) -> str:
    """Return x with an index on some axes."""
    return f"{x}[{', '.join(chosen.get(axis, ':') for axis in reversed(range(ndim)))}]"


@layer("Split")
def _split(code: Code, node: Node) -> Sequence[str]:
    x, ndim = code.ref(node.inputs[0]), len(code.shape(node.inputs[0]))
    axis = node.attributes["axis"] % ndim
    end, parts = 0, []
    for name in node.outputs:
        start, end = end, end + code.shape(name)[axis]
        parts.append(_indexed(x, ndim, {axis: f"{start + 1}:{end}"}))
    return parts


@layer("Slice")
def _slice(code: Code, node: Node) -> str:
    shape = code.shape(node.inputs[0])
    starts, ends, axes, steps = (code.setting(node, place) for place in (1, 2, 3, 4))
    assert starts is not None  # an input that Slice cannot do without
    assert ends is not None
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    chosen = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis = int(axis) % len(shape)
        cells = range(shape[axis])[slice(int(start), int(end), int(step))]
        if cells != range(shape[axis]):
            by = "" if cells.step == 1 else f"{cells.step}:"
            # An empty range, or one that ends before the first cell, has its own spelling in Julia.
            last = cells[-1] + 1 if cells else cells.start + (0 if cells.step > 0 else 2)
            chosen[axis] = f"{cells.start + 1}:{by}{last}"
    return _indexed(code.ref(node.inputs[0]), len(shape), chosen) if chosen else code.ref(node.inputs[0])


@layer("Gather")
def _gather(code: Code, node: Node) -> str:
    x, index = map(code.ref, node.inputs)
    return f"{code.need('taken')}({x}, {index}, {dim(node.attributes['axis'], len(code.shape(node.inputs[0])))})"


@layer("Resize")
def _resize(code: Code, node: Node) -> str:
    """Write the nearest cells, or the places that are interpolated linearly, of every axis as numbers."""
    given = node.attributes
    rule = given["coordinate_transformation_mode"]
    known = "there are nearest, and linear without antialias or tf_crop_and_resize"
    if given["mode"] == "cubic" or (given["mode"] == "linear" and given["antialias"]) or rule == "tf_crop_and_resize":
        raise refused(node, f"mode={given['mode']!r}, antialias={given['antialias']} by the rule {rule!r} is not "
                            f"written for Flux; {known}")  # fmt: skip
    shape, cells, x = code.shape(node.inputs[0]), {}, code.ref(node.inputs[0])
    settings = [code.setting(node, place) for place in (1, 2, 3)]
    for axis, _, places in places_of(
        shape, *settings, rule=rule, policy=given["keep_aspect_ratio_policy"], axes=given["axes"]
    ):
        if given["mode"] == "nearest":
            chosen = nearest_cells(places, shape[axis], given["nearest_mode"]) + 1
            cells[axis] = f"[{', '.join(map(str, chosen))}]"
        else:
            step = (places[-1] - places[0]) / max(len(places) - 1, 1)
            numbers = f"{float(places[0])!r} .+ {float(step)!r} .* (0:{len(places) - 1})"
            x = code.let(f"{code.need('interpolated')}({x}, {numbers}, {dim(axis, len(shape))})")
    return _indexed(x, len(shape), cells) if cells else x


@layer("DepthToSpace", "SpaceToDepth")
def _depth_space(code: Code, node: Node) -> str:
    """Go through six axes, as the operators define it."""
    (n, c, h, w), b = code.shape(node.inputs[0]), node.attributes["blocksize"]
    by_depth = node.attributes["mode"] == "DCR"
    if node.op == "DepthToSpace":
        split = (n, b, b, c // b**2, h, w) if by_depth else (n, c // b**2, b, b, h, w)
        order = (0, 3, 4, 1, 5, 2) if by_depth else (0, 1, 4, 2, 5, 3)
    else:
        split = (n, c, h // b, b, w // b, b)
        order = (0, 3, 5, 1, 2, 4) if by_depth else (0, 1, 3, 5, 2, 4)
    blocks = code.let(f"reshape({code.ref(node.inputs[0])}, {ints(reversed(split))})")
    moved = f"permutedims({blocks}, {_dims(reversed(order), 6)})"
    return f"reshape({moved}, {ints(reversed(code.shape(node.outputs[0])))})"


# ---------------------------------------------------------------------------------------------- reductions and products


@layer("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
def _reduce(code: Code, node: Node) -> str:
    x, ndim = code.ref(node.inputs[0]), len(code.shape(node.inputs[0]))
    axes = code.setting(node, 1)
    if axes is None or axes.size == 0:
        if node.attributes["noop_with_empty_axes"]:
            return x
        axes = range(ndim)
    function = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "maximum", "ReduceMin": "minimum"}[node.op]
    dims = ints(sorted(dim(int(axis), ndim) for axis in axes))
    y = f"{function}({x}; dims={dims})"
    return y if node.attributes["keepdims"] else f"dropdims({y}; dims={dims})"


@layer("Softmax", "LogSoftmax")
def _softmax(code: Code, node: Node) -> str:
    dims = dim(node.attributes["axis"], len(code.shape(node.inputs[0])))
    return f"{node.op.lower()}({code.ref(node.inputs[0])}; dims={dims})"


@layer("MatMul")
def _matmul(code: Code, node: Node) -> str:
    """Write x y, which is y x of the reversed dimensions; a constant matrix on the right is a Dense layer."""
    (x, y), ranks = node.inputs, [len(code.shape(name)) for name in node.inputs]
    if code.stored(y) and ranks[1] == 2 and ranks[0] > 1:
        return f"{code.field(f'Dense({code.load(y)}, false)')}({code.ref(x)})"
    if min(ranks) < 2:
        raise refused(node, f"products of vectors are not written for Flux, the ranks are {ranks}; unsqueeze them")
    if ranks == [2, 2]:
        return f"{code.ref(y)} * {code.ref(x)}"
    return f"{code.need('product')}({code.ref(y)}, {code.ref(x)})"


@layer("Gemm")
def _gemm(code: Code, node: Node) -> str:
    """Write a Dense layer wherever weight and bias are constants and nothing is scaled."""
    a, b, c = (*node.inputs, "")[:3]
    given = node.attributes
    outputs = code.shape(node.outputs[0])[1]
    plain = given["alpha"] == 1 and not given["transA"] and code.stored(b)
    if plain and (not c or (given["beta"] == 1 and code.stored(c) and code.shape(c) in ((outputs,), (1, outputs)))):
        weight = f"permutedims({code.load(b)})" if given["transB"] else code.load(b)
        bias = f"vec({code.load(c)})" if c and len(code.shape(c)) == 2 else code.load(c) if c else "false"
        return f"{code.field(f'Dense({weight}, {bias})')}({code.ref(a)})"
    left, right = (
        f"permutedims({code.ref(name)})" if given[turn] else code.ref(name)
        for name, turn in ((b, "transB"), (a, "transA"))
    )
    y, dtype = f"{left} * {right}", code.dtype(a)
    if given["alpha"] != 1:
        y = f"{number(given['alpha'], dtype)} .* ({y})"
    return f"{y} .+ {number(given['beta'], dtype)} .* {code.ref(c)}" if c else y


# ------------------------------------------------------------------------------------------------------- normalisations


@layer("BatchNormalization")
def _batch_norm(code: Code, node: Node) -> str:
    """Flux's layer in test mode; its fields are shift before scale."""
    if node.attributes["training_mode"]:
        raise refused(node, "training_mode=1 computes running statistics; write the model in inference mode")
    x, scale, shift, mean, variance = node.inputs
    dtype = code.dtype(x)
    epsilon = number(node.attributes["epsilon"], dtype)
    if all(map(code.stored, node.inputs[1:])):
        momentum = number(1 - node.attributes["momentum"], dtype)
        arrays = ", ".join(map(code.load, (shift, scale, mean, variance)))
        norm = f"BatchNorm(identity, {arrays}, {epsilon}, {momentum}, true, true, false, {code.shape(x)[1]})"
        return f"{code.field(norm)}({code.ref(x)})"
    scale, shift, mean, variance = (_per_channel(code, name, x) for name in (scale, shift, mean, variance))
    return f"({code.ref(x)} .- {mean}) ./ sqrt.({variance} .+ {epsilon}) .* {scale} .+ {shift}"


def _per_channel(code: Code, name: str, x: str) -> str:
    return f"reshape({code.ref(name)}, ({'1, ' * (len(code.shape(x)) - 2)}:))"


@layer("InstanceNormalization", "GroupNormalization")
def _instance_norm(code: Code, node: Node) -> str:
    x, scale, shift = node.inputs
    shape, epsilon = code.shape(x), number(node.attributes["epsilon"], code.dtype(x))
    y = code.ref(x)
    if node.op == "InstanceNormalization":
        y = f"{code.need('normalised')}({y}, {ints(range(1, len(shape) - 1))}, {epsilon})"
    else:
        grouped = f"reshape({y}, (:, {node.attributes['num_groups']}, size({y}, {len(shape)})))"
        y = f"reshape({code.need('normalised')}({grouped}, 1, {epsilon}), size({y}))"
    return f"{y} .* {_per_channel(code, scale, x)} .+ {_per_channel(code, shift, x)}"


@layer("LayerNormalization")
def _layer_norm(code: Code, node: Node) -> str:
    """By hand: Flux's own layer adds the square of ϵ up to version 0.16.10."""
    x, scale, shift = (*node.inputs, "")[:3]
    ndim = len(code.shape(x))
    dims = ints(range(1, ndim - node.attributes["axis"] % ndim + 1))
    epsilon = number(node.attributes["epsilon"], code.dtype(x))
    y = f"{code.need('normalised')}({code.ref(x)}, {dims}, {epsilon}) .* {code.ref(scale)}"
    return f"{y} .+ {code.ref(shift)}" if shift else y


@layer("LRN")
def _lrn(code: Code, node: Node) -> str:
    given, size = node.attributes, node.attributes["size"]
    low = (size - 1) // 2
    settings = ", ".join(number(given[name], code.dtype(node.inputs[0])) for name in ("alpha", "beta", "bias"))
    return f"{code.need('response')}({code.ref(node.inputs[0])}, {size}, ({low}, {size - 1 - low}), {settings})"
