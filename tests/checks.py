"""One engine, one case, one type against the oracle: the checks that the value tests share and that sabotage must trip.

Each raises AssertionError with the case in its message.
"""

import numpy as np
import oracle
from cases import TransposedCase, arrays, tolerance

import pyflux_pad as pp


def close(actual, desired, what):
    """Compare in the tolerance of `actual`'s type; integers are equal modulo 2**bits."""
    assert actual.shape == desired.shape, f"{what}: shape {actual.shape}, expected {desired.shape}"
    rtol, atol = tolerance(actual.dtype)
    exact = desired.astype(actual.dtype) if actual.dtype.kind in "iu" else desired
    np.testing.assert_allclose(actual, exact, rtol, atol, err_msg=str(what))


def forward(engine, case, dtype):
    """The result with and without a bias."""
    x, weight, bias, _ = arrays(case, dtype)
    function, definition = _pair(case)
    expected = definition(x, weight, **case.arguments)
    close(engine(function, x, weight, **case.arguments), expected, f"without a bias: {case!r}")
    expected = expected + bias.astype(expected.dtype).reshape(-1, *(1,) * len(case.size))
    close(engine(function, x, weight, bias, **case.arguments), expected, f"with a bias: {case!r}")


def transposes(engine, case, dtype):
    """`conv_input` and `conv_weight`, which do not conjugate."""
    x, weight, _, grad = arrays(case, dtype)
    close(engine(pp.conv_input, x.shape, weight, grad, **case.arguments),
          oracle.conv_input(x.shape, weight, grad, **case.arguments), f"conv_input of {case!r}")
    close(engine(pp.conv_weight, x, weight.shape, grad, **case.arguments),
          oracle.conv_weight(x, weight.shape, grad, **case.arguments), f"conv_weight of {case!r}")


def gradients(engine, case, dtype):
    """The vector-Jacobian product by x, weight and bias."""
    x, weight, bias, grad = arrays(case, dtype)
    function, definition = _pair(case)
    y, found = engine.vjp(function, x, weight, bias, grad_output=grad, **case.arguments)
    close(y, definition(x, weight, bias, **case.arguments), case)
    expected = (*gradients_of(case, x, weight, grad), grad.sum((0, *range(2, grad.ndim))))
    assert len(found) == len(expected), f"{len(found)} gradients for x, weight and bias"
    for name, gradient, definition in zip(("x", "weight", "bias"), found, expected, strict=True):
        close(gradient, definition, f"gradient by {name} of {case!r}")


def gradients_of(case, x, weight, grad):
    """Return the oracle's gradients by x and weight: the pullback conjugates the saved operand."""
    if not isinstance(case, TransposedCase):
        return (oracle.conv_input(x.shape, weight.conj(), grad, **case.arguments),
                oracle.conv_weight(x.conj(), weight.shape, grad, **case.arguments))
    # A transposed convolution is conv_input of the convolution whose high pad ends where the windows end.
    settings = case.arguments
    extra = settings.pop("output_padding")
    settings["padding"] = tuple((lo, hi - e) for (lo, hi), e in zip(case.padding, extra, strict=True))
    return (oracle.conv(grad, weight.conj(), **settings),
            oracle.conv_weight(grad, weight.shape, x.conj(), **settings))


def adjoint(engine, case, dtype):
    """``<conv(x, w), g> = <x, conv_input(g, conj(w))> = <w, conv_weight(conj(x), g)>``."""
    x, weight, _, grad = arrays(case, dtype)
    y = engine(pp.conv, x, weight, **case.arguments)
    by_x = engine(pp.conv_input, x.shape, weight.conj(), grad, **case.arguments)
    by_weight = engine(pp.conv_weight, x.conj(), weight.shape, grad, **case.arguments)
    products = [np.vdot(a, b) for a, b in ((y, grad), (x, by_x), (weight, by_weight))]
    # The sum cancels, so its error is measured by the size of its terms.
    scale = np.linalg.norm(y) * np.linalg.norm(grad) + 1
    assert np.ptp(np.real(products)) + np.ptp(np.imag(products)) <= tolerance(dtype)[0] * scale, (
        f"{case!r}: {products}")


def _pair(case):
    if isinstance(case, TransposedCase):
        return pp.conv_transpose, oracle.conv_transpose
    return pp.conv, oracle.conv
