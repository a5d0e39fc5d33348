"""Live Flux models from Python: built, trained and wrapped. The first model starts Julia, the import does not."""

from .model import FluxModel

__all__ = ["FluxModel"]
