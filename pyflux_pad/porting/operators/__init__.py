"""The operators: one table, each written once against the small array library of `arrays`.

Convolutions, pools and pads are this package's own functions on any engine; everything else is arithmetic of the
engine's array library. Importing this package fills the table.
"""

from . import elementwise, normalization, recurrent, reductions, resize, shapes, windows
from .table import OPERATORS, REQUIRED, Operator

__all__ = [
    "OPERATORS",
    "REQUIRED",
    "Operator",
    "elementwise",
    "normalization",
    "recurrent",
    "reductions",
    "resize",
    "shapes",
    "windows",
]
