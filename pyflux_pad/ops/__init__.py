"""The public functions. A call flows one way: engine, geometry (cached), plan, kernel, result.

Arrays are channels-first: ``x (N, C, *spatial)``, ``weight (C_out, C_in/groups, *kernel)``, one to three spatial axes.
The result is an array of the caller's own library, dtype and device.
"""

from .convolution import conv, conv_input, conv_transpose, conv_weight
from .folds import fold, unfold
from .gradients import vjp
from .pads import pad
from .planned import Plan, plan
from .pool_ranks import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from .pools import adaptive_avg_pool, adaptive_max_pool, avg_pool, lp_pool, max_pool
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
    "adaptive_avg_pool",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
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
    "fold",
    "lp_pool",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pad",
    "plan",
    "unfold",
    "vjp",
]
