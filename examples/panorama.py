"""What the padded cells of a panorama should send back: a picture of the gradient with and without `detach_padding`.

A 360-degree image goes on at its left border where its right border ends, so its width is padded "circular" and its
height "replicate", in one call. Each padded cell is a copy of a pixel. Whether the copy sends its gradient back to that
pixel depends on what the padded border is:

- with a 1x1 kernel the border itself is output, and a pixel that was copied counts once more for every copy: a seam
  of double weight runs along both edges. Detached, every pixel counts once.
- with a 3x3 kernel that keeps the size the border is only read. The gradient of the sum is the same for every column
  only if the copies do send it back; detached, the edge columns lose what they gave to the other side: a seam.

Run ``python examples/panorama.py [picture.png]``; it needs the extra `examples` (torch and matplotlib).
"""

import sys

import matplotlib
import numpy as np
import torch

import pyflux_pad as pp

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MODES = ("replicate", "circular")


def panorama(height=24, width=48):
    """A synthetic 360-degree image: a horizon, a sun and hills that close after one turn."""
    turn = np.linspace(0, 2 * np.pi, width, endpoint=False)
    rows = np.linspace(0, 1, height)[:, None]
    hills = 0.62 + 0.1 * np.sin(3 * turn) + 0.05 * np.cos(5 * turn)
    sky = 0.9 - 0.5 * rows + 0.6 * np.exp(-(((turn - 0.3) % (2 * np.pi) - 0.6) ** 2) * 6 - (rows - 0.3) ** 2 * 60)
    return torch.tensor(np.where(rows > hills, 0.25, sky))[None, None]


def gradient(image, kernel_size, detach):
    """The gradient of the sum of the convolution with a kernel of ones."""
    image = image.clone().requires_grad_()
    kernel = torch.ones(1, 1, kernel_size, kernel_size, dtype=image.dtype)
    y = pp.conv(image, kernel, padding=1, padding_mode=MODES, detach_padding=detach)
    return torch.autograd.grad(y.sum(), image)[0][0, 0]


def has_seam(grad):
    """Whether a column of the gradient differs from the others: around a full turn none should."""
    return bool((grad != grad[:, :1]).any())


def main(path="panorama.png"):
    image = panorama()
    figure, axes = plt.subplots(2, 3, figsize=(16, 6), constrained_layout=True)
    for row, kernel_size in zip(axes, (1, 3), strict=True):
        row[0].imshow(image[0, 0], cmap="viridis")
        row[0].set_title("panorama, to be padded by 1\nheight replicate, width circular")
        for axis, detach in zip(row[1:], (False, True), strict=True):
            grad = gradient(image, kernel_size, detach)
            # The left half is drawn at the right: the place where the borders meet comes to the middle.
            shown = axis.imshow(torch.roll(grad, grad.shape[1] // 2, 1), cmap="magma", vmin=0)
            figure.colorbar(shown, ax=axis, shrink=0.8)
            verdict = "seam" if has_seam(grad) else "no seam"
            what = f"{kernel_size}x{kernel_size} kernel of ones, detach_padding={detach}"
            axis.set_title(f"{what}\ngradient of the sum: {verdict} where the ends meet")
            print(f"{what}: gradient {grad.unique().tolist()}, {verdict}")
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
    figure.savefig(path, dpi=90)
    print(f"picture saved: {path}")
    return [has_seam(gradient(image, k, d)) for k in (1, 3) for d in (False, True)]


if __name__ == "__main__":
    # Free of a seam: the 1x1 kernel with detached padding, the 3x3 kernel without.
    sys.exit(main(*sys.argv[1:]) != [True, False, False, True])
