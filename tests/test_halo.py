"""Padded copies in memory that is used again: never where something could keep the copy, always the right values."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import pyflux_pad as pp  # noqa: E402
from pyflux_pad.backends import halo  # noqa: E402

pytestmark = [
    pytest.mark.engine("torch"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # forward mode loads it too
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
PADDING = ((2, 1), (0, 3))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(halo, "_HELD", halo._Held())
    monkeypatch.setattr(halo, "LEAST_BYTES", 0)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, WEIGHT = random(2, 3, 7, 8), random(4, 3, 3, 2)
PLAN = pp.plan(X.shape, WEIGHT.shape, padding=PADDING, backend="torch", strategy="full")


def padded(x):
    return F.pad(x, (0, 3, 2, 1))


def held():
    return len(halo._HELD.buffers)


def assert_equal(found, x, weight=WEIGHT):
    torch.testing.assert_close(found, F.conv2d(padded(x), weight), rtol=1e-5, atol=1e-5)


def test_the_buffer_is_used_again():
    for seed in range(3):
        x = random(2, 3, 7, 8, seed=seed)
        assert_equal(PLAN(x, WEIGHT), x)
        ((buffer, _),) = halo._HELD.buffers.values()
        torch.testing.assert_close(buffer, padded(x), rtol=0, atol=0)


def test_every_shape_pad_dtype_and_format_has_its_own():
    other = pp.plan(X.shape, WEIGHT.shape, padding=((0, 3), (2, 1)), backend="torch", strategy="full")
    first = PLAN(X, WEIGHT)
    torch.testing.assert_close(other(X, WEIGHT), F.conv2d(F.pad(X, (2, 1, 0, 3)), WEIGHT), rtol=1e-5, atol=1e-5)
    assert held() == 2
    PLAN(X.double(), WEIGHT.double())
    assert held() == 3
    last = PLAN(X.contiguous(memory_format=torch.channels_last), WEIGHT)
    assert held() == 4
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, first, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        assert_equal(PLAN(X, WEIGHT), X)
        assert held() == 5
    assert_equal(PLAN(X, WEIGHT), X)
    assert_equal(PLAN(X.mT.contiguous().mT, WEIGHT), X)


def test_one_dimension_and_three():
    for ndim in (1, 3):
        sizes = (6, 5, 7)[:ndim]
        x, weight = random(2, 3, *sizes), random(4, 3, *(2,) * ndim)
        pads = ((2, 0), (0, 1), (3, 1))[:ndim]
        plan = pp.plan(x.shape, weight.shape, padding=pads, backend="torch", strategy="full")
        want = pp.conv(x.numpy(), weight.numpy(), padding=pads)
        for _ in range(2):
            np.testing.assert_allclose(plan(x, weight).numpy(), want, rtol=1e-4, atol=1e-5)
    assert held() == 2


@pytest.mark.parametrize("operand", ["x", "weight", "bias"])
def test_not_where_a_gradient_is_recorded(operand):
    tensors = {"x": X.clone(), "weight": WEIGHT.clone(), "bias": random(4)}
    tensors[operand].requires_grad_()
    y = PLAN(tensors["x"], tensors["weight"], tensors["bias"])
    assert held() == 0
    PLAN(random(2, 3, 7, 8, seed=5), WEIGHT)  # would overwrite what the gradient needs
    assert held() == 1
    (found,) = torch.autograd.grad(y.square().sum(), tensors[operand])
    wanted = F.conv2d(padded(tensors["x"]), tensors["weight"], tensors["bias"])
    torch.testing.assert_close(found, torch.autograd.grad(wanted.square().sum(), tensors[operand])[0])
    with torch.no_grad():
        PLAN(tensors["x"], tensors["weight"], tensors["bias"])
    assert held() == 1


def test_not_under_transforms_and_forward_mode():
    batch = torch.stack([X, 2 * X])
    torch.testing.assert_close(torch.func.vmap(PLAN, (0, None))(batch, WEIGHT)[1], PLAN(2 * X, WEIGHT))
    y, tangent = torch.func.jvp(lambda x: PLAN(x, WEIGHT), (X,), (2 * X,))
    torch.testing.assert_close(tangent, 2 * y)
    assert held() == 1
    halo._HELD.buffers.clear()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, 3 * X)
        tangent = torch.autograd.forward_ad.unpack_dual(PLAN(dual, WEIGHT)).tangent
        assert held() == 0
    torch.testing.assert_close(tangent, 3 * PLAN(X, WEIGHT))
    halo._HELD.buffers.clear()
    torch.func.vmap(PLAN, (0, None))(batch, WEIGHT)
    assert held() == 0


def test_not_in_what_is_traced():
    """A traced program must pad for itself: a buffer would be a constant in it."""
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: PLAN(x, WEIGHT), (X,), check_trace=False)
        compiled = torch.compile(lambda x: PLAN(x, WEIGHT), backend="eager", fullgraph=True)
        made = torch.fx.experimental.proxy_tensor.make_fx(lambda x: PLAN(x, WEIGHT))(X)
        assert_equal(compiled(X), X)
        assert held() == 0
        for program in (traced, compiled, made):
            other = random(2, 3, 7, 8, seed=9)
            assert_equal(program(other), other)


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        SEEN.extend(args)
        return func(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        SEEN.extend(args)
        return func(*args, **(kwargs or {}))


SEEN = []


@pytest.mark.parametrize("mode", [Operators, Functions])
def test_not_where_a_mode_sees_every_call(mode):
    """It may keep what it sees."""
    SEEN.clear()
    with mode():
        PLAN(X, WEIGHT)
    assert held() == 0
    assert any(isinstance(arg, torch.Tensor) and arg.shape == padded(X).shape for arg in SEEN)


def test_threads_do_not_share():
    results = {}

    def work(seed):
        x = random(2, 3, 7, 8, seed=seed)
        results[seed] = [(x, PLAN(x, WEIGHT)) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pairs in results.values():
        for x, y in pairs:
            assert_equal(y, x)
    assert held() == 0


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(halo, "LIMIT_BYTES", 6000)
    PLAN(X, WEIGHT)  # 2640 bytes
    wider = pp.plan((2, 3, 7, 9), WEIGHT.shape, padding=PADDING, backend="torch", strategy="full")
    for _ in range(2):
        x = random(2, 3, 7, 9)
        assert_equal(wider(x, WEIGHT), x)
    assert held() == 2
    third = pp.plan((2, 3, 8, 8), WEIGHT.shape, padding=PADDING, backend="torch", strategy="full")
    third(random(2, 3, 8, 8), WEIGHT)
    assert held() == 2
    assert sum(buffer.nbytes for buffer, _ in halo._HELD.buffers.values()) <= 6000
    large = pp.plan((9, 3, 7, 8), WEIGHT.shape, padding=PADDING, backend="torch", strategy="full")
    x = random(9, 3, 7, 8)
    assert_equal(large(x, WEIGHT), x)
    assert held() == 2


def test_small_copies_are_made_anew(monkeypatch):
    monkeypatch.setattr(halo, "LEAST_BYTES", PLAN.copy_bytes + 1)
    assert_equal(PLAN(X, WEIGHT), X)
    assert held() == 0


def test_a_result_is_never_the_buffer():
    y = PLAN(X, WEIGHT)
    kept = y.clone()
    PLAN(random(2, 3, 7, 8, seed=3), WEIGHT)
    torch.testing.assert_close(y, kept, rtol=0, atol=0)
