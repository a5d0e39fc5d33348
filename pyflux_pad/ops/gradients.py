"""Gradients of NumPy and CuPy arrays, which record none by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import resolve
from ..padding import GeometryError
from .call import BUILDERS, Array


def vjp(function: Callable[..., Array], *arrays: Any, **arguments: Any) -> tuple[Array, Callable[[Array], tuple]]:
    """Return the value of a function of this package and its pullback, for NumPy and CuPy arrays.

    Parameters
    ----------
    function
        One of the public functions: `conv`, `conv_transpose`, `conv_input`, `conv_weight`, their 1d, 2d and 3d forms.
    *arrays
        Its array arguments in order, ``vjp(conv, x, weight, bias)``; a shape it needs is given by name,
        ``vjp(conv_input, weight, grad_output, input_shape=x.shape)``, or in its place among them.
    **arguments
        Its other arguments.

    Returns
    -------
    y, pullback
        The value, and a function from a gradient by y, of y's shape and dtype, to a tuple of the gradients by each of
        `arrays`. For complex dtypes a gradient is that of torch and JAX-like conventions with conjugation: the vector
        g of ``Re <g, dy>``.

    Raises
    ------
    TypeError
        For torch tensors (torch.autograd and torch.func differentiate those) and functions of other packages.
    """
    if function not in BUILDERS:
        raise TypeError(f"vjp: {function!r} is no differentiable function of pyflux_pad")
    build, names = BUILDERS[function]
    name = getattr(function, "__name__", "function")
    if any(_is_shape(array) for array in arrays):
        call = build(*arrays, **arguments)
    else:
        if len(arrays) > len(names):
            raise TypeError(f"vjp: {name} has {len(names)} array arguments {names}, got {len(arrays)}")
        call = build(**dict(zip(names, arrays, strict=False)), **arguments)
    values = [array for array in arrays if not _is_shape(array)]
    given = [key for key, array in zip(names, values, strict=False) if array is not None]
    if call.engine.family == "torch":
        raise TypeError(f"vjp: {name} of torch tensors is differentiated by torch.autograd.grad or torch.func.vjp")
    y = call.run()
    value = y[0] if isinstance(y, tuple) else y  # of maxima with indices, the maxima are differentiated

    def pullback(grad_output: Array) -> tuple[Array, ...]:
        """Return the gradients by each of the arrays."""
        resolve(f"vjp of {name}", {"y": value, "grad_output": grad_output}, None)
        if grad_output.shape != value.shape:
            raise GeometryError(
                f"vjp of {name}: grad_output must have y's shape {value.shape}, got {grad_output.shape}"
            )
        gradients = call.pullback(grad_output)
        return tuple(gradients[key] for key in given)

    return y, pullback


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list))
