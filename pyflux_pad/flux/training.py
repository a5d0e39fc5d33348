"""Training in Julia: Zygote's gradients, a rule of Optimisers.jl, and losses of Julia, torch or NumPy."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from ..console import Progress, notice
from .bridge import Kept, ask, checked, describe
from .model import FluxModel

LOSSES = ("mse", "crossentropy", "logitcrossentropy")
"""The names of Flux's losses; any other text is Julia code."""


class Step(NamedTuple):
    """What a callback is told: epoch and step, counted from 1, steps over all epochs, and the loss before the step."""

    epoch: int
    step: int
    loss: float


@dataclass(eq=False)
class History:
    """What a training did.

    Attributes
    ----------
    losses
        The loss of every step, before it, float64.
    epochs
        The mean loss of every epoch that was finished, float64.
    interrupted
        Whether Ctrl-C ended it.
    """

    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    epochs: np.ndarray = field(default_factory=lambda: np.zeros(0))
    interrupted: bool = False

    def plot(self, path: str | Path | None = None, axes: Any = None) -> Any:
        """Draw the losses with matplotlib, on new axes or given ones; save the picture to a path; return the axes."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(7, 4), layout="constrained").add_subplot()
        axes.plot(np.arange(1, len(self.losses) + 1), self.losses)
        axes.set(xlabel="step", ylabel="loss")
        if path is not None:
            axes.figure.savefig(path, dpi=100)
        return axes


class LossNotFinite(FloatingPointError):
    """A loss was NaN or infinite: training stopped, and the model has the last state whose loss was finite.

    Attributes
    ----------
    history
        What was done until then.
    """

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message)
        self.history = history


def fit(
    model: FluxModel,
    data: Iterable[tuple[Any, Any]],
    loss: str | Callable[[Any, Any], Any] = "mse",
    optimiser: str = "Adam",
    epochs: int = 1,
    callbacks: Sequence[Callable[[Step], Any]] = (),
) -> History:
    """Train a model in Julia, with a progress bar where a person looks; it is in training mode meanwhile.

    Parameters
    ----------
    model
        What to train, in place.
    data
        Pairs ``(input, target)``, gone through once per epoch: arrays, a tuple of arrays for a model of several inputs.
        NumPy arrays or torch tensors on the CPU.
    loss
        ``"mse"``, ``"crossentropy"`` (of probabilities) and ``"logitcrossentropy"`` are Flux's means over the batch;
        their targets have the shape of the prediction, one-hot for the last two. Another text is the code of a Julia
        function ``(prediction, target) -> number`` on arrays with reversed axes. A Python function is called as
        ``loss(prediction, target)`` with the array type of the target: of torch tensors it returns a scalar, which
        torch differentiates; of NumPy arrays it returns ``(loss, gradient by the prediction)``.
    optimiser
        The name of a rule of Optimisers.jl, or its code, such as ``"OptimiserChain(ClipNorm(1f0), Adam(1f-3))"``. Its
        state begins anew at every call.
    epochs
        How often to go through the data.
    callbacks
        Called after every step.

    Returns
    -------
    History
        The losses; after Ctrl-C, which ends training between two steps, those until then.

    Raises
    ------
    LossNotFinite
        As soon as a loss is NaN or infinite.
    TypeError, ValueError
        For data, a loss or an optimiser that is none of the above, and what a call of the model refuses.
    """
    trainer = _Trainer(model, loss, optimiser)
    was_training = model.training
    total = epochs * len(data) if hasattr(data, "__len__") else 1  # type: ignore
    losses: list[float] = []
    means: list[float] = []
    history = History()
    model.train()
    try:
        with _Interrupt() as interrupt, Progress("training", total) as bar:
            for epoch in range(1, epochs + 1):
                start = len(losses)
                for batch in data:
                    value = trainer.step(batch, first=not losses)
                    if not math.isfinite(value):
                        raise LossNotFinite(_not_finite(value, len(losses) + 1, epoch), history)
                    losses.append(value)
                    bar.label = f"epoch {epoch}/{epochs}, loss {value:.4g}"
                    bar.step()
                    for callback in callbacks:
                        callback(Step(epoch, len(losses), value))
                    if interrupt.came:
                        history.interrupted = True
                        return history
                if len(losses) == start:
                    raise ValueError(
                        f"fit: data has no batches in epoch {epoch}; a generator can be gone through once, so give a "
                        f"list or a DataLoader"
                    )
                means.append(float(np.mean(losses[start:])))
    finally:
        history.losses, history.epochs = np.array(losses), np.array(means)
        model.train(was_training)
    return history


def _not_finite(value: float, step: int, epoch: int) -> str:
    kept = f"the state of step {step - 1}, the last with a finite loss" if step > 1 else "the state it began with"
    return (
        f"fit: the loss is {value} at step {step} (epoch {epoch}); the model has {kept}. Look at that batch, or try a "
        f"smaller learning rate"
    )


class _Interrupt:
    """Ctrl-C as a flag while training runs on the main thread; a second one is a KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.came = False
        self._on_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> _Interrupt:
        if self._on_main:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_main:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True


class _Trainer:
    """A rule with its state, and a loss."""

    def __init__(self, model: FluxModel, loss: str | Callable[[Any, Any], Any], optimiser: str) -> None:
        self.model, self.loss = model, loss
        if not isinstance(optimiser, str):
            raise TypeError(
                f"fit: optimiser is a {type(optimiser).__name__}; it is the name or the code of a rule of "
                f'Optimisers.jl, "Adam(1f-3)"'
            )
        self.kept = Kept(int(ask("fit", "make_trainer", [model.kept.number], optimiser)))
        if isinstance(loss, str):
            self.kept_loss = Kept(int(ask("fit", "make_loss", text=loss)))
        elif not callable(loss):
            raise TypeError(f"fit: loss is a {type(loss).__name__}; give {', '.join(LOSSES)}, Julia code or a function")

    def step(self, batch: Any, first: bool) -> float:
        """Make a step and return the loss before it; where that is not finite, go back to the last state whose was."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            found = f"{len(batch)} entries" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
            raise TypeError(f"fit: data must give pairs (input, target), got {found}")
        x, target = batch
        inputs = [_numpy("the input", part) for part in (x if isinstance(x, (tuple, list)) else (x,))]
        ask("fit", "save_state", [self.kept.number])
        compiling = "Julia compiles the first step, once per process; up to 20 s ..."
        with notice(compiling) if first else nullcontext():
            value = (self._julia_step if isinstance(self.loss, str) else self._python_step)(inputs, target)
        if not math.isfinite(value):
            ask("fit", "restore_state", [self.kept.number])
        return value

    def _julia_step(self, inputs: Sequence[np.ndarray], target: Any) -> float:
        wanted = _numpy("the target", target)
        integers = [self.kept.number, self.kept_loss.number, len(inputs)]
        integers += [entry for array in (*inputs, wanted) for entry in describe(array)]
        return float(ask("fit", "step", integers))

    def _python_step(self, inputs: Sequence[np.ndarray], target: Any) -> float:
        prediction, pullback = self.model.differentiate(inputs, wanted=False)
        if isinstance(prediction, tuple):
            raise TypeError(f"fit: the model has {len(prediction)} results; a loss of Python's is of one array")
        evaluate = _torch_loss if _is_tensor(target) else _numpy_loss
        value, gradient = evaluate(self.loss, prediction, target)
        if math.isfinite(value):
            cotangents = pullback.cotangents([gradient])
            ask("fit", "update", [self.kept.number, pullback.result.kept.number, *cotangents])
        return value


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _numpy(name: str, array: Any) -> np.ndarray:
    """Return an array that Julia can read, on the memory of a tensor."""
    if _is_tensor(array):
        if array.device.type != "cpu":
            raise TypeError(f"fit: {name} is on {array.device}; Julia reads memory of the CPU, so call .cpu()")
        array = array.detach().contiguous().numpy()
    return checked("fit", name, array)


def _torch_loss(loss: Any, prediction: np.ndarray, target: Any) -> tuple[float, np.ndarray]:
    import torch

    leaf = torch.from_numpy(prediction).requires_grad_()
    value = loss(leaf, target)
    if not isinstance(value, torch.Tensor) or value.shape != ():
        found = f"a tensor of the shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise ValueError(f"fit: the loss must return a scalar tensor, got {found}; reduce it with .mean() or .sum()")
    if not value.requires_grad:
        raise ValueError("fit: the loss does not depend on the prediction by torch's operations, so it has no gradient")
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.item(), gradient.contiguous().numpy()


def _numpy_loss(loss: Any, prediction: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    result = loss(prediction, target)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"fit: a loss of NumPy arrays must return (loss, gradient by the prediction), got a "
                        f"{type(result).__name__}; with a torch target it is differentiated by torch")  # fmt: skip
    value, gradient = result
    if np.shape(value) != ():
        raise ValueError(f"fit: the loss must be a scalar, got the shape {np.shape(value)}; reduce it with .mean()")
    return float(value), gradient
