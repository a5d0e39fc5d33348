"""The same function twice: by the package, and spelled in torch's own operators (`F.pad`, then no padding)."""

import functools

import pytest
from cases import arrays

import pyflux_pad as pp

torch = pytest.importorskip("torch")
F = torch.nn.functional
func = torch.func


def close(found, expected, rtol=1e-10):
    """Compare tensors or trees of them."""
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol)


def conv_by_torch(x, weight, bias=None, *, stride=1, padding, dilation=1, groups=1, flip_kernel=False):
    """The convolution in torch's own operators."""
    axes = len(padding)
    if flip_kernel:
        weight = weight.flip(list(range(2, weight.ndim)))
    x = F.pad(x, [side for pair in reversed(padding) for side in pair])
    return (F.conv1d, F.conv2d, F.conv3d)[axes - 1](x, weight, bias, stride, 0, dilation, groups)


def transpose_by_torch(shape, function, cotangent):
    """The transpose of a linear function of a tensor of this shape."""
    return func.vjp(function, cotangent.new_zeros(shape))[1](cotangent.conj())[0].conj()  # vjp conjugates


def twins(engine, case, operator, dtype="float64"):
    """Return an operator as a function of two tensors, by the package and by torch, and two operands."""
    x, weight, _, grad = (torch.tensor(a) for a in arrays(case, dtype))
    settings = {**case.arguments, "backend": engine.backend}
    reference = functools.partial(conv_by_torch, **case.arguments)
    if operator == "conv":
        return functools.partial(pp.conv, **settings), reference, (x, weight)
    if operator == "conv_input":
        return (lambda w, g: pp.conv_input(case.x_shape, w, g, **settings),
                lambda w, g: transpose_by_torch(case.x_shape, lambda x: reference(x, w), g), (weight, grad))
    return (lambda x, g: pp.conv_weight(x, case.weight_shape, g, **settings),
            lambda x, g: transpose_by_torch(case.weight_shape, lambda w: reference(x, w), g), (x, grad))


def cubed(function):
    """Return a scalar loss whose every derivative up to the third is one of the function too."""
    return lambda a, b: function(a, b).pow(3).mean()
