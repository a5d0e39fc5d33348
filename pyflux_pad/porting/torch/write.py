"""Writing for torch: the state_dict of the module that a graph becomes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..files import refuse_existing, write_whole
from ..graph import Graph, ModelError


def write_torch(graph: Graph, path: str | Path, *, force: bool = False) -> None:
    """Write the state_dict of ``graph.to_torch()`` as a safetensors file, for ``safetensors.torch.load_file``.

    Parameters
    ----------
    graph
        Whose floating-point arrays to write, under their own names.
    path
        A file; its folder must exist. It appears complete or not at all.
    force
        Whether to replace a file that exists.

    Raises
    ------
    ModelError
        If there is a file already, or torch or safetensors is missing.
    """
    refuse_existing("write_torch", path, force)
    try:
        from safetensors.torch import save_file

        from ..arrays.torch import as_tensor
        from ..module import state_names
    except ImportError:
        raise ModelError("write_torch needs torch and safetensors; pip install 'pyflux-pad[torch,onnx]'") from None
    state = {key: as_tensor(graph.arrays[name]).contiguous() for name, key in state_names(graph).items()}
    metadata = {"format": "pt", "producer": "pyflux_pad"}
    write_whole("write_torch", path, lambda place: save_file(state, place, metadata), force)


def with_state(graph: Graph, path: str | Path) -> Graph:
    """Return a graph with the arrays that `write_torch` wrote of it; of its own only the shapes are read."""
    from safetensors.torch import load_file

    from ..arrays.torch import as_array
    from ..module import state_names

    state = load_file(path)
    loaded: Mapping[str, np.ndarray] = {name: as_array(state[key]) for name, key in state_names(graph).items()}
    return graph.replaced(arrays={**graph.arrays, **loaded})
