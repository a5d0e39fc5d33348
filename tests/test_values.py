"""Every engine x case x type against the loop oracle."""

import checks
import numpy as np
import oracle
import pytest
from cases import CONV_CASES, FLOATS, INTEGERS, TRANSPOSED_CASES, arrays
from engines import ENGINES

import pyflux_pad as pp

convs = pytest.mark.parametrize("case", CONV_CASES, ids=str)
every_case = pytest.mark.parametrize("case", CONV_CASES + TRANSPOSED_CASES, ids=str)
floats = pytest.mark.parametrize("dtype", FLOATS)
# Types that only the NumPy engine promises: half precision rounded once, integers modulo 2**bits.
numpy_only = pytest.mark.parametrize("engine", [e for e in ENGINES if e.id == "numpy"], ids=str)
narrow = pytest.mark.parametrize("dtype", ["float16", *INTEGERS])


@every_case
@floats
def test_forward(engine, case, dtype):
    checks.forward(engine, case, dtype)


@convs
@floats
def test_transposes(engine, case, dtype):
    checks.transposes(engine, case, dtype)


@every_case
@floats
def test_gradients(engine, case, dtype):
    checks.gradients(engine, case, dtype)


@numpy_only
@every_case
@narrow
def test_forward_narrow(engine, case, dtype):
    checks.forward(engine, case, dtype)


@numpy_only
@convs
@narrow
def test_transposes_narrow(engine, case, dtype):
    checks.transposes(engine, case, dtype)


@convs
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_adjoint_identity(engine, case, dtype):
    checks.adjoint(engine, case, dtype)


@convs
@floats
def test_gradients_of_conv_input(engine, case, dtype):
    """Cotangent u of ``conv_input(w, g)``: by weight ``conv_weight(u, conj(g))``, by g ``conv(u, conj(w))``."""
    cotangent, weight, _, grad = arrays(case, dtype)
    _, found = engine.vjp(pp.conv_input, case.x_shape, weight, grad, grad_output=cotangent, **case.arguments)
    expected = (oracle.conv_weight(cotangent, weight.shape, grad.conj(), **case.arguments),
                oracle.conv(cotangent, weight.conj(), **case.arguments))
    for name, gradient, definition in zip(("weight", "grad_output"), found, expected, strict=True):
        checks.close(gradient, definition, f"by {name}: {case!r}")


@convs
@floats
def test_gradients_of_conv_weight(engine, case, dtype):
    """Cotangent v of ``conv_weight(x, g)``: by x ``conv_input(v, conj(g))``, by g ``conv(conj(x), v)``."""
    x, cotangent, _, grad = arrays(case, dtype)
    _, found = engine.vjp(pp.conv_weight, x, case.weight_shape, grad, grad_output=cotangent, **case.arguments)
    expected = (oracle.conv_input(x.shape, cotangent, grad.conj(), **case.arguments),
                oracle.conv(x.conj(), cotangent, **case.arguments))
    for name, gradient, definition in zip(("x", "grad_output"), found, expected, strict=True):
        checks.close(gradient, definition, f"by {name}: {case!r}")


# ---------------------------------------------------------------- the 1d, 2d and 3d forms


def form(name, case):
    """Return ``conv2d`` and the like for the number of axes of a case."""
    return getattr(pp, name.format(f"{len(case.size)}d"))


def positional(case):
    """Return the settings of a case in torch's order, and those that torch has not, by name."""
    settings = case.arguments
    names = ["stride", "padding", "dilation", "groups"]
    if "output_padding" in settings:
        names = ["stride", "padding", "output_padding", "groups", "dilation"]
    return [settings.pop(name) for name in names], settings


@every_case
@pytest.mark.parametrize("batched", [True, False], ids=("batched", "unbatched"))
def test_forms(engine, case, batched):
    """``conv2d(x, weight, bias, stride, padding, dilation, groups)`` and its gradients, with or without a batch."""
    x, weight, bias, grad = arrays(case, "complex128")
    transposed = case in TRANSPOSED_CASES
    function = form("conv_transpose{}" if transposed else "conv{}", case)
    definition = oracle.conv_transpose if transposed else oracle.conv
    if not batched:
        x, grad = x[:1], grad[:1]
    expected = [definition(x, weight, bias, **case.arguments), *checks.gradients_of(case, x, weight, grad),
                grad.sum((0, *range(2, grad.ndim)))]
    if not batched:
        x, grad, expected[:2] = x[0], grad[0], [e[0] for e in expected[:2]]
    order, named = positional(case)
    checks.close(engine(function, x, weight, bias, *order, **named), expected[0], case)
    y, found = engine.vjp(function, x, weight, bias, grad_output=grad, **case.arguments)
    for result, definition in zip((y, *found), expected, strict=True):
        checks.close(result, definition, case)


@convs
def test_forms_of_the_transposes(engine, case):
    """``conv2d_input`` and ``conv2d_weight`` in the order of torch.nn.grad."""
    x, weight, _, grad = arrays(case, "float64")
    order, named = positional(case)
    checks.close(engine(form("conv{}_input", case), x.shape, weight, grad, *order, **named),
                 oracle.conv_input(x.shape, weight, grad, **case.arguments), case)
    checks.close(engine(form("conv{}_weight", case), x, weight.shape, grad, *order, **named),
                 oracle.conv_weight(x, weight.shape, grad, **case.arguments), case)


# ---------------------------------------------------------------- the ways to call


@every_case
@pytest.mark.engine("torch")
def test_numpy_arrays_on_torch(case):
    """``backend="torch"`` runs NumPy arrays there and gives NumPy arrays back."""
    x, weight, bias, _ = arrays(case, "float64")
    function, definition = ((pp.conv_transpose, oracle.conv_transpose) if case in TRANSPOSED_CASES
                            else (pp.conv, oracle.conv))
    y = function(x, weight, bias, **case.arguments, backend="torch")
    assert type(y) is np.ndarray
    checks.close(y, definition(x, weight, bias, **case.arguments), case)


@convs
def test_out(case):
    """The NumPy engine writes into `out` and returns it."""
    x, weight, bias, grad = arrays(case, "float32")
    out = np.full_like(grad, np.nan)
    assert pp.conv(x, weight, bias, **case.arguments, out=out) is out
    checks.close(out, oracle.conv(x, weight, bias, **case.arguments), case)


@convs
def test_not_contiguous(engine, case):
    """`contiguous=False` may give a view, of the same values."""
    x, weight, bias, _ = arrays(case, "float64")
    y = engine(pp.conv, x, weight, bias, **case.arguments, contiguous=False)
    checks.close(y, oracle.conv(x, weight, bias, **case.arguments), case)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinities_meet_zeros(engine):
    """Padding is zeros that are multiplied: an infinite tap over the padding is NaN, as in torch."""
    x, weight = np.ones((1, 1, 3)), np.array([[[np.inf, 1.0]]])
    settings = {"stride": (1,), "padding": ((1, 0),), "dilation": (1,)}
    y = engine(pp.conv, x, weight, **settings)
    np.testing.assert_array_equal(y, oracle.conv(x, weight, **settings))
    np.testing.assert_array_equal(y, [[[np.nan, np.inf, np.inf]]])
