"""The public functions. A call flows one way: engine, geometry (cached), plan, kernel, result.

Arrays are channels-first: ``x (N, C, *spatial)``, ``weight (C_out, C_in/groups, *kernel)``, one to three spatial axes.
The result is an array of the caller's own library, dtype and device.
"""

from .convolution import conv, conv_input, conv_transpose, conv_weight
from .gradients import vjp
from .pads import pad
from .planned import Plan, plan
from .ranks import (
    conv1d,
    conv1d_input,
    conv1d_weight,
    conv2d,
    conv2d_input,
    conv2d_weight,
    conv3d,
    conv3d_input,
    conv3d_weight,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)

__all__ = [
    "Plan",
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
    "vjp",
]
