"""The 1d, 2d and 3d forms are called as torch's; what torch lacks is keyword-only."""

import inspect
import re

import pytest

import pyflux_pad as pp

torch = pytest.importorskip("torch")

AXES = pytest.mark.parametrize("axes", ["1d", "2d", "3d"])
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def documented(function):
    """Return the (name, default) pairs that the docstring of a torch builtin states on its first line."""
    found = re.search(rf"{function.__name__}\((.*?)\)\s*->", function.__doc__)
    assert found, f"torch no longer writes the signature of {function.__name__} in its docstring"
    arguments = found.group(1)
    pairs = (argument.partition("=") for argument in arguments.split(", "))
    return [(name, default if equals else None) for name, equals, default in pairs]


def positional(function):
    """Return the (name, default) pairs that can be given by position, defaults as they are written."""
    return [
        (p.name, None if p.default is p.empty else repr(p.default))
        for p in inspect.signature(function).parameters.values()
        if p.kind is POSITIONAL
    ]


def keyword_only(function):
    return {p.name for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}


@AXES
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_forward_forms(name, axes):
    ours, theirs = getattr(pp, name + axes), getattr(torch.nn.functional, name + axes)
    assert positional(ours) == documented(theirs)
    assert {"flip_kernel", "backend"} <= keyword_only(ours)


@AXES
@pytest.mark.parametrize("name", ["conv{}_input", "conv{}_weight"])
def test_gradient_forms(name, axes):
    ours, theirs = (getattr(module, name.format(axes)) for module in (pp, torch.nn.grad))
    assert positional(ours) == positional(theirs)
    assert {"flip_kernel", "backend"} <= keyword_only(ours)


SETTINGS = {"stride", "padding", "dilation", "groups", "flip_kernel", "backend"}


@pytest.mark.parametrize(("name", "operands", "keywords"), [
    ("conv", ("x", "weight", "bias"), SETTINGS | {"contiguous", "out"}),
    ("conv_transpose", ("x", "weight", "bias"), SETTINGS | {"output_padding", "output_size"}),
    ("conv_input", ("input_shape", "weight", "grad_output"), SETTINGS),
    ("conv_weight", ("x", "weight_shape", "grad_output"), SETTINGS),
    ("plan", ("x_shape", "weight_shape"),
     SETTINGS | {"dtype", "training", "strategy"}),
])
def test_general_functions(name, operands, keywords):
    """Operands by position, every setting by name only."""
    function = getattr(pp, name)
    assert tuple(n for n, _ in positional(function)) == operands
    assert keywords <= keyword_only(function)


def test_public_names():
    """What the package says it exports is there, and the names of this version are all said."""
    forms = {name.format(f"{axes}d") for axes in (1, 2, 3)
             for name in ("conv{}", "conv_transpose{}", "conv{}_input", "conv{}_weight")}
    assert {"conv", "conv_transpose", "conv_input", "conv_weight", "vjp", "plan", "Padding", "GeometryError",
            "BackendUnavailable", "available_backends", "set_default_backend", *forms} <= set(pp.__all__)
    assert all(hasattr(pp, name) for name in pp.__all__)
    assert all(getattr(pp, name).__doc__ for name in pp.__all__ if callable(getattr(pp, name)))
