"""The case table on a real GPU, where there is one: CuPy arrays, and tensors of the GPU under torch's autograd.

Everything else named test_cupy_* runs without a GPU and says so in its names.
"""

import dataclasses

import checks
import numpy as np
import pytest
import test_pad
import test_pools
from cases import CONV_CASES, FLOATS, TRANSPOSED_CASES
from engines import Engine
from pool_cases import pool_cases
from test_random import run

import pyflux_pad as pp

pytestmark = [pytest.mark.engine("cupy"), pytest.mark.filterwarnings("ignore:pyflux_pad:RuntimeWarning")]
every_case = pytest.mark.parametrize("case", CONV_CASES + TRANSPOSED_CASES, ids=str)
floats = pytest.mark.parametrize("dtype", FLOATS)


@dataclasses.dataclass(frozen=True)
class Gpu(Engine):
    """CuPy arrays in and out, as NumPy for the checks."""

    def __call__(self, function, *arguments, **options):
        return self._host(function(*map(self._there, arguments), **options))

    def vjp(self, function, *arguments, grad_output, **options):
        y, pullback = pp.vjp(function, *map(self._there, arguments), **options)
        return self._host(y), tuple(map(self._host, pullback(self._there(grad_output))))

    def _there(self, argument):
        import cupy  # type: ignore

        return cupy.asarray(argument) if isinstance(argument, np.ndarray) else argument

    def _host(self, array):
        import cupy  # type: ignore

        assert type(array) is cupy.ndarray, f"a CuPy array went in, {type(array)} came out"
        return cupy.asnumpy(array)


GPU = Gpu("cupy", "cupy", tensors=False)


@every_case
@floats
def test_gpu_forward(case, dtype):
    checks.forward(GPU, case, dtype)


@every_case
@floats
def test_gpu_gradients(case, dtype):
    checks.gradients(GPU, case, dtype)


@pytest.mark.parametrize("case", CONV_CASES, ids=str)
@floats
def test_gpu_transposes(case, dtype):
    checks.transposes(GPU, case, dtype)


@pytest.mark.parametrize("provider", ["frontend", "prepad", "torch", "arrays"])
@pytest.mark.parametrize("case", [case for case in CONV_CASES if case.name.startswith("2d_")], ids=str)
def test_gpu_providers(case, provider):
    """Each provider by name; one that is not there, or has no plan, is skipped with its reason."""
    from pyflux_pad.backends.cupy import configure

    configure(provider=provider)
    try:
        checks.forward(GPU, case, "float32")
        checks.gradients(GPU, case, "float32")
    except pp.BackendUnavailable as error:
        pytest.skip(str(error))
    finally:
        configure()


@pytest.mark.parametrize("seed", range(2))
def test_gpu_pools(seed):
    def check(engine, case, dtype):
        x = case.x(dtype)
        expected, back = case.expected(x)
        grad = case.grad(expected.shape)
        y, (dx,) = engine.vjp(case.function, x, grad_output=grad, **case.arguments)
        np.testing.assert_allclose(y, expected, 1e-12, 1e-12)
        np.testing.assert_allclose(dx, back(grad), 1e-12, 1e-12)

    run(check, GPU, pool_cases(seed, 300), "float64")


def test_gpu_pads():
    for detach in (False, True):
        test_pad.test_random_gradients(GPU, detach)


def test_gpu_unfold_and_adaptive():
    for axes in (1, 2, 3):
        x = np.random.default_rng(axes).integers(-3, 4, (2, 2, 5, 6, 4)[: axes + 2]).astype(np.float64)
        calls = ((pp.adaptive_avg_pool, {"output_size": 3}), (pp.adaptive_max_pool, {"output_size": 4}),
                 (pp.unfold, {"kernel_size": 2, "padding": ((1, 0),) * axes, "stride": 2}))
        for function, options in calls:
            y, pullback = pp.vjp(function, x, **options)
            grad = np.arange(1.0, y.size + 1).reshape(y.shape)
            found, (dx,) = GPU.vjp(function, x, grad_output=grad, **options)
            np.testing.assert_allclose(found, y, 1e-12)
            np.testing.assert_allclose(dx, pullback(grad)[0], 1e-12)


@pytest.mark.engine("torch")
@pytest.mark.parametrize("case", [case for case in CONV_CASES if case.name.startswith("2d_")], ids=str)
def test_gpu_tensors(case):
    """Tensors of the GPU with `backend="cupy"`, gradients of the second order included."""
    import torch
    from cases import arrays

    if not torch.cuda.is_available():
        pytest.skip("this torch finds no GPU")
    x, weight = (torch.tensor(array, device="cuda", requires_grad=True) for array in arrays(case, "float64")[:2])

    def conv(x, weight):
        return pp.conv(x, weight, **case.arguments, backend="cupy")

    np.testing.assert_allclose(conv(x, weight).detach().cpu().numpy(), pp.conv(
        x.detach().cpu().numpy(), weight.detach().cpu().numpy(), **case.arguments), 1e-10, 1e-10)
    assert torch.autograd.gradcheck(conv, (x, weight))
    assert torch.autograd.gradgradcheck(conv, (x, weight))


def test_gpu_by_hand():
    """A window over both borders and the rule for ties and NaN, as every engine has them."""
    test_pools.test_window_over_both_borders(GPU)
