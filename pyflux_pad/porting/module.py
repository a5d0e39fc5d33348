"""A graph as a torch module: trainable, exportable, its state_dict under the names of the graph's arrays."""

from __future__ import annotations

from typing import Any

import torch

from .arrays.torch import TorchArrays, as_tensor
from .graph import Graph
from .run import execute, weights_of


class GraphModule(torch.nn.Module):
    """A graph whose arrays are parameters and buffers; called with the graph's inputs in order.

    Parameters
    ----------
    graph
        What to compute.
    backend
        The engine of convolutions, pools and pads; by default torch.

    Notes
    -----
    An array named ``features.0.weight`` is the parameter ``weight`` of a module ``features.0``, so the keys of the
    state_dict are the names in the graph; see `state_names` for those that cannot be. Integers, sizes and settings are
    part of the graph, not of the state.
    """

    def __init__(self, graph: Graph, backend: str | None = None) -> None:
        super().__init__()
        self.graph = graph
        self.backend = backend
        self.keys = state_names(graph)
        for name, key in self.keys.items():
            tensor = as_tensor(graph.arrays[name]).clone()
            *path, leaf = key.split(".")
            holder: torch.nn.Module = self
            for step in path:
                if step not in holder._modules:
                    holder.add_module(step, torch.nn.Module())
                holder = holder.get_submodule(step)
            if name in graph.parameters:
                holder.register_parameter(leaf, torch.nn.Parameter(tensor))
            else:
                holder.register_buffer(leaf, tensor)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the output, or a tuple of them."""
        names = [value.name for value in self.graph.inputs]
        if len(inputs) != len(names):
            raise TypeError(f"{self.graph.name} takes {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
        state = dict(self.named_parameters()) | dict(self.named_buffers())
        values: dict[str, Any] = {**self.graph.arrays}
        values |= {name: state[key] for name, key in self.keys.items()}
        values |= dict(zip(names, inputs, strict=True))
        outputs = tuple(execute(self.graph, TorchArrays(self.backend), values, finish=as_tensor).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def extra_repr(self) -> str:
        """Return the graph's name and size."""
        return f"{self.graph.name}, {len(self.graph.nodes)} nodes"


def state_names(graph: Graph) -> dict[str, str]:
    """Return the key in the state_dict of every array that is in it: its own name, wherever that can be a path.

    A name of which a part is empty, an attribute of modules or another array has its dots replaced by underscores,
    and underscores added until it is free.
    """
    names = sorted(weights_of(graph))
    taken = set(names) | {name.rsplit(".", count)[0] for name in names for count in range(1, name.count(".") + 1)}
    keys = {}
    for name in names:
        parts = name.split(".")
        paths = {".".join(parts[:count]) for count in range(1, len(parts))}
        key = name
        if not all(parts) or any(part in _RESERVED for part in parts) or paths & set(names):
            key = name.replace(".", "_")
            while key in taken or key in _RESERVED:
                key += "_"
            taken.add(key)
        keys[name] = key
    return keys


_RESERVED = {*dir(torch.nn.Module()), "graph", "backend", "keys"}
