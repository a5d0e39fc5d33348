"""Geometry: the sizes of a convolution and the padding plan. Integers are planned before arrays are touched."""

from .convolution import (
    ConvArguments,
    ConvGeometry,
    Sizes,
    arguments,
    cached_conv_geometry,
    cached_transposed_geometry,
    conv_geometry,
    quick_arguments,
    shape_of,
    spatial_ndim,
    transposed_geometry,
)
from .pad import PadGeometry, cached_pad_geometry, pad_geometry
from .plan import (
    STRATEGIES,
    AxisPlan,
    ConvPlan,
    build_conv_plan,
    cached_conv_plan,
    cached_padded_plan,
    plan_conv,
    plan_padded,
)
from .pool import AdaptiveGeometry, PoolGeometry, adaptive_geometry, cached_pool_geometry, pool_geometry, window_bounds

__all__ = [
    "STRATEGIES",
    "AdaptiveGeometry",
    "AxisPlan",
    "ConvArguments",
    "ConvGeometry",
    "ConvPlan",
    "PadGeometry",
    "PoolGeometry",
    "Sizes",
    "adaptive_geometry",
    "arguments",
    "build_conv_plan",
    "cached_conv_geometry",
    "cached_conv_plan",
    "cached_pad_geometry",
    "cached_padded_plan",
    "cached_pool_geometry",
    "cached_transposed_geometry",
    "conv_geometry",
    "pad_geometry",
    "plan_conv",
    "plan_padded",
    "pool_geometry",
    "quick_arguments",
    "shape_of",
    "spatial_ndim",
    "transposed_geometry",
    "window_bounds",
]
