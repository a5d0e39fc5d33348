"""Flux in and out: a graph becomes a folder with a readable Julia model, and the folder a graph again."""

from .read import read_flux
from .write import write_flux

__all__ = ["read_flux", "write_flux"]
