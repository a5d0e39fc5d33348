"""ONNX files in and out of the neutral record."""

from .read import count_operators, read_onnx
from .write import write_onnx

__all__ = ["count_operators", "read_onnx", "write_onnx"]
