"""Reading what `write_flux` wrote, and live models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Graph, ModelError
from . import safetensors
from .record import from_json

if TYPE_CHECKING:
    from ...flux import FluxModel


def read_flux(source: str | Path | FluxModel, input_shape: Sequence[int] | None = None) -> Graph:
    """Read a model from the folder that `write_flux` wrote, no Julia needed, or a live model of Flux's layers.

    Parameters
    ----------
    source
        The folder with ``graph.json`` and ``weights.safetensors``, or the model.
    input_shape
        For a live model, and only then: the shape of its input, ``(N, ...)``. Pads are those that Flux has resolved,
        adaptive pools and `flatten` become what they are at this size. The graph is the model in test mode.

    Returns
    -------
    Graph
        Equal to the one that was written: the same outputs and, kernels turned back, the same weights. Of a live model
        the arrays have its own names, kernels turned to cross-correlation.

    Raises
    ------
    ModelError
        If a file is missing, damaged, or does not fit the other; for a live model with a list of the layers that
        cannot be read, and why.

    Notes
    -----
    A max pool gives -inf where a window lies in the padding altogether, and NaN where it holds one; Flux gives its
    lowest finite number, and ignores NaN.
    """
    if not isinstance(source, (str, Path)):
        from .live import read_live

        if input_shape is None:
            raise ModelError("read_flux: a live model is read for inputs of one shape; give input_shape=(N, ...)")
        return read_live(source, input_shape)
    if input_shape is not None:
        raise ModelError(f"read_flux: input_shape={input_shape} is for live models; a written one has its own")
    place = Path(source)
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
