"""Reading what `write_flux` wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..graph import Graph, ModelError
from . import safetensors
from .record import from_json


def read_flux(folder: str | Path) -> Graph:
    """Read a model from the folder that `write_flux` wrote: its record and its weights, no Julia needed.

    Parameters
    ----------
    folder
        The folder with ``graph.json`` and ``weights.safetensors``.

    Returns
    -------
    Graph
        Equal to the one that was written: the same outputs and, kernels turned back, the same weights.

    Raises
    ------
    ModelError
        If a file is missing, damaged, or does not fit the other.
    """
    place = Path(folder)
    for name in ("graph.json", "weights.safetensors"):
        if not (place / name).is_file():
            raise ModelError(f"read_flux: {place} has no {name}; give a folder that write_flux wrote")
    graph, flipped = from_json(place / "graph.json", safetensors.read(place / "weights.safetensors"))
    missing = sorted(set(flipped) - set(graph.arrays))
    if missing:
        raise ModelError(f"read_flux: {place}/graph.json names the kernels {missing}, which are not in the weights")
    return graph.replaced(arrays={
        name: np.ascontiguousarray(turned(array)) if name in flipped else array for name, array in graph.arrays.items()
    })  # fmt: skip


def turned(kernel: np.ndarray) -> np.ndarray:
    """Return a view of a kernel (two axes of channels, then space) with its spatial axes backwards."""
    return np.flip(kernel, tuple(range(2, kernel.ndim)))
