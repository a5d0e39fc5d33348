"""The checks can fail: with the package broken on purpose, exactly the cases that can tell are told.

Each sabotage lets one plausible bug in. A check that a bug slips past would have passed on the bug.
"""

import checks
import engines
import pytest
import test_grids
from cases import CONV_CASES, TRANSPOSED_CASES

import pyflux_pad as pp
from pyflux_pad import derivatives
from pyflux_pad.geometry import convolution
from pyflux_pad.ops import call

every_case = (*CONV_CASES, *TRANSPOSED_CASES)
numpy_engines = pytest.mark.parametrize("engine", [e for e in engines.ENGINES if e.computes != "torch"], ids=str)


def caught(check, engine, cases, dtype="float64"):
    """Return the names of the cases on which a check fails."""
    names = set()
    for case in cases:
        try:
            check(engine, case, dtype)
        except AssertionError:
            names.add(case.name)
    return names


@pytest.fixture
def _read_anew(monkeypatch):
    """Arguments are read at every call: what a sabotage makes of them must not come from a cache nor stay in one."""
    monkeypatch.setattr(convolution, "_cached_arguments", convolution.arguments)
    monkeypatch.setattr(call, "_BOUND", {})


@pytest.fixture
def swap_sides(monkeypatch, _read_anew):
    """Low and high change places in every padding that is given."""
    parse = convolution.parse

    def swapped(padding, ndim):
        pairs = parse(padding, ndim)
        return pairs if isinstance(pairs, str) else tuple((high, low) for low, high in pairs)

    monkeypatch.setattr(convolution, "parse", swapped)


@pytest.fixture
def drop_flip(monkeypatch, _read_anew):
    """`flip_kernel` is accepted and forgotten."""
    arguments = convolution.ConvArguments
    monkeypatch.setattr(convolution, "ConvArguments", lambda *given: arguments(*given)._replace(flip_kernel=False))


def uneven(case):
    return any(low != high for low, high in case.padding)


@pytest.mark.usefixtures("swap_sides")
@pytest.mark.parametrize("check", [checks.forward, checks.gradients], ids=["forward", "gradients"])
def test_swapped_sides(engine, check):
    """Every case whose sides differ sees it, and no other."""
    assert caught(check, engine, every_case) == {case.name for case in every_case if uneven(case)}


@pytest.mark.usefixtures("swap_sides")
def test_swapped_sides_in_the_transposes(engine):
    assert caught(checks.transposes, engine, CONV_CASES) == {case.name for case in CONV_CASES if uneven(case)}


@pytest.mark.usefixtures("swap_sides")
def test_swapped_sides_in_the_grids(engine):
    """The asymmetric grids fail, the symmetric ones do not notice."""
    test_grids.hold(engine, pp.conv, test_grids.conv_references(3, False))
    with pytest.raises(AssertionError, match="combinations"):
        test_grids.hold(engine, pp.conv, test_grids.conv_references(3, True))
    with pytest.raises(AssertionError, match="combinations"):
        test_grids.hold(engine, pp.conv_transpose, test_grids.cropped_references(3))


@pytest.mark.usefixtures("swap_sides")
def test_the_adjoint_identity_alone_is_blind():
    """Swapped alike in all three, the identity still holds: that is why every value is held to the oracle too."""
    assert not caught(checks.adjoint, engines.ENGINES[0], CONV_CASES)


@pytest.mark.usefixtures("drop_flip")
@pytest.mark.parametrize("check", [checks.forward, checks.gradients], ids=["forward", "gradients"])
def test_dropped_flip(engine, check):
    assert caught(check, engine, every_case) == {case.name for case in every_case if case.flip_kernel}


@numpy_engines
@pytest.mark.parametrize(("operator", "position"), [("conv", 0), ("conv", 1), ("conv_input", 0), ("conv_input", 1)])
def test_dropped_gradient(monkeypatch, engine, operator, position):
    """One entry of the derivative table gives zeros: every case that uses the entry fails."""
    spoil(monkeypatch, engine, lambda pullback: lambda name, *given: tuple(
        gradient * 0 if (name, index) == (operator, position) else gradient
        for index, gradient in enumerate(pullback(name, *given))))
    cases = CONV_CASES if operator == "conv" else TRANSPOSED_CASES
    others = TRANSPOSED_CASES if operator == "conv" else CONV_CASES
    assert caught(checks.gradients, engine, cases) == {case.name for case in cases}
    assert not caught(checks.gradients, engine, others)


@numpy_engines
def test_dropped_conjugate(monkeypatch, engine):
    """Without the conjugate of the saved operand real types are right and complex ones are not."""
    spoil(monkeypatch, engine, lambda pullback: lambda name, operands, grad, call, _, *needed: pullback(
        name, operands, grad, call, lambda operand: operand, *needed))
    assert not caught(checks.gradients, engine, every_case)
    assert caught(checks.gradients, engine, every_case, "complex128") == {case.name for case in every_case}


def spoil(monkeypatch, engine, wrap):
    """Replace the pullback of the derivative table where an engine looks it up."""
    places = [derivatives]
    if engine.tensors:
        from pyflux_pad.backends import torch_ops

        places.append(torch_ops)
    for place in places:
        monkeypatch.setattr(place, "pullback", wrap(derivatives.__dict__["pullback"] if place is derivatives
                                                    else place.pullback))


def test_without_sabotage(engine):
    """What is caught above is caught because of the sabotage."""
    assert not caught(checks.forward, engine, every_case)
    assert not caught(checks.gradients, engine, every_case, "complex128")
