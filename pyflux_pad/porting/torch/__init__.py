"""Torch modules in and state dicts out of the neutral record."""

from .read import read_torch
from .write import write_torch

__all__ = ["read_torch", "write_torch"]
