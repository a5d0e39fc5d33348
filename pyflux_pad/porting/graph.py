"""The neutral record of a model: every reader makes one, every writer and engine takes one. Immutable, no framework.

Its vocabulary is ONNX's: the operators of `operators.OPERATORS` with the newest meaning of every attribute, whatever
the model was written in. Pads are never a flat list: they are a `Pads`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ..console import shortened, table
from ..padding import Padding

if TYPE_CHECKING:
    import torch

    from ..flux import FluxModel

Array = Any
Shape = tuple[int | str, ...]
"""Sizes; a string names a size that is only known at run time."""


class ModelError(ValueError):
    """A model that cannot be read, run or written; the message names the node, the values and a remedy."""


@dataclass(frozen=True)
class Pads:
    """The pads of a convolution, a pool or a padding, and where they came from.

    Attributes
    ----------
    rule
        "explicit", "valid", "same_upper", "same_lower"; for a transposed convolution "output_shape_upper" and
        "output_shape_lower" too; for a padding "computed" where the pads are an input.
    padding
        One ``(low, high)`` pair per spatial axis, or per array axis of a Pad. None where the rule depends on a size
        that is only known at run time. Of a transposed convolution they crop, and a negative high side holds the
        ``output_padding`` of other frameworks.
    """

    rule: str
    padding: Padding | None

    @classmethod
    def explicit(cls, pairs: Iterable[tuple[int, int]]) -> Pads:
        """Return pads that were given as numbers."""
        return cls("explicit", Padding(tuple(pairs)))

    def __str__(self) -> str:
        if self.padding is None:
            return f"{self.rule} (at run time)"
        pairs = " ".join(f"({low},{high})" for low, high in self.padding)
        return pairs if self.rule == "explicit" else f"{pairs} {self.rule}"


@dataclass(frozen=True)
class Value:
    """Name, dtype (NumPy's name) and shape of an array that flows through a graph; None where it is not known."""

    name: str
    dtype: str | None = None
    shape: Shape | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype or '?'} {shape_text(self.shape)}"


@dataclass(frozen=True)
class Node:
    """One operator of a graph.

    Attributes
    ----------
    name
        Unique in its graph.
    op
        ONNX's name of the operator.
    inputs, outputs
        Names of the arrays it takes and makes; "" is an optional one that is left out.
    attributes
        Every attribute of the operator, defaults included: ints, floats, strings, tuples of them, `Pads`, arrays.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.name, self.op, self.inputs, self.outputs, dict(self.attributes))

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.op})"

    @property
    def pads(self) -> Pads | None:
        """The pads, if the operator has any."""
        return self.attributes.get("pads")


@dataclass(frozen=True, eq=False)
class Graph:
    """A model: nodes in the order in which they run, and the arrays they read.

    Attributes
    ----------
    name
        What the model calls itself.
    inputs, outputs
        What a caller gives and gets.
    nodes
        In an order in which they can run.
    arrays
        Weights and constants by name, NumPy arrays that cannot be written to.
    parameters
        The names of those arrays that are trained.
    values
        Dtype and shape of every array that a node makes, as far as the reader knows them.

    Raises
    ------
    ModelError
        If a node reads an array that nothing has made before it, or two things make the same one.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    arrays: Mapping[str, np.ndarray]
    parameters: frozenset[str] = frozenset()
    values: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "nodes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "arrays", MappingProxyType({k: _locked(a) for k, a in self.arrays.items()}))
        object.__setattr__(self, "parameters", frozenset(self.parameters))
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))
        self._check_wiring()

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # it cannot change; a copied module shares it

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.name, self.inputs, self.outputs, self.nodes, dict(self.arrays), self.parameters, dict(self.values)
        return Graph, state

    def _check_wiring(self) -> None:
        made = dict.fromkeys(self.arrays, "an array")
        for value in self.inputs:
            if value.name in made:
                raise ModelError(f"input {value.name!r} has the name of {made[value.name]}; every name is made once")
            made[value.name] = "an input"
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise ModelError(f"two nodes have the name {node.name!r}; give every node its own")
            names.add(node.name)
            for name in node.inputs:
                if name and name not in made:
                    raise ModelError(f"{node} reads {name!r}, which nothing before it makes")
            for name in filter(None, node.outputs):
                if name in made:
                    raise ModelError(f"{node} makes {name!r}, which {made[name]} makes too")
                made[name] = str(node)
        for value in self.outputs:
            if value.name not in made:
                raise ModelError(f"the output {value.name!r} is made by no node")

    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        backend: str | None = None,
        observe: Callable[[Node, Sequence[Array]], None] | None = None,
    ) -> dict[str, Array]:
        """Run the model.

        Parameters
        ----------
        inputs
            One array for every input by name, of its dtype and shape: all NumPy arrays or all torch tensors.
        backend
            The engine of convolutions, pools and pads (see `pyflux_pad.conv`); everything else runs in the array
            library of that engine. By default the arrays' own.
        observe
            Called after every node with the node and the arrays it made.

        Returns
        -------
        dict
            The outputs by name, arrays of the caller's own library.

        Raises
        ------
        ModelError
            For missing, unknown or misshapen inputs, and where a node fails: the message names it.
        TypeError
            For arrays of a wrong dtype or library.
        BackendUnavailable
            If `backend` cannot run here.
        """
        from .run import run

        return run(self, inputs, backend, observe)

    def to_torch(self, *, backend: str | None = None) -> torch.nn.Module:
        """Return the model as a ``torch.nn.Module`` with the inputs as arguments, in order.

        Its parameters are the arrays in `parameters`, its buffers the other floating-point arrays, both under their
        own names. It can be trained and exported (``torch.export``). One output is returned as it is, several as a
        tuple.

        Parameters
        ----------
        backend
            The engine of convolutions, pools and pads; by default torch.
        """
        from .module import GraphModule

        return GraphModule(self, backend)

    def to_flux(self) -> FluxModel:
        """Return the model as a live Flux model: what `write_flux` writes, loaded into Julia.

        Its inputs must have fixed sizes. It is a struct with a named field per node with weights, not a Chain.

        Raises
        ------
        ModelError
            As `write_flux` does.
        BackendUnavailable
            Without a Julia that has Flux.
        """
        from .flux.live import to_flux

        return to_flux(self)

    def value(self, name: str) -> Value:
        """Return what is known of an array by its name."""
        if name in self.arrays:
            array = self.arrays[name]
            return Value(name, array.dtype.name, array.shape)
        for value in (*self.inputs, *self.outputs):
            if value.name == name and value.shape is not None:
                return value
        return self.values.get(name, Value(name))

    def replaced(self, **changes: Any) -> Graph:
        """Return a graph with other nodes or arrays; arrays and values that no node names any more are dropped."""
        graph = replace(self, **changes)
        used = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
        used |= {value.name for value in graph.outputs}
        return replace(
            graph,
            arrays={name: array for name, array in graph.arrays.items() if name in used},
            parameters=graph.parameters & used,
            values={name: value for name, value in graph.values.items() if name in used},
        )

    def pruned(self) -> Graph:
        """Return a graph without the nodes whose results nothing reads."""
        wanted = {value.name for value in self.outputs}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if wanted & set(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        return self.replaced(nodes=tuple(reversed(kept)))

    def size_of(self, node: Node) -> int:
        """Return the number of trained parameters that a node reads."""
        return sum(self.arrays[name].size for name in set(node.inputs) & self.parameters)

    def __str__(self) -> str:
        rows = [
            (
                shortened(node.name),
                node.op,
                " ".join(shape_text(self.value(name).shape) for name in node.outputs if name),
                node.pads or "",
                f"{self.size_of(node):,}" if self.size_of(node) else "",
            )
            for node in self.nodes
        ]
        count = sum(self.arrays[name].size for name in self.parameters)
        weight = sum(array.nbytes for array in self.arrays.values())
        lines = [
            f"{self.name}",
            *(f"input   {value}" for value in self.inputs),
            "",
            *table(("name", "op", "shape", "pads", "parameters"), rows),
            "",
            *(f"output  {Value(value.name, value.dtype, self.value(value.name).shape)}" for value in self.outputs),
            f"{len(self.nodes)} nodes, {count:,} parameters, {len(self.arrays)} arrays of {weight / 2**20:.1f} MiB",
        ]
        return "\n".join(lines)


def shape_text(shape: Shape | None) -> str:
    """Return a shape as people write it."""
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def _locked(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


class Wired(Protocol):
    """What reads and makes arrays by name: a node, or what will become one."""

    @property
    def inputs(self) -> Sequence[str]:
        """The arrays it reads."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """The arrays it makes."""
        ...


W = TypeVar("W", bound=Wired)


def in_order(nodes: Sequence[W], known: Iterable[str]) -> list[W]:
    """Return the nodes in an order in which they can run; stable where the given order already can.

    Raises
    ------
    ModelError
        For a cycle, and for an array that nothing makes.
    """
    made = set(known)
    makers = {name: node for node in nodes for name in node.outputs if name}
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in made and name not in makers:
                raise ModelError(
                    f"{node} reads {name!r}, which is no input, no array and no node's output; "
                    f"an initialiser is missing or the file is incomplete"
                )
    ordered: list[W] = []
    pending = list(nodes)
    while pending:
        ready = []
        for node in pending:
            if all(not name or name in made for name in node.inputs):
                made.update(node.outputs)
                ready.append(node)
        if not ready:
            raise ModelError(f"the graph has a cycle through {', '.join(map(str, pending[:4]))}")
        placed = set(map(id, ready))
        ordered += ready
        pending = [node for node in pending if id(node) not in placed]
    return ordered


def element_count(shape: Shape) -> int | None:
    """Return the number of elements, or None if a size is open."""
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None
