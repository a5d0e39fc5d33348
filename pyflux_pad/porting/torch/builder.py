"""What the handlers of torch's operators build a graph with, and the table in which they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import ModelError, Node, Value
from ..operators import OPERATORS


@dataclass(frozen=True)
class Ref:
    """An array of the graph: its name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


def dtype_of(tensor: Any) -> str:
    """Return NumPy's name of the dtype of what torch's exported program says of a result."""
    return str(tensor.dtype).removeprefix("torch.")


Handler = Callable[..., Any]
HANDLERS: dict[str, Handler] = {}
"""By the name of torch's operator, "conv2d" for every overload or "conv2d.padding" for one.

A handler takes the builder and the arguments of the operator by their names in torch's schema; it returns a `Ref`, or
a tuple of them where the operator has several results.
"""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Enter a handler in the table."""

    def enter(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return enter


class Builder:
    """Collects nodes and arrays; knows which of torch's nodes is being read, for names and messages."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.values: dict[str, Value] = {}
        self.parameters: set[str] = set()
        self.names: set[str] = set()
        self.current = ""
        self.operator = ""

    def fresh(self, stem: str) -> str:
        """Return a name that nothing has yet."""
        name, number = stem, 1
        while name in self.names:
            number += 1
            name = f"{stem}_{number}"
        self.names.add(name)
        return name

    def refuse(self, why: str) -> ModelError:
        """Return an error that names the node that is being read."""
        return ModelError(f"read_torch: node {self.current!r} ({self.operator}): {why}")

    def constant(self, values: Any, dtype: str = "int64") -> Ref:
        """Add an array that is not trained."""
        array = np.asarray(values, dtype)
        name = self.fresh(f"{self.current}.constant")
        self.arrays[name] = array
        return Ref(name, array.shape, dtype)

    def node(
        self, op: str, inputs: Sequence[Ref | None], shape: Sequence[int], dtype: str | None = None, **given: Any
    ) -> Ref:
        """Add a node of one output, of the first input's dtype unless told otherwise; return its output."""
        return self.many(op, inputs, [shape], dtype, **given)[0]

    def many(
        self,
        op: str,
        inputs: Sequence[Ref | None],
        shapes: Sequence[Sequence[int]],
        dtype: str | None = None,
        **given: Any,
    ) -> tuple[Ref, ...]:
        """Add a node with an output for every shape; return its outputs."""
        attributes = OPERATORS[op].complete(f"read_torch: node {self.current!r} ({self.operator})", given)
        kind = dtype or next(ref.dtype for ref in inputs if ref is not None)
        refs = [Ref(self.fresh(self.current), tuple(shape), kind) for shape in shapes]
        names = [ref.name if ref is not None else "" for ref in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(Node(refs[0].name, op, tuple(names), tuple(ref.name for ref in refs), attributes))
        self.values |= {ref.name: Value(ref.name, ref.dtype, ref.shape) for ref in refs}
        return tuple(refs)

    # Steps that several handlers take.

    def reshape(self, x: Ref, shape: Sequence[int]) -> Ref:
        """Reshape, unless it is that shape already."""
        if tuple(shape) == x.shape:
            return x
        return self.node("Reshape", [x, self.constant(shape)], shape, allowzero=int(0 in shape))

    def transpose(self, x: Ref, order: Sequence[int]) -> Ref:
        """Permute the axes."""
        return self.node("Transpose", [x], [x.shape[axis] for axis in order], perm=tuple(order))

    def cast(self, x: Ref, dtype: str) -> Ref:
        """Convert, unless it is that dtype already."""
        return x if x.dtype == dtype else self.node("Cast", [x], x.shape, dtype, to=dtype)

    def operand(self, x: Any, dtype: str) -> Ref:
        """Return an operand of an arithmetic operator: an array of that dtype, or a number as one."""
        return self.cast(x, dtype) if isinstance(x, Ref) else self.constant(x, dtype)

    def binary(self, op: str, x: Any, y: Any, dtype: str) -> Ref:
        """Apply an operator of two operands in a dtype."""
        a, b = self.operand(x, dtype), self.operand(y, dtype)
        return self.node(op, [a, b], np.broadcast_shapes(a.shape, b.shape))

    def unary(self, op: str, x: Ref, **given: Any) -> Ref:
        """Apply an operator that keeps the shape."""
        return self.node(op, [x], x.shape, **given)
