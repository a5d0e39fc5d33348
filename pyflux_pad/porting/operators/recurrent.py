"""LSTM and GRU as ONNX defines them: gates i, o, f, c and z, r, h; both directions; activations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Array, Arrays
from . import elementwise as e
from .table import operator

Activation = Callable[[Array], Array]

# Every activation with the defaults of its alpha and beta.
_ACTIVATIONS: dict[str, tuple[Callable[..., Array], tuple[float, ...]]] = {
    "relu": (lambda ns, x: e.relu(ns, x), ()),
    "tanh": (lambda ns, x: ns.tanh(x), ()),
    "sigmoid": (lambda ns, x: ns.sigmoid(x), ()),
    "affine": (lambda ns, x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "leakyrelu": (lambda ns, x, alpha: e.leaky_relu(ns, x, alpha=alpha), (0.01,)),
    "thresholdedrelu": (lambda ns, x, alpha: ns.where(x > alpha, x, 0.0), (1.0,)),
    "scaledtanh": (lambda ns, x, alpha, beta: ns.tanh(x * beta) * alpha, (1.0, 1.0)),
    "hardsigmoid": (lambda ns, x, alpha, beta: e.hard_sigmoid(ns, x, alpha=alpha, beta=beta), (0.2, 0.5)),
    "elu": (lambda ns, x, alpha: e.elu(ns, x, alpha=alpha), (1.0,)),
    "softsign": (lambda ns, x: x / (ns.abs(x) + 1), ()),
    "softplus": (lambda ns, x: e.softplus(ns, x), ()),
}


def _check(attributes: Mapping[str, Any]) -> str:
    if attributes["direction"] not in ("forward", "reverse", "bidirectional"):
        return f"direction={attributes['direction']!r} is unknown; there are forward, reverse, bidirectional"
    for name in attributes["activations"] or ():
        if name.lower() not in _ACTIVATIONS:
            return f"activation {name!r} is unknown; there are {', '.join(_ACTIVATIONS)}"
    return ""


def activation_settings(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[tuple[str, list[float]]]:
    """Return every activation and its numbers; those that have an alpha or a beta take the next one that was given."""
    left = [list(alphas or ()), list(betas or ())]

    def settings(name: str) -> list[float]:
        defaults = _ACTIVATIONS[name][1]
        return [given.pop(0) if given else default for given, default in zip(left, defaults, strict=False)]

    return [(name.lower(), settings(name.lower())) for name in names]


def _activations(
    ns: Arrays, names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    def bind(name: str, settings: list[float]) -> Activation:
        function = _ACTIVATIONS[name][0]
        return lambda x: function(ns, x, *settings)

    return [bind(name, settings) for name, settings in activation_settings(names, alphas, betas)]


def _run(
    ns: Arrays, x: Array, w: Array, r: Array, sequence_lens: Any, initial: Sequence[Array | None], direction: str,
    layout: int, hidden_size: int | None, cell: Callable[[int, Array, list[Array]], list[Array]],
) -> tuple[Array, ...]:  # fmt: skip
    """Drive a cell over time in every direction; returns (Y, and the last of every state)."""
    if layout:
        x = ns.transpose(x, (1, 0, 2))
        initial = [None if state is None else ns.transpose(state, (1, 0, 2)) for state in initial]
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    if hidden_size is not None and hidden_size != hidden:
        raise ValueError(f"hidden_size={hidden_size}, but the recurrent weight has {hidden}")
    lengths = np.full(batch, steps) if sequence_lens is None else np.asarray(sequence_lens)
    zeros = ns.zeros((batch, hidden), x)
    outputs, finals = [], []
    for number in range(w.shape[0]):
        backwards = direction == "reverse" or number == 1
        states = [zeros if state is None else state[number] for state in initial]
        ys: list[Array] = [zeros] * steps
        for step in reversed(range(steps)) if backwards else range(steps):
            fresh = cell(number, x[step], states)
            runs = step < lengths
            if not runs.all():
                alive = ns.asarray(runs[:, None], x)
                ys[step] = ns.where(alive, fresh[0], zeros)
                fresh = [ns.where(alive, new, old) for new, old in zip(fresh, states, strict=True)]
            else:
                ys[step] = fresh[0]
            states = fresh
        outputs.append(ns.stack(ys, 0))
        finals.append(states)
    y = ns.stack(outputs, 1)
    last = [ns.stack([states[part] for states in finals], 0) for part in range(len(initial))]
    if layout:
        y = ns.transpose(y, (2, 0, 1, 3))
        last = [ns.transpose(state, (1, 0, 2)) for state in last]
    return y, *last


def _gates(ns: Arrays, x: Array, w: Array, bias: Array | None) -> Array:
    y = ns.matmul(x, ns.transpose(w, (1, 0)))
    return y if bias is None else y + bias


def _parts(x: Array, count: int) -> list[Array]:
    size = x.shape[-1] // count
    return [x[..., part * size : (part + 1) * size] for part in range(count)]


def _limited(ns: Arrays, clip: float | None, x: Array) -> Array:
    return x if clip is None else e.between(ns, x, -clip, clip)


@operator("LSTM", host=(4,), parameters=(1, 2, 3, 7), check=_check)
def lstm(
    ns: Arrays, x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Any = None,
    initial_h: Array | None = None, initial_c: Array | None = None, p: Array | None = None, *,
    activations: tuple[str, ...] | None = None, activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0,
) -> tuple[Array, ...]:  # fmt: skip
    """Return (Y, Y_h, Y_c); `p` holds peepholes of the gates i, o, f."""
    count = w.shape[0]
    names = activations or ("Sigmoid", "Tanh", "Tanh") * count
    chosen = _activations(ns, names, activation_alpha, activation_beta)

    def cell(number: int, x: Array, states: list[Array]) -> list[Array]:
        f, g, h = chosen[3 * number : 3 * number + 3]
        hidden, memory = states
        recurrent = slice(4 * hidden.shape[-1], None)
        total = _gates(ns, x, w[number], None if b is None else b[number][: recurrent.start])
        total = total + _gates(ns, hidden, r[number], None if b is None else b[number][recurrent])
        i, o, keep, new = _parts(_limited(ns, clip, total), 4)
        peep = None if p is None else _parts(p[number], 3)
        i = f(i if peep is None else i + peep[0] * memory)
        keep = 1 - i if input_forget else f(keep if peep is None else keep + peep[2] * memory)
        memory = keep * memory + i * g(new)
        o = f(o if peep is None else o + peep[1] * memory)
        return [o * h(memory), memory]

    return _run(ns, x, w, r, sequence_lens, (initial_h, initial_c), direction, layout, hidden_size, cell)


@operator("GRU", host=(4,), parameters=(1, 2, 3), check=_check)
def gru(
    ns: Arrays, x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Any = None,
    initial_h: Array | None = None, *,
    activations: tuple[str, ...] | None = None, activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0,
) -> tuple[Array, ...]:  # fmt: skip
    """Return (Y, Y_h); with `linear_before_reset` as torch and cuDNN compute it."""
    names = activations or ("Sigmoid", "Tanh") * w.shape[0]
    chosen = _activations(ns, names, activation_alpha, activation_beta)

    def cell(number: int, x: Array, states: list[Array]) -> list[Array]:
        f, g = chosen[2 * number : 2 * number + 2]
        (hidden,) = states
        size = hidden.shape[-1]
        wb, rb = (None, None) if b is None else (b[number][: 3 * size], b[number][3 * size :])
        update, reset, new = _parts(_gates(ns, x, w[number], wb), 3)
        split = 2 * size
        again = _gates(ns, hidden, r[number][:split], None if rb is None else rb[:split])
        update = f(_limited(ns, clip, update + again[..., :size]))
        reset = f(_limited(ns, clip, reset + again[..., size:]))
        last = r[number][split:], None if rb is None else rb[split:]
        if linear_before_reset:
            new = new + reset * _gates(ns, hidden, *last)
        else:
            new = new + _gates(ns, reset * hidden, *last)
        new = g(_limited(ns, clip, new))
        return [(1 - update) * new + update * hidden]

    return _run(ns, x, w, r, sequence_lens, (initial_h,), direction, layout, hidden_size, cell)
