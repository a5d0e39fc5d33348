"""Live Flux models from Python: built, trained and wrapped. The first model starts Julia, the import does not."""

from typing import TYPE_CHECKING, Any

from .bridge import FluxError, available
from .layers import (
    ACTIVATIONS,
    AdaptiveMaxPool,
    AdaptiveMeanPool,
    BatchNorm,
    Chain,
    Conv,
    ConvTranspose,
    CrossCor,
    Dense,
    DepthwiseConv,
    Dropout,
    GlobalMaxPool,
    GlobalMeanPool,
    GroupNorm,
    Layer,
    LayerNorm,
    MaxPool,
    MeanPool,
    Parallel,
    PixelShuffle,
    SkipConnection,
    Upsample,
    flatten,
)
from .model import FluxModel
from .training import History, LossNotFinite, Step, fit

if TYPE_CHECKING:
    from .module import FluxModule

__all__ = [
    "ACTIVATIONS",
    "AdaptiveMaxPool",
    "AdaptiveMeanPool",
    "BatchNorm",
    "Chain",
    "Conv",
    "ConvTranspose",
    "CrossCor",
    "Dense",
    "DepthwiseConv",
    "Dropout",
    "FluxError",
    "FluxModel",
    "FluxModule",
    "GlobalMaxPool",
    "GlobalMeanPool",
    "GroupNorm",
    "History",
    "Layer",
    "LayerNorm",
    "LossNotFinite",
    "MaxPool",
    "MeanPool",
    "Parallel",
    "PixelShuffle",
    "SkipConnection",
    "Step",
    "Upsample",
    "available",
    "fit",
    "flatten",
]


def __getattr__(name: str) -> Any:
    if name == "FluxModule":  # the one part that needs torch
        from .module import FluxModule

        return FluxModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
