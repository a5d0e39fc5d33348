"""LeNet in Flux, trained from Python on scikit-learn's 8x8 digits, three times from the same start and batches.

Once by `pyflux_pad.flux.fit`, which is Zygote and Optimisers.jl; once by torch's Adam through `FluxModule`; and once
the same network in plain torch, whose losses the other two must follow. A variant with max pooling is trained too.

Run ``python examples/flux_digits.py [picture.png]``; it needs a Julia project with Flux (PYTHON_JULIACALL_PROJECT),
scikit-learn and, for the picture, matplotlib.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits

from pyflux_pad import flux

BATCH, COMPARED = 32, 50
PHASES = ((30, 0.008), (6, 0.0008))  # epochs and the learning rate of Adam, which begins anew in each


def digits():
    """Pictures (N, 1, 8, 8) from 0 to 1 and one-hot labels (N, 10): batches in a fixed order, and what is tested."""
    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(labels))
    pictures, one_hot = pictures[order], np.eye(10, dtype=np.float32)[labels[order]]
    starts = range(0, 1400 - BATCH, BATCH)
    batches = [(pictures[i : i + BATCH].copy(), one_hot[i : i + BATCH].copy()) for i in starts]
    return batches, pictures[1400:].copy(), labels[order][1400:]


def lenet(pool):
    return flux.FluxModel(
        flux.Chain(
            flux.Conv(1, 12, (5, 5), "relu", padding=2),
            pool((2, 2)),
            flux.Conv(12, 32, (3, 3), "relu", padding=((1, 1), (2, 0))),
            pool((2, 2)),
            flux.flatten,
            flux.Dense(128, 84, "relu"),
            flux.Dense(84, 10),
        )
    )


class TorchLeNet(torch.nn.Module):
    """The same network; a torch layer pads both sides alike, so the second padding is a layer of its own."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 12, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.AvgPool2d(2),
            torch.nn.ZeroPad2d((2, 0, 1, 1)),
            torch.nn.Conv2d(12, 32, 3),
            torch.nn.ReLU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(128, 84),
            torch.nn.ReLU(),
            torch.nn.Linear(84, 10),
        )

    def forward(self, x):
        return self.layers(x)


def flux_state(module):
    """The parameters of TorchLeNet for Flux: kernels turned by 180 degrees, matrices (in, out)."""
    state, found = module.state_dict(), {}
    for theirs, ours in ((0, 0), (4, 2), (8, 5), (10, 6)):
        weight = state[f"layers.{theirs}.weight"]
        turned = weight.flip(2, 3) if weight.ndim == 4 else weight.T
        found[f"layers.{ours}.weight"] = turned.numpy().copy()
        found[f"layers.{ours}.bias"] = state[f"layers.{theirs}.bias"].numpy().copy()
    return found


def train_by_torch(module, batches):
    """Return the losses of all steps of torch's Adam."""
    losses = []
    for epochs, rate in PHASES:
        optimiser = torch.optim.Adam(module.parameters(), rate)
        for epoch in range(epochs):
            for x, target in batches:
                loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(target))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
            print(f"\rtorch: epoch {epoch + 1}/{epochs}, loss {losses[-1]:.4f}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return np.array(losses)


def train_by_fit(model, batches):
    """Return the losses of all steps of Optimisers.jl's Adam."""
    phases = [flux.fit(model, batches, "logitcrossentropy", f"Adam({rate})", epochs) for epochs, rate in PHASES]
    return np.concatenate([history.losses for history in phases])


def draw(path, curves):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (whole, start) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for axes, steps in ((whole, len(curves["plain torch"])), (start, COMPARED)):
        for (name, losses), style in zip(curves.items(), ((3, "-"), (2, "--"), (1.2, ":")), strict=True):
            axes.plot(np.arange(1, steps + 1), losses[:steps], style[1], linewidth=style[0], label=name)
        axes.set(xlabel="step", ylabel="cross entropy")
    whole.set(title="LeNet on digits: one start, three trainers", yscale="log")
    start.set(title=f"the first {COMPARED} steps", ylim=(0, None))
    start.legend()
    figure.savefig(path, dpi=100)
    print(f"picture saved: {path}")


def main(path=None):
    batches, pictures, labels = digits()

    def accuracy(scores):
        return float((np.asarray(scores).argmax(1) == labels).mean())

    torch.manual_seed(0)
    plain = TorchLeNet()
    start = flux_state(plain)
    right, curves = {}, {}
    curves["plain torch"] = train_by_torch(plain, batches)
    right["plain torch"] = accuracy(plain(torch.from_numpy(pictures)).detach())

    model = lenet(flux.MeanPool)
    print(model.summary((BATCH, 1, 8, 8)))
    model.load_state_dict(start)
    curves["fit"] = train_by_fit(model, batches)
    right["fit"] = accuracy(model(pictures))

    model.load_state_dict(start)
    curves["FluxModule"] = train_by_torch(flux.FluxModule(model), batches)
    right["FluxModule"] = accuracy(model(pictures))

    with_maxima = lenet(flux.MaxPool)
    with_maxima.load_state_dict(start)
    train_by_fit(with_maxima, batches)
    right["fit, max pooling"] = accuracy(with_maxima(pictures))

    print("step  " + "  ".join(f"{name:>11}" for name in curves))
    for step in (0, 9, 24, COMPARED - 1, len(curves["fit"]) - 1):
        print(f"{step + 1:4}  " + "  ".join(f"{losses[step]:11.5f}" for losses in curves.values()))
    apart = max(abs(curves[name] - curves["plain torch"])[:COMPARED].max() for name in ("fit", "FluxModule"))
    print(f"largest difference from plain torch over {COMPARED} steps: {apart:.1e}")
    print("accuracy on new digits: " + ", ".join(f"{name} {share:.1%}" for name, share in right.items()))
    if path:
        draw(path, curves)
    return apart < 1e-4 and min(right.values()) >= 0.97


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
