"""safetensors files of ported models: a damaged one is a ModelError."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ... import safetensors
from ...safetensors import places, write
from ..graph import ModelError

__all__ = ["places", "read", "write"]


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file; raise ModelError if it is no whole one."""
    try:
        return safetensors.read(path)
    except ValueError as error:
        raise ModelError(str(error)) from None
