"""What a model is made of: a tree of layers with the facts that Flux keeps, and the table of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..console import table


@dataclass(frozen=True)
class Structure:
    """A layer that ran.

    Attributes
    ----------
    name
        Its path in the model; "" for the model itself.
    kind
        The name of its type, or of the function that it is.
    facts
        Its settings as Flux has them: per-axis ones width first, `pad` low before high.
    input, output
        The shapes of what it took and made, in NumPy's order; a tuple of shapes where it was a tuple of arrays.
    layers
        What it consists of.
    """

    name: str
    kind: str
    facts: Mapping[str, Any]
    input: tuple[Any, ...]
    output: tuple[Any, ...]
    layers: tuple[Structure, ...]

    @classmethod
    def of(cls, text: str) -> Structure:
        """Return the tree of what the extension says."""
        return cls._of(json.loads(text))

    @classmethod
    def _of(cls, node: Mapping[str, Any]) -> Structure:
        return cls(
            node["name"], node["kind"], node["facts"], _shape(node["input"]), _shape(node["output"]),
            tuple(map(cls._of, node["layers"])),
        )  # fmt: skip

    def table(self, input_shape: Sequence[int], sizes: Mapping[str, int]) -> str:
        """Return a table; `sizes` are the numbers of elements of the trained parameters."""
        rows = [("", "input", _text(tuple(input_shape)), "")]
        for node in self._leaves():
            own = {name: size for name, size in sizes.items() if _is_in(name, node.name)}
            rows.append((node.name, node.kind, _text(node.output), f"{sum(own.values()):,}" if own else ""))
        lines = table(("name", "layer", "shape", "parameters"), rows)
        return "\n".join([*lines, f"{sum(sizes.values()):,} trained parameters"])

    def _leaves(self) -> Iterator[Structure]:
        """Yield the layers in the order in which they run; one with layers of its own comes after them, if it joins."""
        for layer in self.layers:
            yield from layer._leaves()
        if self.kind != "Chain":
            yield self


def _is_in(parameter: str, layer: str) -> bool:
    return not layer or parameter.startswith(f"{layer}.")


def _shape(entry: Any) -> tuple[Any, ...]:
    return tuple(_shape(part) if isinstance(part, list) else part for part in entry)


def _text(shape: tuple[Any, ...]) -> str:
    if any(isinstance(part, tuple) for part in shape):
        return ", ".join(map(_text, shape))
    return "x".join(map(str, shape)) or "scalar"
