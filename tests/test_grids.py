"""The grids on which convolutions with uneven leftovers have classically gone wrong: every legal combination.

One test per kernel size loops over the rest, so that a thousand combinations cost a handful of tests; all that fail are
reported together. Torch's autograd in float64 is the reference (`F.pad`, then a convolution without padding).
"""

import dataclasses
import functools
import itertools

import checks
import numpy as np
import oracle
import pytest
from cases import TransposedCase

import pyflux_pad as pp

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.engine("torch")

EXACT = 1e-10


@dataclasses.dataclass(frozen=True)
class Reference:
    """A call, its operands, and the results that torch or the oracle gives."""

    arguments: dict
    operands: tuple
    grad_output: np.ndarray
    expected: tuple
    """The output, then the gradients by each operand."""


def hold(engine, function, references):
    """Compare output and gradients of every reference; report all that differ."""
    failures = []
    for reference in references:
        y, gradients = engine.vjp(function, *reference.operands, grad_output=reference.grad_output,
                                  **reference.arguments)
        for name, found, expected in zip(("y", "x", "weight", "bias"), (y, *gradients), reference.expected,
                                         strict=False):
            worst = np.abs(found - expected).max() if found.shape == expected.shape else np.inf
            if not worst <= EXACT:
                failures.append(f"{name} off by {worst:.1e}: x {reference.operands[0].shape}, {reference.arguments}")
    assert references
    assert not failures, f"{len(failures)} of {len(references)} combinations, the first:\n" + "\n".join(failures[:10])


def through_torch(function, operands, arguments):
    """Run torch's autograd on NumPy operands; return the output's cotangent and the results."""
    leaves = [torch.tensor(a, requires_grad=True) for a in operands]
    y = function(*leaves)
    grad = torch.from_numpy(np.random.default_rng(y.numel()).standard_normal(y.shape))
    results = (y.detach(), *torch.autograd.grad(y, leaves, grad))
    return Reference(arguments, operands, grad.numpy(), tuple(r.numpy() for r in results))


# ---------------------------------------------------------------- convolution

KERNELS, STRIDES, PADS, HEIGHTS, WIDTHS = range(1, 8), range(1, 8), range(5), (12, 15), (10, 15)


@functools.cache
def conv_references(kernel, asymmetric):
    """Return the combinations of one kernel size: channels 3 -> 8, batch 2."""
    draw = np.random.default_rng(kernel).standard_normal
    weight, references = draw((8, 3, kernel, kernel)), []
    for height, width in itertools.product(HEIGHTS, WIDTHS):
        x = draw((2, 3, height, width))
        for stride, pad in itertools.product(STRIDES, PADS):
            lo, hi = (pad, 4 - pad) if asymmetric else (pad, pad)
            if min(height, width) + lo + hi < kernel:
                continue
            references.append(through_torch(
                lambda x, w, lo=lo, hi=hi, stride=stride: F.conv2d(F.pad(x, (lo, hi, lo, hi)), w, stride=stride),
                (x, weight), {"stride": stride, "padding": ((lo, hi), (lo, hi)) if asymmetric else pad}))
    return references


@pytest.mark.parametrize("asymmetric", [False, True], ids=("symmetric", "asymmetric"))
@pytest.mark.parametrize("kernel", KERNELS)
def test_conv_grid(engine, kernel, asymmetric):
    hold(engine, pp.conv, conv_references(kernel, asymmetric))


def test_conv_grid_is_whole():
    """No combination is illegal, so none may be missing."""
    counts = {len(conv_references(kernel, asymmetric)) for kernel in KERNELS for asymmetric in (False, True)}
    assert counts == {len(STRIDES) * len(PADS) * len(HEIGHTS) * len(WIDTHS)}


# ---------------------------------------------------------------- transposed convolution

T_KERNELS, T_STRIDES, T_DILATIONS, T_PADS, T_GROUPS = range(1, 6), range(1, 5), (1, 2), range(3), (1, 2)


def transposed_settings(kernel):
    """Yield (stride, dilation, pad, output padding, groups), all but those without an output."""
    for stride, dilation, pad, groups in itertools.product(T_STRIDES, T_DILATIONS, T_PADS, T_GROUPS):
        for extra in range(max(stride, dilation)):
            if 2 * stride + dilation * (kernel - 1) + 1 - 2 * pad + extra >= 1:
                yield stride, dilation, pad, extra, groups


@functools.cache
def transposed_references(kernel):
    """Return the combinations of one kernel size with torch's values; 3x4 pixels, four input channels, a bias."""
    draw = np.random.default_rng(kernel).standard_normal
    x, weights, references = draw((2, 4, 3, 4)), {g: draw((4, 6 // g, kernel, kernel)) for g in T_GROUPS}, []
    bias = draw(6)
    for stride, dilation, pad, extra, groups in transposed_settings(kernel):
        call = functools.partial(F.conv_transpose2d, stride=stride, padding=pad, output_padding=extra, groups=groups,
                                 dilation=dilation)
        references.append(through_torch(call, (x, weights[groups], bias), call.keywords))
    return references


@functools.cache
def cropped_references(kernel):
    """Return the same combinations cropped by (pad, 2 - pad) and (2 - pad, pad) with the oracle's values."""
    references = []
    for stride, dilation, pad, extra, groups in transposed_settings(kernel):
        case = TransposedCase("grid", (3, 4), (kernel, kernel), ((pad, 2 - pad), (2 - pad, pad)), (stride,) * 2,
                              (dilation,) * 2, groups, (4 // groups, 6 // groups), output_padding=(extra,) * 2)
        if min(case.out) < 1:
            continue
        draw = np.random.default_rng(pad).standard_normal
        x, weight, bias, grad = map(draw, (case.x_shape, case.weight_shape, 6, case.y_shape))
        y = oracle.conv_transpose(x, weight, bias, **case.arguments)
        expected = (y, *checks.gradients_of(case, x, weight, grad), grad.sum((0, 2, 3)))
        references.append(Reference(case.arguments, (x, weight, bias), grad, expected))
    return references


@pytest.mark.parametrize("kernel", T_KERNELS)
def test_conv_transpose_grid(engine, kernel):
    hold(engine, pp.conv_transpose, transposed_references(kernel))


@pytest.mark.parametrize("kernel", T_KERNELS)
def test_conv_transpose_grid_asymmetric(engine, kernel):
    hold(engine, pp.conv_transpose, cropped_references(kernel))


def test_conv_transpose_grid_is_whole():
    """Every output padding below max(stride, dilation) is there: 21 for each pad and group count, when legal."""
    assert len(transposed_references(5)) == 21 * len(T_PADS) * len(T_GROUPS)
    assert {r.arguments["output_padding"] for r in transposed_references(3)} == {0, 1, 2, 3}
