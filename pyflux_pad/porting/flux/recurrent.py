"""LSTM and GRU in Julia: helpers with ONNX's gates, because Flux's cells have one bias, one direction, no states out.

Arrays have their axes reversed: x (input, batch, time), w (input, gates, directions), states (hidden, batch,
directions).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Node
from ..operators.recurrent import activation_settings
from .code import Code, layer, number

# The activations as Julia functions; {0} and {1} are their alpha and beta.
_FUNCTIONS = {
    "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "softsign": "softsign", "softplus": "softplus",
    "affine": "(x -> {0} * x + {1})", "leakyrelu": "(x -> leakyrelu(x, {0}))",
    "thresholdedrelu": "(x -> ifelse(x > {0}, x, zero(x)))", "scaledtanh": "(x -> {0} * tanh({1} * x))",
    "hardsigmoid": "(x -> clamp({0} * x + {1}, 0, 1))", "elu": "(x -> elu(x, {0}))",
}  # fmt: skip
_STATES = {"LSTM": ("h", "c"), "GRU": ("h",)}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
_DIRECTIONS = {"forward": "(false,)", "reverse": "(true,)", "bidirectional": "(false, true)"}


@layer("LSTM", "GRU")
def _recurrent(code: Code, node: Node) -> Sequence[str]:
    given, dtype = node.attributes, code.dtype(node.inputs[0])
    names = (*node.inputs, *[""] * 8)[:8]
    by_batch = given["layout"] == 1  # batch before time, and before direction in the states
    settings: dict[str, str] = {}
    if names[4]:
        settings["lengths"] = code.ref(names[4])
    states = _STATES[node.op]
    for state, name in zip(states, names[5:], strict=False):
        if name:
            settings[state] = _swapped(code.ref(name)) if by_batch else code.ref(name)
    if names[7]:
        settings["peepholes"] = code.ref(names[7])
    if given["activations"] or given["activation_alpha"] or given["activation_beta"]:
        settings["functions"] = _functions(code, node, dtype)
    if given["direction"] != "forward":
        settings["backwards"] = _DIRECTIONS[given["direction"]]
    if given["clip"] is not None:
        settings["clip"] = number(given["clip"], dtype)
    for attribute, keyword in (("input_forget", "coupled"), ("linear_before_reset", "reset_after")):
        if given.get(attribute):
            settings[keyword] = "true"
    x = code.ref(names[0])
    arrays = [_swapped(x) if by_batch else x, *(code.ref(name) if name else "nothing" for name in names[1:4])]
    keywords = "; " * bool(settings) + ", ".join(f"{name} = {value}" for name, value in settings.items())
    result = code.let(f"{code.need(node.op.lower())}({', '.join(arrays)}{keywords})")
    y = f"permutedims({result}[1], (1, 3, 4, 2))" if by_batch else f"{result}[1]"
    last = [f"{result}[{place}]" for place in range(2, 2 + len(states))]
    return [y, *(_swapped(state) if by_batch else state for state in last)]


def _swapped(array: str) -> str:
    """Return an array of three dimensions with the last two swapped."""
    return f"permutedims({array}, (1, 3, 2))"


def _functions(code: Code, node: Node, dtype: str) -> str:
    """Return one tuple of activations for every direction."""
    given, directions = node.attributes, code.shape(node.inputs[1])[0]
    chosen = activation_settings(
        given["activations"] or _DEFAULTS[node.op] * directions, given["activation_alpha"], given["activation_beta"]
    )
    functions = [_FUNCTIONS[name].format(*(number(value, dtype) for value in values)) for name, values in chosen]
    each = len(functions) // directions
    parts = [f"({', '.join(functions[begin : begin + each])})" for begin in range(0, len(functions), each)]
    return f"({', '.join(parts)},)"
