"""Train a small torch network whose convolutions run in Julia's NNlib, and the same network on torch's own kernels.

Both start from the same parameters and see the same batches, so their losses must stay together. Autograd and the
optimiser are torch's, the convolutions and their gradients are NNlib's. The padding is asymmetric, and the channels
grow where the picture shrinks.

Run ``python examples/train_through_nnlib.py [picture.png]``; it needs a Julia with NNlib (``pyflux-pad julia`` says
what there is) and, for the picture, matplotlib.
"""

import sys

import torch
import torch.nn.functional as F

import pyflux_pad as pp
from pyflux_pad import nn

SHAPES = ("disc", "ring", "cross", "bar")
STEPS = 120


def pictures(count, generator):
    """Noisy 20x20 pictures of four shapes at random places, and which shape each shows."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    centre = 7 + 6 * torch.rand(count, 2, 1, 1, generator=generator)
    axis = torch.arange(20.0)
    down, across = axis[:, None] - centre[:, 0], axis[None, :] - centre[:, 1]
    radius = (down**2 + across**2).sqrt()
    cross = torch.minimum(down.abs(), across.abs()) < 1
    drawn = torch.stack([radius < 4, (radius - 4).abs() < 1, cross & (radius < 6), (down.abs() < 1.5) & (radius < 6)])
    chosen = drawn[labels, torch.arange(count)].float()
    return (chosen + 0.4 * torch.randn(chosen.shape, generator=generator))[:, None], labels


def network(backend):
    """Strided convolutions with TensorFlow's SAME pads, (0, 1) on both axes."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding="same", backend=backend),
        torch.nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding="same", backend=backend),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 5 * 5, len(SHAPES)),
    )


def train(backend):
    """Return the losses of all steps and the share of new pictures that are named rightly."""
    model, generator = network(backend), torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(model.parameters(), 6e-3)
    losses = []
    for step in range(STEPS):
        images, labels = pictures(64, generator)
        loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        print(f"\r{backend}: step {step + 1}/{STEPS}, loss {losses[-1]:.4f}", end="", file=sys.stderr)
    print(file=sys.stderr)
    images, labels = pictures(400, generator)
    with torch.no_grad():
        return losses, (model(images).argmax(1) == labels).float().mean().item()


def draw(path, curves):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axis.plot(range(1, len(losses) + 1), losses, style, linewidth=2, label=f"convolutions on {name}")
    axis.set(xlabel="step", ylabel="cross entropy", ylim=(0, None), title="one network, two engines")
    axis.legend()
    figure.savefig(path, dpi=100)
    print(f"picture saved: {path}")


def main(path=None):
    info = pp.julia_info()
    print(f"Julia {info.julia}, NNlib {info.nnlib}, torch {torch.__version__}")
    curves, right = {}, {}
    for backend in ("torch", "julia"):
        curves[backend], right[backend] = train(backend)
    print("step    torch   julia")
    for step in (0, 9, 29, 59, STEPS - 1):
        print(f"{step + 1:4}  {curves['torch'][step]:7.4f} {curves['julia'][step]:7.4f}")
    apart = max(abs(a - b) for a, b in zip(curves["torch"], curves["julia"], strict=True))
    print(f"largest difference of the losses: {apart:.1e}; named rightly: {right['torch']:.1%}, {right['julia']:.1%}")
    if path:
        draw(path, curves)
    return apart < 1e-3 and curves["julia"][-1] < 0.2 and right["julia"] > 0.9


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
