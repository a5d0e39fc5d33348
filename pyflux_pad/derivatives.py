"""The one table of derivatives. Every gradient of any order, on every engine, comes from here.

The three operators of a convolution are bilinear and closed under differentiation:

============================== ====================== ======================
of                             by first argument      by second argument
============================== ====================== ======================
conv(x, w), cotangent g        conv_input(g, w)       conv_weight(x, g)
conv_input(g, w), cotangent u  conv(u, w)             conv_weight(u, g)
conv_weight(x, g), cotangent v conv_input(g, v)       conv(x, v)
============================== ====================== ======================

A vector-Jacobian product conjugates the saved operand of a complex dtype (the other one of the pair); the operators
themselves never conjugate, and a Jacobian-vector product does not either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

FIRST, SECOND, COTANGENT = 0, 1, 2


class Term(NamedTuple):
    """A gradient: the operator to call and which of (first operand, second operand, cotangent) it is given."""

    operator: str
    operands: tuple[int, int]


TABLE: dict[str, tuple[Term, Term]] = {
    "conv": (Term("conv_input", (COTANGENT, SECOND)), Term("conv_weight", (FIRST, COTANGENT))),
    "conv_input": (Term("conv", (COTANGENT, SECOND)), Term("conv_weight", (COTANGENT, FIRST))),
    "conv_weight": (Term("conv_input", (SECOND, COTANGENT)), Term("conv", (FIRST, COTANGENT))),
}


def pullback(
    operator: str,
    operands: tuple[Any, Any],
    cotangent: Any,
    call: Callable[[str, Any, Any], Any],
    conjugate: Callable[[Any], Any],
    needed: Sequence[bool] = (True, True),
) -> tuple[Any, Any]:
    """Return the gradients of a bilinear operator by its two operands, None where not needed.

    Parameters
    ----------
    operator
        A key of `TABLE`.
    operands
        What the operator was called with.
    cotangent
        Gradient of its result.
    call
        ``call(name, first, second)`` runs an operator with the geometry of the original call.
    conjugate
        Complex conjugate of a saved operand.
    needed
        Which of the two gradients to compute.
    """
    gradients: list[Any] = []
    for term, wanted in zip(TABLE[operator], needed, strict=True):
        if not wanted:
            gradients.append(None)
            continue
        first, second = (cotangent if index == COTANGENT else conjugate(operands[index]) for index in term.operands)
        gradients.append(call(term.operator, first, second))
    return gradients[0], gradients[1]


def tangent(
    operator: str,
    operands: tuple[Any, Any],
    tangents: Sequence[Any],
    call: Callable[[str, Any, Any], Any],
) -> Any:
    """Return the Jacobian-vector product of a bilinear operator: its value at each tangent in turn, added up."""
    parts = []
    if tangents[0] is not None:
        parts.append(call(operator, tangents[0], operands[1]))
    if tangents[1] is not None:
        parts.append(call(operator, operands[0], tangents[1]))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]
