"""Porting: models of ONNX and torch in one neutral record, onto every engine and into other frameworks."""

from .flux import read_flux, write_flux
from .fusing import fold_bn
from .graph import Graph, ModelError, Node, Pads, Value
from .onnx import read_onnx, write_onnx
from .torch import read_torch, write_torch

__all__ = [
    "Graph",
    "ModelError",
    "Node",
    "Pads",
    "Value",
    "fold_bn",
    "read_flux",
    "read_onnx",
    "read_torch",
    "write_flux",
    "write_onnx",
    "write_torch",
]
