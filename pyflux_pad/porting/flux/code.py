"""The Julia code of a model while it is written: its fields, the lines of its forward function, its helpers."""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Graph, ModelError, Node, shape_text
from .safetensors import places
from .snippets import NEEDS

TYPES = {
    "float64": "Float64", "float32": "Float32", "float16": "Float16", "bool": "Bool",
    **{f"{sign}int{bits}": f"{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""NumPy's names of dtypes, and Julia's."""

Layer = Callable[["Code", Node], "str | Sequence[str]"]
LAYERS: dict[str, Layer] = {}
"""The neutral operators and what writes them: a function that returns the expression of every output."""


def layer(*names: str) -> Callable[[Layer], Layer]:
    """Enter a function in the table under the names of operators."""

    def enter(write: Layer) -> Layer:
        LAYERS.update(dict.fromkeys(names, write))
        return write

    return enter


class Code:
    """Julia code under construction.

    Parameters
    ----------
    graph
        A graph of which every shape is known.

    Attributes
    ----------
    fields
        The name of every field of the struct, and the expression that loads it.
    frozen
        The fields that are not trained.
    body
        The lines of the forward function.
    helpers
        The names of the helpers that they call.
    flipped
        The kernels that must be stored backwards.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fields: dict[str, str] = {}
        self.frozen: set[str] = set()
        self.body: list[str] = []
        self.helpers: set[str] = set()
        self.flipped = _kernels(graph)
        self._places = places(graph.arrays)
        self._variables: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._node = ""
        for number, value in enumerate(graph.inputs, 1):
            self._variables[value.name] = self._fresh(value.name, f"x{number}")

    # ------------------------------------------------------------------------------------------- what a layer asks

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array, axes in NumPy's order."""
        return tuple(int(size) for size in self.graph.value(name).shape or ())

    def dtype(self, name: str) -> str:
        """Return NumPy's name of a dtype."""
        return str(self.graph.value(name).dtype)

    def stored(self, name: str) -> bool:
        """Say whether an array is in the file of weights, rather than made by a node."""
        return name in self.graph.arrays

    def setting(self, node: Node, place: int) -> np.ndarray | None:
        """Return an input that must be known: sizes, axes; None if it is left out."""
        if place >= len(node.inputs) or not node.inputs[place]:
            return None
        name = node.inputs[place]
        if name not in self.graph.arrays:
            raise refused(node, f"its input {name!r} depends on the values of other arrays; only constants are written")
        return self.graph.arrays[name]

    def load(self, name: str) -> str:
        """Return the expression that reads an array from the file of weights."""
        array = self.graph.arrays[name]
        return read_array(array, self._places[name])

    def field(self, expression: str, name: str = "", trained: bool = True) -> str:
        """Add a field to the struct, by default of the node's name; return how the forward function reads it."""
        field = self._free(name or self._node, self.fields)
        self.fields[field] = expression
        if not trained:
            self.frozen.add(field)
        return f"m.{field}"

    def ref(self, name: str) -> str:
        """Return the expression of an array: a variable, a number, or a field with a constant."""
        if name in self._variables:
            return self._variables[name]
        array = self.graph.arrays[name]
        if array.ndim == 0 and name not in self.graph.parameters:
            return number(array.item(), array.dtype.name)
        if name not in self._constants:
            trained = name in self.graph.parameters
            self._constants[name] = self.field(self.load(name), identifier(name) or f"array{len(self.fields)}", trained)
        return self._constants[name]

    def let(self, expression: str) -> str:
        """Add a line that keeps an intermediate result; return its variable."""
        variable = self._fresh(f"{self._node}_part", "part")
        self.body.append(f"    {variable} = {expression}")
        return variable

    def need(self, helper: str) -> str:
        """Note that a helper is called; return its name."""
        self.helpers |= {helper, *NEEDS.get(helper, ())}
        return helper

    # ---------------------------------------------------------------------------------------------- what a writer asks

    def add(self, node: Node, position: int) -> None:
        """Write a node."""
        if node.op not in LAYERS:
            raise refused(node, f"the operator is not written for Flux; there are {', '.join(sorted(LAYERS))}")
        short = identifier(node.name)
        self._node = short if 0 < len(short) <= 32 else f"{node.op.lower()}_{position}"
        shapes = " ".join(shape_text(self.shape(name)) for name in node.outputs if name)
        pads = f", pads {node.pads}" if node.pads else ""
        self.body.append(f"    # {node.op} {json.dumps(node.name)}: {shapes}{pads}")
        expressions = LAYERS[node.op](self, node)
        if isinstance(expressions, str):
            expressions = [expressions]
        used = {name for other in self.graph.nodes for name in other.inputs} | {v.name for v in self.graph.outputs}
        if any(name in used for name in node.outputs[len(expressions) :]):
            raise refused(node, f"only the first {len(expressions)} of its outputs {node.outputs} are written for Flux")
        for name, expression in zip(node.outputs, expressions, strict=False):
            if name in used:
                self._variables[name] = self._fresh(self._node, f"{node.op.lower()}_{position}")
                self.body.append(f"    {self._variables[name]} = {expression}")

    def result(self) -> str:
        """Return the outputs, a tuple if there are several."""
        return ", ".join(self.ref(value.name) for value in self.graph.outputs)

    def parameters(self) -> str:
        """Return the arguments of the forward function."""
        return ", ".join(self._variables[value.name] for value in self.graph.inputs)

    def _fresh(self, name: str, otherwise: str) -> str:
        """Return a variable that nothing has: one with a digit, as no function has that is called."""
        base = identifier(name) or otherwise
        return self._free(base if any(map(str.isdigit, base)) else f"{base}_1", self._taken)

    @property
    def _taken(self) -> set[str]:
        return {*self._variables.values(), *(line.split(" = ")[0].strip() for line in self.body)}

    def _free(self, name: str, taken: Any) -> str:
        if name not in taken and name not in _RESERVED:
            return name
        return next(f"{name}_{count}" for count in range(2, 1 << 30) if f"{name}_{count}" not in taken)


_RESERVED = {*keyword.kwlist, "m", "end", "function", "struct", "module", "let", "do", "local", "const", "using",
             "export", "begin", "baremodule", "catch", "elseif", "false", "macro", "quote", "true", "array",
             "io"}  # fmt: skip


def _kernels(graph: Graph) -> frozenset[str]:
    """Return the arrays that are nothing but kernels of convolutions: those can be stored backwards."""
    kernels, others = set(), {value.name for value in graph.outputs}
    for node in graph.nodes:
        for place, name in enumerate(node.inputs):
            is_kernel = place == 1 and node.op in ("Conv", "ConvTranspose")
            (kernels if is_kernel else others).add(name)
    return frozenset(kernels & set(graph.arrays) - others)


def refused(node: Node, reason: str) -> ModelError:
    """Return the error for a node that cannot be written."""
    return ModelError(f"write_flux: {node}: {reason}")


def identifier(name: str) -> str:
    """Return a name with what Julia does not take in names replaced; "" if nothing is left."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    return f"n{plain}" if plain[:1].isdigit() else plain


def ints(entries: Any) -> str:
    """Return a Julia tuple of integers."""
    listed = [int(entry) for entry in entries]
    return f"({', '.join(map(str, listed))}{',' if len(listed) == 1 else ''})"


def number(value: Any, dtype: str) -> str:
    """Return a number as Julia writes it in a dtype."""
    if dtype == "bool":
        return str(bool(value)).lower()
    if dtype not in ("float16", "float32", "float64"):
        return str(int(value)) if dtype == "int64" else f"{TYPES[dtype]}({int(value)})"
    if not math.isfinite(value):
        word = "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
        return word + {"float64": "", "float32": "32", "float16": "16"}[dtype]
    if dtype == "float64":
        return repr(float(value))
    digits = str(np.dtype(dtype).type(value))
    if dtype == "float16":
        return f"Float16({digits})"
    return digits.replace("e", "f") if "e" in digits else f"{digits}f0"


def text(string: str) -> str:
    """Return a string as Julia writes it."""
    return json.dumps(string).replace("$", "\\$")


def read_array(array: np.ndarray, place: int) -> str:
    """Return the call that reads an array."""
    return f"array({TYPES[array.dtype.name]}, {place}, {ints(reversed(array.shape))})"


def dim(axis: int, ndim: int) -> int:
    """Return the Julia dimension of an axis."""
    return ndim - axis % ndim


def check_types(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError for a dtype that Julia does not have."""
    for name, array in arrays.items():
        if array.dtype.name not in TYPES:
            raise ModelError(
                f"write_flux: the array {name!r} is {array.dtype.name}, which Julia does not have; cast it"
            )
