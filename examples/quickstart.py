"""A tour of pyflux_pad in four real cases, each compared with a computation that shares no code with it.

Runs on NumPy alone; where torch is installed, torch is one more engine and one more witness.
"""

import sys
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import pyflux_pad as pp

say = partial(print, flush=True)
ENGINES = [name for name, engine in pp.available_backends().items() if engine.available]


class Witness:
    """Prints every comparison and counts those that failed."""

    failures = 0

    def compare(self, what, result, against, expected, tolerance):
        """Print the largest difference between two arrays; `tolerance` is relative to the largest value."""
        result, expected = np.asarray(result), np.asarray(expected)
        difference, largest = np.abs(result - expected).max(), np.abs(expected).max()
        sentence = f"{what} against {against}: largest difference {difference:.1e} of values up to {largest:.1e}"
        self.judge(sentence, difference <= tolerance * largest)

    def judge(self, sentence, holds):
        """Print a sentence and whether it holds."""
        say(f"   {'ok    ' if holds else 'WRONG '} {sentence}")
        self.failures += not holds


def sliding_windows(x, pads, kernel_size, stride=1):
    """The windows of a padded image batch: (N, C, H_out, W_out, kernel height, kernel width), a view."""
    padded = np.pad(x, ((0, 0), (0, 0), *pads))
    return sliding_window_view(padded, kernel_size, axis=(2, 3))[:, :, ::stride, ::stride]


def window_conv(x, weight, pads, stride=1):
    """Cross-correlation as a sum over windows, by NumPy alone."""
    windows = sliding_windows(x, pads, weight.shape[2:], stride)
    return np.einsum("ncyxij,ocij->noyx", windows, weight, optimize=True)


def torch_conv(x, weight, pad, stride=1):
    """Cross-correlation by torch's own F.pad and F.conv2d."""
    from torch import from_numpy
    from torch.nn import functional

    return functional.conv2d(functional.pad(from_numpy(x), pad), from_numpy(weight), stride=stride)


def flux_layer(witness):
    """The layer that cuDNN refused: nine rows above and nine columns to the left, none below and to the right."""
    say("1. Flux layer Conv((10, 10), 7 => 3, pad = (9, 0, 9, 0)) on an array of 100x100x7x100, float32")
    random = np.random.default_rng(1)
    x = random.standard_normal((100, 7, 100, 100), np.float32)
    weight = random.standard_normal((3, 7, 10, 10), np.float32)
    padding = pp.Padding.from_flux((9, 0, 9, 0), 2)
    say(f"   {padding} in (N, C, H, W) order; Flux flips the kernel, so flip_kernel=True")

    flipped = weight[:, :, ::-1, ::-1].copy()
    grad_output = random.standard_normal((100, 3, 100, 100), np.float32)
    some = slice(0, 100, 33)
    y_some = window_conv(x[some].astype(float), flipped, padding)
    # The gradient by the input is the full correlation with the kernel turned round, here the kernel as it was given.
    grad_x_some = window_conv(grad_output[some].astype(float), weight.swapaxes(0, 1), ((0, 9), (0, 9)))
    # A tap of the kernel meets the padded input shifted by its place: its gradient is one product, over all images.
    padded = np.pad(x, ((0, 0), (0, 0), *padding))
    corners = [(0, 0), (0, 9), (9, 0), (9, 9)]
    shifted = [padded[:, :, i : i + 100, j : j + 100] for i, j in corners]
    grad_corners = [np.tensordot(grad_output, cells, ((0, 2, 3), (0, 2, 3))) for cells in shifted]

    for engine in ENGINES:
        y, pullback = pp.vjp(pp.conv, x, weight, padding=padding, flip_kernel=True, backend=engine)
        grad_x, grad_weight = pullback(grad_output)
        found = [grad_weight[:, :, 9 - i, 9 - j] for i, j in corners]
        witness.compare(f"{engine}: output of 4 images", y[some], "sums over windows", y_some, 1e-5)
        witness.compare(f"{engine}: their gradient", grad_x[some], "sums over windows", grad_x_some, 1e-5)
        witness.compare(f"{engine}: gradient by the kernel's corners", found, "products", grad_corners, 1e-4)
        if "torch" in ENGINES:
            own = torch_conv(x, flipped, (9, 0, 9, 0))
            witness.compare(f"{engine}: output", y, "torch's F.pad and F.conv2d", own, 1e-5)


def temporal_network(witness):
    """A stack of causal convolutions, as in a temporal convolutional network: the future does not leak."""
    say("2. Three causal Conv1d layers with ReLU, kernel 3, dilations 1, 2, 4, on 60 time steps")
    random = np.random.default_rng(2)
    steps, channels, dilations = 60, 8, (1, 2, 4)
    weights = [random.standard_normal((channels, channels, 3)) for _ in dilations]
    # One copy of the sequence per output step: copy t differentiates the output of step t.
    x = np.repeat(random.standard_normal((1, channels, steps)), steps, axis=0)
    seed = np.zeros_like(x)
    seed[np.arange(steps), :, np.arange(steps)] = 1

    def sensitivity(padding, engine):
        """Entry (t, s): the largest gradient of output t by an input at step s."""
        hidden, pullbacks = x, []
        for weight, dilation in zip(weights, dilations, strict=True):
            y, pullback = pp.vjp(pp.conv, hidden, weight, padding=padding, dilation=dilation, backend=engine)
            pullbacks.append((pullback, y > 0))
            hidden = np.maximum(y, 0)
        gradient = seed
        for pullback, active in reversed(pullbacks):
            gradient, _ = pullback(gradient * active)
        return np.abs(gradient).max(axis=1)

    for engine in ENGINES:
        causal, same = (np.triu(sensitivity(padding, engine), 1).max() for padding in ("causal", "same"))
        witness.judge(f'{engine}: padding="causal": gradient by the future is exactly zero: {causal}', causal == 0)
        witness.judge(f'{engine}: padding="same", for contrast, leaks: {same:.1f}', same > 0)


def tensorflow_same(witness):
    """TensorFlow's SAME with stride 2: the odd pixel goes to the bottom and to the right."""
    say("3. TensorFlow's SAME, kernel 3x3, stride 2, on 4 images of 3x224x224, float32")
    random = np.random.default_rng(3)
    x = random.standard_normal((4, 3, 224, 224), np.float32)
    weight = random.standard_normal((16, 3, 3, 3), np.float32)
    padding = pp.Padding.same("tf", (224, 224), (3, 3), 2)
    say(f"   {padding}; Padding.same says where the odd pixel goes")
    expected = window_conv(x.astype(float), weight, ((0, 1), (0, 1)), 2)
    for engine in ENGINES:
        y = pp.conv(x, weight, stride=2, padding="same", backend=engine)
        witness.compare(f"{engine}: output", y, "sums over windows", expected, 1e-5)
        if "torch" in ENGINES:
            own = torch_conv(x, weight, (0, 1, 0, 1), stride=2)
            witness.compare(f"{engine}: output", y, "torch's F.pad and F.conv2d", own, 1e-5)
        symmetric = pp.conv(x, weight, stride=2, padding=1, backend=engine)
        difference = np.abs(symmetric - y).max()
        witness.judge(
            f"{engine}: padding=1, the usual guess, has the same shape and other values: {difference:.1f} apart",
            symmetric.shape == y.shape and difference > 1,
        )


def gradient_penalty(witness):
    """Train against large gradients: the derivative of a derivative, through a stride-2 convolution."""
    say("4. Gradient penalty, stride 2: [32, 3, 32, 32], 20 filters of 3x3, padding 1, float64")
    random = np.random.default_rng(4)
    x, weight = random.standard_normal((32, 3, 32, 32)), random.standard_normal((20, 3, 3, 3))
    direction = random.standard_normal(weight.shape)
    windows = sliding_windows(x, ((1, 1), (1, 1)), (3, 3), 2)

    def penalty_by_windows(weight):
        """Mean of the squared weight gradients of loss = mean(y * y)."""
        y = np.einsum("ncyxij,ocij->noyx", windows, weight, optimize=True)
        return np.mean(np.einsum("ncyxij,noyx->ocij", windows, 2 * y / y.size, optimize=True) ** 2)

    # The penalty is quadratic in the weight, so a central difference is exact up to rounding.
    slope = (penalty_by_windows(weight + direction) - penalty_by_windows(weight - direction)) / 2
    for engine in ENGINES:
        options = {"stride": 2, "padding": 1, "backend": engine}
        y = pp.conv(x, weight, **options)
        grad = pp.conv_weight(x, weight.shape, 2 * y / y.size, **options)
        # Backwards: penalty -> weight gradient -> output -> weight.
        by_y = pp.conv(x, 2 * grad / grad.size, **options) * 2 / y.size
        by_weight = pp.conv_weight(x, weight.shape, by_y, **options)
        value = penalty_by_windows(weight)
        witness.compare(f"{engine}: penalty", np.mean(grad**2), "sums over windows", value, 1e-10)
        along = np.sum(by_weight * direction)
        witness.compare(f"{engine}: its derivative", along, "a central difference", slope, 1e-9)
    if "torch" in ENGINES:
        penalty_under_torch(witness, x, weight)


def penalty_under_torch(witness, x, weight):
    """The same penalty by torch's autograd: conv takes tensors, and carries the NumPy engine under torch too."""
    import torch
    from torch.nn import functional

    def gradients(convolve):
        leaves = [torch.tensor(array, requires_grad=True) for array in (x, weight)]
        pooled = functional.avg_pool2d(convolve(*leaves).square(), 2)
        (grad,) = torch.autograd.grad(pooled.mean(), leaves[1], create_graph=True)
        return torch.autograd.grad(grad.square().mean(), leaves)

    expected = gradients(partial(functional.conv2d, stride=2, padding=1))
    for engine in ("torch", "numpy"):
        results = gradients(partial(pp.conv, stride=2, padding=1, backend=engine))
        for name, result, own in zip(("input", "weight"), results, expected, strict=True):
            what = f"torch tensors on {engine}: gradient of the penalty by the {name}"
            witness.compare(what, result, "torch's own conv2d", own, 1e-10)


def main():
    """Run the tour; the exit status is 1 if a comparison failed."""
    say(f"engines: {', '.join(ENGINES)}")
    if "torch" not in ENGINES:
        say("torch is not installed: the tour goes on without it")
    witness = Witness()
    for chapter in (flux_layer, temporal_network, tensorflow_same, gradient_penalty):
        chapter(witness)
    say("every comparison holds" if not witness.failures else f"{witness.failures} comparisons failed")
    return 1 if witness.failures else 0


if __name__ == "__main__":
    sys.exit(main())
