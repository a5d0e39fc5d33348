"""The onnx package, imported when it is first needed."""

from __future__ import annotations

from typing import Any

from ..graph import ModelError

OLDEST_OPSET = 6
LARGEST = 2**31 - 1
"""Protocol buffers, and so a single ONNX file, hold no more bytes than this."""


def load_onnx(operation: str) -> Any:
    """Return the onnx package.

    Raises
    ------
    ModelError
        If it is not installed; the message names the extra that brings it.
    """
    try:
        import onnx
    except ImportError:
        raise ModelError(f"{operation} needs the package onnx; pip install 'pyflux-pad[onnx]'") from None
    return onnx
