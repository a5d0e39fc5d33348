"""oneDNN's own (low, high) pads: chosen where they pay, right in values, never where something could record them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import pyflux_pad as pp  # noqa: E402
from pyflux_pad.backends import halo, onednn  # noqa: E402
from pyflux_pad.backends import torch as torch_engine  # noqa: E402
from pyflux_pad.geometry import plan as planner  # noqa: E402

pytestmark = [
    pytest.mark.engine("torch"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # forward mode loads it too
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning"),  # from setting any flag of oneDNN
]
CASES = {  # padding by number of axes
    1: [((2, 0),), ((0, 1),), ((1, 2),)],
    2: [((2, 0), (0, 1)), ((1, 2), (3, 0)), ((0, 0), (1, 0))],
    3: [((1, 0), (0, 2), (1, 2)), ((0, 1), (2, 1), (1, 0))],
}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, WEIGHT, BIAS = random(2, 16, 9, 8), random(32, 16, 3, 4, seed=1), random(32, seed=2)
PADDING = ((2, 0), (1, 3))


@pytest.fixture
def calls(monkeypatch):
    """Make calls free, so that small shapes take the pairs; count those that oneDNN padded."""
    if not onednn.lends_pairs():
        pytest.skip("this torch, or this processor, lends no pairs")
    monkeypatch.setattr(planner, "_DENSE_CALL", -(1 << 40))
    counted = []
    transpose = onednn._transpose

    def count(*args):
        counted.append(args)
        return transpose(*args)

    monkeypatch.setattr(onednn, "_transpose", count)
    return counted


def planned(**options):
    return pp.plan(X.shape, WEIGHT.shape, **{"padding": PADDING, "backend": "torch", **options})


def assert_right(y, x=X, weight=WEIGHT, bias=None):
    bias = None if bias is None else bias.detach().numpy()
    want = pp.conv(x.detach().numpy(), weight.detach().numpy(), bias, padding=PADDING)
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-4, atol=1e-4)


def close(found, want):
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flip_kernel", [False, True])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_values(calls, ndim, flip_kernel):
    kernel = (3, 4, 3)[:ndim]
    x, weight = random(2, 16, *(7, 8, 6)[:ndim]), random(48, 16, *kernel, seed=1)
    bias = random(48, seed=2)
    for padding in CASES[ndim]:
        plan = pp.plan(x.shape, weight.shape, padding=padding, flip_kernel=flip_kernel, backend="torch")
        assert plan.strategy == "native"
        want = pp.conv(x.numpy(), weight.numpy(), bias.numpy(), padding=padding, flip_kernel=flip_kernel)
        np.testing.assert_allclose(plan(x, weight, bias).numpy(), want, rtol=1e-4, atol=1e-4)
        y = plan(x, weight)
        assert y.is_contiguous()
        assert y.shape == plan.output_shape
        np.testing.assert_allclose(y + bias.reshape(-1, *[1] * ndim), want, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2 * len(CASES[ndim])


@pytest.mark.parametrize("padding", [(8, 0), (0, 4), (4, 8)])
@pytest.mark.parametrize("flip_kernel", [False, True])
def test_dilation_that_divides_the_axis(calls, padding, flip_kernel):
    x, weight, bias = random(2, 16, 16), random(48, 16, 3, seed=1), random(48, seed=2)
    options = {"padding": (padding,), "dilation": 4, "flip_kernel": flip_kernel}
    plan = pp.plan(x.shape, weight.shape, **options, backend="torch")
    assert plan.strategy == "native"
    y = plan(x, weight, bias)
    np.testing.assert_allclose(
        y.numpy(), pp.conv(x.numpy(), weight.numpy(), bias.numpy(), **options), rtol=1e-4, atol=1e-4
    )
    assert y.is_contiguous()
    assert len(calls) == 1


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_where_it_belongs(calls, value):
    """No padded cell multiplies it by zero."""
    x = X.clone()
    x[0, 3, 0, 0] = x[1, 5, -1, 4] = value
    y = planned()(x, WEIGHT).numpy()
    want = pp.conv(x.numpy(), WEIGHT.numpy(), padding=PADDING)
    assert len(calls) == 1
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(want))
    assert np.isfinite(y).any()


def test_numpy_arrays_too(calls):
    y = planned()(X.numpy(), WEIGHT.numpy())
    assert type(y) is np.ndarray
    assert len(calls) == 1
    assert_right(torch.from_numpy(y))


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ((2, 16, 9, 8), (32, 16, 3, 4), {"stride": (1, 2)}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"dilation": (2, 1)}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"dilation": 2}),
        ((2, 16, 16), (32, 16, 3), {"padding": ((7, 0),), "dilation": 4}),
        ((2, 16, 16), (32, 16, 3), {"padding": ((12, 0),), "dilation": 4}),
        ((2, 16, 15), (32, 16, 3), {"padding": ((8, 0),), "dilation": 4}),
        ((2, 16, 16), (32, 16, 3), {"padding": ((4, 0),), "dilation": 2}),  # rows too short
        ((2, 32, 9, 8), (32, 16, 3, 4), {"groups": 2}),
        ((2, 12, 9, 8), (32, 12, 3, 4), {}),
        ((2, 16, 9, 8), (20, 16, 3, 4), {}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"dtype": "float64"}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"dtype": "bfloat16"}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"training": True}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"padding": ((3, 0), (1, 3))}),  # a window of zeros alone
        ((2, 16, 9, 8), (32, 16, 3, 4), {"padding": ((-1, 0), (1, 3))}),
        ((2, 16, 9, 8), (32, 16, 3, 4), {"padding": (1, 2)}),
        ((0, 16, 9, 8), (32, 16, 3, 4), {}),
        ((2, 16, 0, 8), (32, 16, 3, 4), {"padding": ((2, 2), (1, 3))}),
    ],
)
def test_only_dense_float32_inference(calls, x, weight, options):
    assert pp.plan(x, weight, **{"padding": PADDING, "backend": "torch", **options}).strategy != "native"


def test_only_where_it_pays():
    if not onednn.lends_pairs():
        pytest.skip("this torch, or this processor, lends no pairs")

    def strategy(x, weight, padding):
        return pp.plan(x, weight, padding=padding, backend="torch").strategy

    assert strategy((8, 128, 2048), (128, 128, 3), ((2, 0),)) == "native"
    assert strategy((8, 64, 56, 56), (64, 64, 4, 4), ((1, 2), (1, 2))) == "native"
    assert strategy((1, 64, 14, 14), (64, 64, 3, 3), ((0, 1), (0, 1))) != "native"  # a call costs more
    assert strategy((8, 512, 64), (512, 512, 3), ((2, 0),)) != "native"  # and so does turning the weight
    assert strategy((2, 16, 112, 112), (64, 16, 3, 3), ((0, 1), (0, 1))) != "native"  # or a large result


def test_one_strategy_where_asked_for(calls, monkeypatch):
    monkeypatch.setenv("PYFLUX_PAD_DETERMINISTIC", "1")
    assert planned().strategy == planned(training=True).strategy == "residual"


def test_this_torch_lends_pairs():
    """Were the operator called wrongly, the probe would say there is none, and the tests above would be skipped."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("pairs were measured on AVX-512 only")
    if not hasattr(torch.ops.mkldnn, "_convolution_transpose_pointwise"):
        pytest.skip("this torch has no such operator")
    assert onednn.lends_pairs()


def test_the_probe_is_not_misled():
    """Whatever the first call happens in: the answer is kept."""
    if not onednn.lends_pairs():
        pytest.skip("this torch, or this processor, lends no pairs")
    probe = onednn.lends_pairs.__wrapped__
    with FakeTensorMode():
        assert probe()
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), Operators():
        assert probe()
    with torch.device("meta"):
        assert probe()
    assert torch.func.vmap(lambda x: x * probe())(torch.ones(2)).all()
    graph = torch.jit.trace(lambda x: x + float(probe()), (torch.ones(2),), check_trace=False).graph
    assert "convolution" not in str(graph)
    torch.set_default_dtype(torch.float64)
    try:
        assert probe()
    finally:
        torch.set_default_dtype(torch.float32)


def test_not_where_torch_lacks_the_operator(monkeypatch):
    def lacking(*args):
        raise AttributeError("no such operator")

    monkeypatch.setattr(onednn, "_transpose", lacking)
    assert not onednn.lends_pairs.__wrapped__()
    monkeypatch.setattr(onednn, "_transpose", lambda *args: torch.zeros(1, 16, 5))  # pads otherwise
    assert not onednn.lends_pairs.__wrapped__()


@pytest.mark.parametrize("operand", ["x", "weight", "bias"])
def test_not_where_a_gradient_is_recorded(calls, operand):
    plan = planned()
    tensors = {"x": X.clone(), "weight": WEIGHT.clone(), "bias": BIAS.clone()}
    tensors[operand].requires_grad_()
    y = plan(**tensors)
    assert not calls
    assert_right(y, bias=BIAS)
    (found,) = torch.autograd.grad(y.square().sum(), tensors[operand])
    wanted = F.conv2d(F.pad(tensors["x"], (1, 3, 2, 0)), tensors["weight"], tensors["bias"])
    torch.testing.assert_close(found, torch.autograd.grad(wanted.square().sum(), tensors[operand])[0])
    with torch.no_grad():
        assert_right(plan(**tensors), bias=BIAS)
    assert len(calls) == 1


def test_not_under_transforms_and_forward_mode(calls):
    plan = planned()
    y, tangent = torch.func.jvp(lambda x: plan(x, WEIGHT), (X,), (2 * X,))
    close(tangent, 2 * y)
    batch = torch.func.vmap(plan, (0, None))(torch.stack([X, 2 * X]), WEIGHT)
    close(batch[1], 2 * y)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, 3 * X)
        close(torch.autograd.forward_ad.unpack_dual(plan(dual, WEIGHT)).tangent, 3 * y)
    assert not calls


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_not_under_modes_autocast_and_without_onednn(calls):
    plan = planned()
    with Operators():
        assert_right(plan(X, WEIGHT))
    with torch.backends.mkldnn.flags(enabled=False):
        assert_right(plan(X, WEIGHT))
    with torch.autocast("cpu", torch.bfloat16):
        assert plan(X, WEIGHT).dtype == torch.bfloat16
    compiled = torch.compile(lambda x: pp.conv(x, WEIGHT, padding=PADDING), backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_right(compiled(X))
    assert not calls


def test_strided_operands(calls):
    bias = random(32, 3, seed=2)[:, 1]
    np.testing.assert_allclose(
        planned()(X, WEIGHT, bias).numpy(), pp.conv(X.numpy(), WEIGHT.numpy(), bias.numpy(), padding=PADDING),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    np.testing.assert_allclose(
        planned()(X, WEIGHT, torch.ones(1).expand(32)).numpy(), 1 + planned()(X, WEIGHT).numpy(), rtol=1e-4, atol=1e-4
    )
    assert len(calls) == 3
    last = WEIGHT.contiguous(memory_format=torch.channels_last)
    assert_right(planned()(X, last))
    assert len(calls) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_dtypes_than_planned(calls, dtype):
    y = planned()(X.to(dtype), WEIGHT.to(dtype))
    assert y.dtype == dtype
    want = F.conv2d(F.pad(X.to(dtype), (1, 3, 2, 0)), WEIGHT.to(dtype))
    torch.testing.assert_close(y, want)
    assert not calls


def test_other_layouts_keep_theirs(calls, monkeypatch):
    monkeypatch.setattr(halo, "_HELD", halo._Held())
    monkeypatch.setattr(halo, "LEAST_BYTES", 1)
    monkeypatch.setattr(planner, "_WORK_PER_BYTE", 0)  # copies are cheap: nothing is cropped
    torch_engine._without_pairs.cache_clear()
    plan, last = planned(), X.contiguous(memory_format=torch.channels_last)
    y = plan(last, WEIGHT)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert_right(y)
    assert_right(plan(X.mT.contiguous().mT, WEIGHT))
    assert not calls
    assert len(halo._HELD.buffers) == 2  # copies as good as without pairs
