"""Convolutions, pools and pads in Julia."""

from __future__ import annotations

from collections.abc import Sequence

from ...padding import Padding
from ..graph import Node
from .code import Code, dim, ints, layer, number, refused


def _pads(node: Node) -> Padding:
    if node.pads is None or node.pads.padding is None:
        raise refused(node, f"its pads ({node.pads}) are not known before it runs; read the model with fixed sizes")
    return node.pads.padding


def _flux(padding: Padding) -> str:
    """Return pads as Flux takes them, W first."""
    return ints(padding.to_flux())


def _window(node: Node, padding: Padding) -> str:
    given = node.attributes
    parts = [f"stride={ints(reversed(given['strides']))}", f"pad={_flux(padding)}"]
    if any(step != 1 for step in given["dilations"]):
        parts.append(f"dilation={ints(reversed(given['dilations']))}")
    return ", ".join(parts)


def _cropped(code: Code, x: str, padding: Padding) -> tuple[str, Padding]:
    """Crop what negative pads take away; return the array and the pads that are left."""
    if all(entry >= 0 for pair in padding for entry in pair):
        return x, padding
    left = Padding(tuple((max(low, 0), max(high, 0)) for low, high in padding))
    return code.let(f"{x}[{_kept(padding.pairs)}, :, :]"), left


@layer("Conv")
def _conv(code: Code, node: Node) -> str:
    x, padding = _cropped(code, code.ref(node.inputs[0]), _pads(node))
    weight, bias = node.inputs[1], (*node.inputs, "")[2]
    window, groups = _window(node, padding), node.attributes["group"]
    if groups != 1:
        window += f", groups={groups}"
    if weight in code.flipped and (not bias or code.stored(bias)):
        kernel = code.load(weight)
        conv = code.field(f"Conv({kernel}, {code.load(bias) if bias else 'false'}; {window})")
        return f"{conv}({x})"
    y = f"NNlib.conv({x}, {code.ref(weight)}; {window}, flipped={str(weight not in code.flipped).lower()})"
    return _biased(code, node, y, bias)


def _biased(code: Code, node: Node, y: str, bias: str) -> str:
    ones = "1, " * (len(code.shape(node.inputs[0])) - 2)
    return f"{y} .+ reshape({code.ref(bias)}, ({ones}:))" if bias else y


@layer("ConvTranspose")
def _conv_transpose(code: Code, node: Node) -> str:
    """Add the cells of negative crops: `outpad` does at the high side, fewer than the stride; else zeros are padded."""
    weight, bias = node.inputs[1], (*node.inputs, "")[2]
    if weight not in code.flipped or (bias and not code.stored(bias)):
        raise refused(node, "its weight is computed by other nodes; only constant weights are written for Flux")
    padding = _pads(node)
    crops = Padding(tuple((max(low, 0), max(high, 0)) for low, high in padding))
    more = [(max(-low, 0), max(-high, 0)) for low, high in padding]
    groups, kernel = node.attributes["group"], code.load(weight)
    window = _window(node, crops) + (f", groups={groups}" if groups != 1 else "")
    fits = all(low == 0 and high < s for (low, high), s in zip(more, node.attributes["strides"], strict=True))
    x = code.ref(node.inputs[0])
    if fits:
        if any(high for _, high in more):
            window += f", outpad={ints(high for _, high in reversed(more))}"
        conv = code.field(f"ConvTranspose({kernel}, {code.load(bias) if bias else 'false'}; {window})")
        return f"{conv}({x})"
    conv = code.field(f"ConvTranspose({kernel}, false; {window})")
    pad = ints([*Padding(tuple(more)).to_flux(), 0, 0, 0, 0])
    return _biased(code, node, f"NNlib.pad_zeros({conv}({x}), {pad})", bias)


def _pool(code: Code, node: Node) -> tuple[str, Padding, bool]:
    """Return the input of a pool, its pads with the overhang of ceil mode, and whether there is one."""
    x, padding = _cropped(code, code.ref(node.inputs[0]), _pads(node))
    given = node.attributes
    kept = [n + min(low, 0) + min(high, 0)
            for n, (low, high) in zip(code.shape(node.inputs[0])[2:], _pads(node), strict=True)]  # fmt: skip
    pairs = []
    for axis, (low, high) in enumerate(padding):
        extent = (given["kernel_shape"][axis] - 1) * given["dilations"][axis] + 1
        reached = (code.shape(node.outputs[0])[2 + axis] - 1) * given["strides"][axis] + extent
        pairs.append((low, max(high, reached - kept[axis] - low)))
    return x, Padding(tuple(pairs)), tuple(pairs) != padding.pairs


def _pooled(node: Node, function: str, x: str, padding: Padding, more: str = "", norm: str = "") -> str:
    """Return the call of one of NNlib's pools; only `PoolDims` has a dilation."""
    kernel, given = ints(reversed(node.attributes["kernel_shape"])), node.attributes
    if all(step == 1 for step in given["dilations"]):
        window = f"pad={_flux(padding)}, stride={ints(reversed(given['strides']))}"
        return f"NNlib.{function}({x}, {norm}{kernel}; {window}{more})"
    dims = (
        f"NNlib.PoolDims({x}, {kernel}; stride={ints(reversed(given['strides']))}, padding={_flux(padding)}, "
        f"dilation={ints(reversed(given['dilations']))})"
    )
    return f"NNlib.{function}({x}, {dims}{';' + more[1:] if more else ''})"


@layer("MaxPool")
def _max_pool(code: Code, node: Node) -> str:
    """Flux ignores what is padded, so the overhang of ceil mode is padding like any other."""
    x, padding, _ = _pool(code, node)
    if any(step != 1 for step in node.attributes["dilations"]):
        return _pooled(node, "maxpool", x, padding)
    kernel = ints(reversed(node.attributes["kernel_shape"]))
    return f"MaxPool({kernel}; {_window(node, padding)})({x})"


@layer("AveragePool")
def _average_pool(code: Code, node: Node) -> str:
    """Count declared padding if `count_include_pad` (made of real zeros then), and overhang never."""
    x, padding, overhang = _pool(code, node)
    if not any(entry for pair in padding for entry in pair):
        return _pooled(node, "meanpool", x, padding)
    if not node.attributes["count_include_pad"]:
        return _pooled(node, "meanpool", x, padding, ", count_include_pad=false")
    if not overhang:
        return _pooled(node, "meanpool", x, padding, ", count_include_pad=true")
    declared = Padding(tuple((max(low, 0), max(high, 0)) for low, high in _pads(node)))
    x = code.let(f"NNlib.pad_zeros({x}, {ints([*declared.to_flux(), 0, 0, 0, 0])})")
    rest = Padding(tuple((0, high - low) for (_, high), (_, low) in zip(padding, declared, strict=True)))
    return _pooled(node, "meanpool", x, rest, ", count_include_pad=false")


@layer("LpPool")
def _lp_pool(code: Code, node: Node) -> str:
    x, padding, _ = _pool(code, node)
    if any(step != 1 for step in node.attributes["dilations"]):
        raise refused(node, f"Flux's pool of norms has no dilations, given are {node.attributes['dilations']}")
    return _pooled(node, "lpnormpool", f"abs.({x})", padding, norm=f"{node.attributes['p']:g}, ")


@layer("GlobalAveragePool")
def _global_average_pool(code: Code, node: Node) -> str:
    return f"GlobalMeanPool()({code.ref(node.inputs[0])})"


@layer("GlobalMaxPool")
def _global_max_pool(code: Code, node: Node) -> str:
    return f"GlobalMaxPool()({code.ref(node.inputs[0])})"


@layer("GlobalLpPool")
def _global_lp_pool(code: Code, node: Node) -> str:
    x, p = code.ref(node.inputs[0]), f"{node.attributes['p']:g}"
    dims = ints(range(1, len(code.shape(node.inputs[0])) - 1))
    power = number(1 / node.attributes["p"], code.dtype(node.inputs[0]))
    return f"sum(abs.({x}) .^ {p}; dims={dims}) .^ {power}"


_MODES = {"reflect": "pad_reflect", "edge": "pad_repeat", "wrap": "pad_circular"}


@layer("Pad")
def _pad(code: Code, node: Node) -> str:
    padding, mode = _pads(node), node.attributes["mode"]
    x, shape = code.ref(node.inputs[0]), code.shape(node.inputs[0])
    if any(entry < 0 for pair in padding for entry in pair):
        x = code.let(f"{x}[{_kept(padding.pairs)}]")
    pairs = [(max(low, 0), max(high, 0)) for low, high in padding]
    if mode == "constant":
        value = number(node.attributes["constant_value"], code.dtype(node.inputs[0]))
        return f"NNlib.pad_constant({x}, {ints(e for pair in reversed(pairs) for e in pair)}, {value})"
    for axis, (low, high) in enumerate(pairs):
        size = shape[axis] + sum(min(entry, 0) for entry in padding[axis])
        limit = {"reflect": size - 1, "wrap": size}.get(mode, max(low, high))
        if max(low, high) > limit:
            raise refused(node, f"mode={mode!r} by ({low},{high}) on axis {axis} of size {size}; Flux takes {limit}")
        if low or high:
            x = code.let(f"NNlib.{_MODES[mode]}({x}, ({low}, {high}); dims={dim(axis, len(shape))})")
    return x


def _kept(pairs: Sequence[tuple[int, int]]) -> str:
    """Return the indices of what negative pads leave."""
    return ", ".join(f"{1 + max(-low, 0)}:end{f' - {-high}' if high < 0 else ''}" for low, high in reversed(pairs))
