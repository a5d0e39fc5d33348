"""The planner, proved by brute force.

A one-channel convolution of n samples and k taps is fixed by its *map*: the 0/1 array ``T[o, i, j]``
that is 1 where output o multiplies sample i by tap j. Feeding the n unit inputs as a batch and the k
unit kernels as filters makes an engine print the whole map in one call, so equality here is equality
of the bilinear function and not of one random example. Integers throughout: nothing is close, all is equal.
"""

import functools
import gc
import itertools
import random
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import pyflux_pad as pp

torch = pytest.importorskip("torch")
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode

pytestmark = pytest.mark.engine("torch")

STRATEGIES = ("symmetric", "native", "crop", "residual", "full")
PADS = range(-2, 4)


class Axis(NamedTuple):
    """One spatial axis."""

    n: int
    k: int
    s: int
    d: int
    lo: int
    hi: int

    @property
    def out(self):
        return (self.n + self.lo + self.hi - self.d * (self.k - 1) - 1) // self.s + 1


@functools.cache
def map_of(axis, out=None):
    """The map ``T[o, i, j]`` from the definition: tap j of output o reads sample ``o*s + j*d - lo``."""
    out = axis.out if out is None else out
    read = np.arange(out)[:, None] * axis.s + np.arange(axis.k) * axis.d - axis.lo
    return (read[:, None, :] == np.arange(axis.n)[None, :, None]).astype(np.float64)


def axes_with(n, k):
    """Every axis of the brute force with this input and kernel size, legal or not."""
    return [Axis(n, k, s, d, lo, hi) for s, d, lo, hi in itertools.product((1, 2, 3), (1, 2), PADS, PADS)]


LEGAL = {(n, k): [a for a in axes_with(n, k) if a.out >= 1] for n in range(1, 10) for k in range(1, 5)}
by_size = pytest.mark.parametrize("n, k", LEGAL, ids=lambda v: str(v))


def planned(axes, strategy=None, *, backend="torch", batch=None, filters=None):
    """A float64 training plan with one spatial axis per entry of ``axes``."""
    n, k = tuple(a.n for a in axes), tuple(a.k for a in axes)
    return pp.plan(
        (batch or np.prod(n, dtype=int), 1, *n),
        (filters or np.prod(k, dtype=int), 1, *k),
        stride=tuple(a.s for a in axes),
        padding=tuple((a.lo, a.hi) for a in axes),
        dilation=tuple(a.d for a in axes),
        dtype="float64",
        backend=backend,
        training=True,
        strategy=strategy,
    )


@functools.cache
def integers(shape, seed=0):
    """Integers in -4..4 without 0, as float64."""
    draw = np.random.default_rng(seed)
    return torch.from_numpy((draw.integers(1, 5, shape) * draw.choice((-1, 1), shape)).astype(np.float64))


@functools.cache
def unit_operands(n, k):
    return torch.eye(n, dtype=torch.float64)[:, None], torch.eye(k, dtype=torch.float64)[:, None]


def faults_of(plan, axis):
    """What of output, input gradient and weight gradient differs from the definition."""
    x, w = (t.clone().requires_grad_() for t in unit_operands(axis.n, axis.k))
    whole = map_of(axis)
    y = plan(x, w)  # (n, k, out)
    g = integers((axis.n, axis.k, axis.out), seed=axis.out)
    gx, gw = torch.autograd.grad(y, (x, w), g)
    expected = {
        "output": (y, whole.transpose(1, 2, 0)),
        "input gradient": (gx[:, 0], np.einsum("bco,oic->bi", g, whole)),
        "weight gradient": (gw[:, 0], np.einsum("bco,obj->cj", g, whole)),
    }
    return [name for name, (got, want) in expected.items() if not np.array_equal(got.detach().numpy(), want)]


def applies(strategy, axis, native):
    """Whether a strategy can give the result of an axis; only two of them may not."""
    if strategy == "native":
        return native
    if strategy == "symmetric":  # engines take no negative pad
        equivalent = planned([axis]).symmetric_equivalent
        return equivalent is not None and equivalent[0] >= 0
    return True


# ---------------------------------------------------------------- every strategy, every case


@by_size
def test_every_strategy_is_the_definition(n, k):
    """Output and both gradients on torch's kernels, each strategy forced, and the one that the planner prefers."""
    faults = {}
    for axis, strategy in itertools.product(LEGAL[n, k], (*STRATEGIES, None)):
        if applies(strategy, axis, native=False):
            faults[axis, strategy] = faults_of(planned([axis], strategy), axis)
        else:
            with pytest.raises(pp.GeometryError, match=strategy):
                planned([axis], strategy)
    wrong = {case: names for case, names in faults.items() if names}
    assert not wrong, f"{len(wrong)} of {len(faults)} wrong, the first: {next(iter(wrong.items()))}"
    assert {strategy for _, strategy in faults} == {*STRATEGIES, None} - {"native"}


@by_size
def test_every_strategy_on_an_engine_that_takes_pairs(n, k):
    """The NumPy engine: output and gradients of its own strategy, the output of the others."""
    x, w = (t.numpy() for t in unit_operands(n, k))
    for axis, strategy in itertools.product(LEGAL[n, k], STRATEGIES):
        if applies(strategy, axis, native=True):
            plan = planned([axis], strategy, backend="numpy")
            assert np.array_equal(plan(x, w), map_of(axis).transpose(1, 2, 0)), (axis, strategy)
            if strategy == "native":
                assert plan.strategy == planned([axis], backend="numpy").strategy == "native"
                assert not faults_of(plan, axis), axis


@pytest.mark.parametrize("k", (1, 2, 3, 4))
def test_cases_without_output_are_refused(k):
    empty = [a for n in range(1, 10) for a in axes_with(n, k) if a.out < 1]
    assert empty
    for axis in empty:
        with pytest.raises(pp.GeometryError):
            planned([axis])


# ---------------------------------------------------------------- slack and its consequence


@by_size
def test_slack_is_exact_and_maximal(n, k):
    for axis in LEGAL[n, k]:
        ((lowest, highest),) = planned([axis]).slack
        assert lowest <= axis.hi <= highest, axis
        for hi in range(lowest - axis.s - 1, highest + axis.s + 2):
            other = axis._replace(hi=hi)
            same = other.out >= 1 and np.array_equal(map_of(other), map_of(axis))
            assert same == (lowest <= hi <= highest), (axis, hi)


@by_size
def test_symmetric_equivalent_is_a_proof(n, k):
    for axis in LEGAL[n, k]:
        whole = map_of(axis)
        found = planned([axis]).symmetric_equivalent
        # No larger or smaller pad can have `out` outputs: n + 2p - ke would leave [(out-1)s, out*s).
        equal = [
            p
            for p in range(-n, n + 4 * axis.s * axis.out)
            if (other := axis._replace(lo=p, hi=p)).out == axis.out and np.array_equal(map_of(other), whole)
        ]
        if found is not None:
            assert found[0] in equal, (axis, found, equal)
        elif whole.any():  # where no window meets the input, pads of another phase give the same zeros
            assert not equal, (axis, equal)


# ---------------------------------------------------------------- two axes, two strategies


def mixed_cases(engine, count, seed):
    """``count`` pairs of axes with two different strategies, all that apply drawn alike."""
    draw = random.Random(seed)
    sizes = sorted(LEGAL)
    while count:
        axes = tuple(draw.choice(LEGAL[draw.choice(sizes)]) for _ in range(2))
        strategies = tuple(draw.sample(STRATEGIES, 2))
        if all(applies(name, axis, engine == "numpy") for name, axis in zip(strategies, axes, strict=True)):
            count -= 1
            yield axes, strategies


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("engine", ("torch", "numpy"))
def test_axes_with_different_strategies(engine, seed):
    used = set()
    for axes, strategies in mixed_cases(engine, 50, seed):
        used.add(strategies)
        rows, columns = map(map_of, axes)
        x = integers((2, 1, axes[0].n, axes[1].n), seed).requires_grad_()
        w = integers((3, 1, axes[0].k, axes[1].k), seed + 1).requires_grad_()
        y = planned(axes, strategies, backend=engine, batch=2, filters=3)(x, w)
        g = integers((2, 3, axes[0].out, axes[1].out), seed + 2)
        gx, gw = torch.autograd.grad(y, (x, w), g)
        x0, w0 = x.detach()[:, 0], w.detach()[:, 0]
        want_y = np.einsum("ohi,pwj,bhw,cij->bcop", rows, columns, x0, w0, optimize=True)
        want_gx = np.einsum("ohi,pwj,bcop,cij->bhw", rows, columns, g, w0, optimize=True)
        want_gw = np.einsum("ohi,pwj,bhw,bcop->cij", rows, columns, x0, g, optimize=True)
        for name, got, want in (("y", y, want_y), ("gx", gx[:, 0], want_gx), ("gw", gw[:, 0], want_gw)):
            assert np.array_equal(got.detach().numpy(), want), (axes, strategies, name)
    assert len(used) >= 8


# ---------------------------------------------------------------- the plan as an object


LAYER = {"x_shape": (2, 3, 8, 10), "weight_shape": (4, 3, 3, 2), "stride": (2, 1), "padding": ((1, 0), (0, 3))}


def test_symmetric_equivalent_of_two_axes():
    """One axis has slack (stride 2 leaves a cell over); only where both have an equivalent is there one."""
    assert pp.plan(**LAYER).symmetric_equivalent is None
    slack = pp.plan(**{**LAYER, "padding": ((1, 0), (3, 3))})
    assert slack.symmetric_equivalent == (1, 3)
    assert slack.slack == ((0, 1), (3, 3))


@pytest.mark.parametrize("strategy, copied, extra", (
    # (2, 4, 4, 12) float32 outputs; a crop keeps 12 of 15 columns, and each output takes 3 * 3 * 2 multiply-adds.
    ("crop", 4 * 2 * 4 * 4 * 12, 2 * 4 * 4 * 3 * 18),
    # The rows have a symmetric equivalent; 3 columns of zeros are added to the input (2, 3, 8, 10).
    ("residual", 4 * 2 * 3 * 8 * 13, 0),
    ("full", 4 * 2 * 3 * 10 * 13, 0),
    ("native", 0, 0),
))
def test_figures(strategy, copied, extra):
    backend = "numpy" if strategy == "native" else "torch"
    plan = pp.plan(**LAYER, backend=backend, strategy=strategy)
    assert (plan.copy_bytes, plan.extra_work) == (copied, extra)
    assert plan.output_shape == (2, 4, 4, 12)


def test_table():
    """What a reader looks for: sizes, pads, what is done about them and what it costs."""
    table = str(pp.plan(**LAYER, backend="torch", strategy=("symmetric", "crop")))
    heading, engine, names, rows, columns, equivalent, cost = table.splitlines()
    assert "(2, 3, 8, 10)" in heading
    assert "(2, 4, 4, 12)" in heading
    assert "torch" in engine
    assert "float32" in engine
    assert all(name in names for name in ("input", "kernel", "stride", "dilation", "padding", "output", "strategy"))
    assert "(1, 0)" in rows
    assert "symmetric, engine pads 1" in rows
    assert "(0, 3)" in columns
    assert "keep 3 .. 14 of 15" in columns
    assert equivalent.endswith("none")
    assert "1.54 kB" in cost
    assert "25.00 %" in cost
    assert "(1, 3)" in str(pp.plan(**{**LAYER, "padding": ((1, 0), (3, 3))}))


def test_call():
    """A plan runs arrays of its shapes, with or without a bias, and no others."""
    x, w, b = (integers(shape) for shape in (LAYER["x_shape"], LAYER["weight_shape"], (4,)))
    settings = {name: LAYER[name] for name in ("stride", "padding")}
    plan = pp.plan(**LAYER, backend="torch", dtype="float64")
    assert torch.equal(plan(x, w), pp.conv(x, w, **settings))
    assert torch.equal(plan(x, w, b), pp.conv(x, w, b, **settings))
    with pytest.raises(pp.GeometryError, match=r"\(2, 3, 8, 10\)"):
        plan(x[:1], w)
    with pytest.raises(TypeError, match="torch"):
        pp.plan(**LAYER)(x, w)  # made for NumPy arrays, since no engine was named
    with pytest.raises(pp.GeometryError, match="strategy"):
        pp.plan(**LAYER, strategy="best")
    with pytest.raises(pp.GeometryError, match="strateg"):
        pp.plan(**LAYER, strategy=("crop",))


class Calls(TorchDispatchMode):
    """The names of the operators that run within."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("padding, strategy, expected", (
    (((1, 0), (3, 3)), None, ["convolution"]),
    (((-1, -2), (-1, 0)), None, ["convolution"]),
    (LAYER["padding"], "crop", ["convolution", "clone"]),
    (LAYER["padding"], "residual", ["constant_pad_nd", "convolution"]),
))
def test_what_is_copied(padding, strategy, expected):
    """Slack and negative pads copy nothing; a crop copies its result; only a pad copies the input."""
    plan = pp.plan(**{**LAYER, "padding": padding}, backend="torch", strategy=strategy)
    x, w = torch.ones(LAYER["x_shape"]), torch.ones(LAYER["weight_shape"])
    with Calls() as calls:
        plan(x, w)
    assert [name for name in calls.names if name != "slice"] == expected, "slices are views"


@pytest.mark.parametrize("kind", ("numpy", "torch", "carried"))
def test_nothing_is_kept_alive(kind):
    """The caches hold integers: an array dies with its last user, after every function that plans."""
    def make(*shape):
        return np.ones(shape) if kind == "numpy" else torch.ones(shape, dtype=torch.float64, requires_grad=True)

    settings = {"stride": 2, "padding": ((1, 0), (0, 3)), "backend": "numpy" if kind == "carried" else None}
    x, w, b = make(2, 4, 8, 10), make(4, 4, 3, 2), make(4)
    plan = pp.plan(x.shape, w.shape, **{**settings, "backend": "torch" if kind == "torch" else "numpy"})
    results = [plan(x, w, b), pp.conv(x, w, b, **settings), pp.conv_transpose(x, w, b, **settings)]
    results += [pp.conv_input(x.shape, w, results[0], **settings), pp.conv_weight(x, w.shape, results[0], **settings)]
    if kind == "numpy":
        y, pullback = pp.vjp(pp.conv, x, w, b, **settings)
        results += pullback(y)
    else:
        for y in results[:3]:
            results += torch.autograd.grad(y.sum(), (x, w, b), create_graph=True)
    held = [weakref.ref(a) for a in (x, w, b, *results)]
    y = pullback = None
    del x, w, b, results, y, pullback
    gc.collect()
    assert [ref() for ref in held] == [None] * len(held)


def test_deterministic(monkeypatch):
    """One strategy per geometry: the one of training, whether a gradient is taken or not."""
    shapes = {"x_shape": (8, 64, 28, 28), "weight_shape": (16, 64, 5, 5), "padding": ((1, 2), (1, 2))}
    assert pp.plan(**shapes, backend="torch", training=True).strategy != pp.plan(**shapes, backend="torch").strategy
    monkeypatch.setenv("PYFLUX_PAD_DETERMINISTIC", "1")
    assert pp.plan(**shapes, backend="torch", training=True).strategy == pp.plan(**shapes, backend="torch").strategy
    monkeypatch.setenv("PYFLUX_PAD_DETERMINISTIC", "yes")
    with pytest.raises(ValueError, match="PYFLUX_PAD_DETERMINISTIC must be 1 or 0, got 'yes'"):
        pp.plan(**shapes, backend="torch")
