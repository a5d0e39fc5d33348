"""Convolution with a different padding on every side, right to the last derivative, on engines that agree."""

from .backends import BackendInfo, BackendUnavailable, available_backends, set_default_backend
from .ops import (
    Plan,
    conv,
    conv1d,
    conv1d_input,
    conv1d_weight,
    conv2d,
    conv2d_input,
    conv2d_weight,
    conv3d,
    conv3d_input,
    conv3d_weight,
    conv_input,
    conv_transpose,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    conv_weight,
    pad,
    plan,
    vjp,
)
from .padding import GeometryError, Padding

__version__ = "0.1.0"

__all__ = [
    "BackendInfo",
    "BackendUnavailable",
    "GeometryError",
    "Padding",
    "Plan",
    "available_backends",
    "conv",
    "conv1d",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_input",
    "conv2d_weight",
    "conv3d",
    "conv3d_input",
    "conv3d_weight",
    "conv_input",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_weight",
    "pad",
    "plan",
    "set_default_backend",
    "vjp",
]
