"""Padding by a mode, with or without the gradient of the padded cells."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import Engine, resolve
from ..geometry import PadGeometry, cached_pad_geometry, pad_geometry
from ..padding import GeometryError, Padding, explicit, parse_modes
from .call import Array, Modes, PaddingLike, public


@dataclass
class PadCall:
    """A padding bound to its engine, geometry and array."""

    engine: Engine
    geometry: PadGeometry
    x: Array
    value: complex

    def run(self) -> Array:
        """Return the padded array."""
        return self.engine.pad(self.geometry, self.x, self.value)

    def pullback(self, grad_output: Array) -> dict[str, Array]:
        """Return the gradient by x."""
        return {"x": self.engine.pad_transpose(self.geometry.differentiated(), grad_output)}


@public("x")
def pad(
    x: Array,
    padding: PaddingLike,
    mode: Modes = "constant",
    value: complex = 0.0,
    *,
    detach_padding: bool = False,
    backend: str | None = None,
) -> PadCall:
    """Pad the spatial axes of `x (N, C, *spatial)`, every side by its own amount.

    ``1234`` padded by 2 at the start and 3 at the end:

    ========== ============= ======= ========== =========== =============
    mode       result        numpy   torch      TensorFlow  NNlib
    ========== ============= ======= ========== =========== =============
    constant   00 1234 000   same    same       CONSTANT    pad_constant
    reflect    32 1234 321   same    same       REFLECT     pad_reflect
    replicate  11 1234 444   edge    same                   pad_repeat
    circular   34 1234 123   wrap    same                   pad_circular
    symmetric  21 1234 432   same               SYMMETRIC   pad_symmetric
    ========== ============= ======= ========== =========== =============

    Negative amounts crop first; what is left is then padded as ``numpy.pad`` does, beyond one period too. Reflecting an
    axis of length 1 repeats its cell.

    Parameters
    ----------
    x
        (N, C, *spatial), one to three spatial axes.
    padding
        An int for every side, one ``(low, high)`` pair per axis, or a `Padding`. One int per axis and flat lists are
        refused: NumPy, torch and this page would read them in three ways.
    mode
        A mode, or one per axis.
    value
        What "constant" adds; of x's dtype.
    detach_padding
        Whether the added cells send no gradient back to the cells they show. Wanted where the padded border is itself
        the output (each pixel then counts once, not once more for every copy); not wanted for a circular convolution
        that keeps the size, whose gradient is exact only with the copies.
    backend
        Name of the engine; by default the array's own.

    Returns
    -------
    array
        Never `x` itself nor a view of it.

    Raises
    ------
    GeometryError
        For an unknown mode, a wrong number of amounts, and an axis of which nothing is left to pad.
    TypeError
        For a value that the dtype cannot hold.
    """
    engine = resolve("pad", {"x": x}, backend)
    ndim = len(x.shape) - 2
    if ndim not in (1, 2, 3):
        raise GeometryError(f"pad: x must have 1 to 3 spatial axes after (N, C), got the shape {tuple(x.shape)}")
    try:
        pairs = _pairs(padding, ndim)
    except (GeometryError, TypeError) as error:
        raise type(error)(f"pad: {error}") from None
    modes = parse_modes(mode, ndim, "pad: mode")
    _check_value(x, value)
    plain = not engine.traced() and not engine.symbolic(x)
    build = cached_pad_geometry if plain else pad_geometry
    geometry = build("pad", tuple(x.shape[2:]), pairs, modes, bool(detach_padding))
    return PadCall(engine, geometry, x, value)


def _pairs(padding: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    if isinstance(padding, str):
        raise GeometryError(f"padding={padding!r} is a rule, which needs a kernel; give an int, pairs or a Padding")
    flat = not isinstance(padding, Padding) and hasattr(padding, "__len__")
    if flat and any(not hasattr(entry, "__len__") for entry in padding):
        raise GeometryError(
            f"padding={padding!r} has bare ints, which numpy.pad, torch's F.pad and one int per axis read in three "
            f"ways; write a (low, high) pair per axis, or Padding.from_torch({tuple(padding)}, {ndim})"
        )
    return explicit(padding, ndim)


def _check_value(x: Array, value: complex) -> None:
    """Check that the dtype can hold the constant."""
    if isinstance(value, bool) or not isinstance(value, numbers.Complex):
        raise TypeError(f"pad: value must be a number, got {value!r}")
    kind = getattr(x.dtype, "name", str(x.dtype).rpartition(".")[2])
    if not isinstance(value, numbers.Real) and "complex" not in kind:
        raise TypeError(f"pad: value={value!r} is complex, but x is {kind}")
    if "int" in kind:
        limits = np.iinfo(kind)
        if not limits.min <= value.real <= limits.max or value != int(value.real):
            raise TypeError(f"pad: value={value!r} is no {kind}, of which x is; give an integer in its range")
