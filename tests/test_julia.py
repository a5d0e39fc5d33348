"""The Julia engine: what plain NNlib answers where it is wrong or refuses, and that this package is right there.

Each trap is asked of NNlib itself, in the same process and on the same numbers, so that a test also says when NNlib is
mended.
"""

import functools
import subprocess
import sys
from typing import Any

import numpy as np
import oracle
import pytest

import pyflux_pad as pp

pytestmark = pytest.mark.engine("julia")


@functools.cache
def julia():
    """Return a Julia module of the tests' own with NNlib in it."""
    pp.julia_info()
    import juliacall

    module = juliacall.newmodule("PyFluxPadTests")
    module.seval("import NNlib, PyFluxPad; const ChainRulesCore = NNlib.ChainRulesCore")
    return module


def nnlib(code, *arrays) -> Any:
    """Run a Julia function on dense Julia arrays with reversed axes; return its arrays as NumPy's, or its error."""
    module = julia()
    dense = module.seval("x -> x isa AbstractArray ? Array(x) : x")
    arguments = [dense(array.T) for array in arrays]
    safe = module.seval("(f, arguments...) -> try; f(arguments...); catch error; string(typeof(error)); end")
    result = safe(module.seval(code), *arguments)
    return result if isinstance(result, (str, float)) else np.array(result).T


def random(*shape, dtype="float32"):
    generator = np.random.default_rng(sum(shape))
    if np.dtype(dtype).kind == "c":
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------- convolution


def test_flipped_is_cross_correlation():
    """NNlib's docstring says the opposite; flipped=true leaves the kernel as it lies, as this package does."""
    x, w = random(2, 3, 6, 7), random(4, 3, 2, 3)
    options = {"padding": ((1, 2), (3, 0)), "stride": (2, 1)}
    plain = nnlib("(x, w) -> NNlib.conv(x, w; pad=(3, 0, 1, 2), stride=(1, 2), flipped=true)", x, w)
    np.testing.assert_allclose(pp.conv(x, w, **options, backend="julia"), plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(plain, pp.conv(x, w, **options), rtol=1e-4, atol=1e-5)


def test_empty_batch():
    """NNlib throws forward, and leaves the weight gradient as the memory was."""
    x, w, dy = random(0, 2, 5), random(3, 2, 2), random(0, 3, 4)
    assert isinstance(nnlib("(x, w) -> NNlib.conv(x, w; flipped=true)", x, w), str)
    filled = nnlib(
        "(x, w, dy) -> NNlib.∇conv_filter!(fill(7f0, size(w)), x, dy, NNlib.DenseConvDims(x, w; flipkernel=true))",
        x, w, dy)
    assert (filled == 7).all()
    assert pp.conv(x, w, backend="julia").shape == (0, 3, 4)
    assert pp.conv_input(x.shape, w, dy, backend="julia").shape == (0, 2, 5)
    np.testing.assert_array_equal(pp.conv_weight(x, w.shape, dy, backend="julia"), np.zeros_like(w))


def test_no_channels():
    x, w, bias = random(2, 0, 5), random(3, 0, 2), random(3)
    np.testing.assert_array_equal(pp.conv(x, w, bias, backend="julia"), np.broadcast_to(bias[:, None], (2, 3, 4)))


def test_negative_pads_crop():
    x, w = random(2, 2, 9), random(3, 2, 2)
    plain = nnlib("(x, w) -> NNlib.conv(x, w; pad=(-2, 3), stride=2, flipped=true)", x, w)
    ours = pp.conv(x, w, padding=((-2, 3),), stride=2, backend="julia")
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours, pp.conv(x[..., 2:], w, padding=((0, 3),), stride=2), rtol=1e-4, atol=1e-5)


def test_a_strided_weight():
    """NNlib multiplies what lies in memory, not the view."""
    x, big = random(1, 2, 6), random(6, 2, 3)
    plain = nnlib("(x, w) -> NNlib.conv(x, view(w, :, :, 1:2:6); flipped=true)", x, big)
    right = pp.conv(x, big[::2])
    assert np.abs(plain - right).max() > 0.1
    np.testing.assert_allclose(pp.conv(x, big[::2], backend="julia"), right, rtol=1e-4, atol=1e-5)


def test_a_numpy_array_as_it_comes_is_silently_wrong():
    """juliacall's wrapper of a C-contiguous array has other strides than NNlib assumes."""
    x, w = random(5, 4, 2, 1), random(3, 2, 2, 3)  # here with Julia's axes, width first
    plain = julia().seval("(x, w) -> NNlib.conv(x, w; flipped=true)")(x.T.copy().T, w)
    right = pp.conv(x.T, w.T)
    assert np.abs(np.array(plain).T - right).max() > 0.1
    np.testing.assert_allclose(pp.conv(x.T, w.T, backend="julia"), right, rtol=1e-4, atol=1e-5)


def test_half_precision_is_summed_in_single():
    """NNlib sums float16 in float16: 4096 ones and a hundred are lost on the way."""
    x, w = np.ones((1, 4196, 1), np.float16), np.ones((1, 4196, 1), np.float16)
    assert nnlib("(x, w) -> NNlib.conv(x, w; flipped=true)", x, w).item() == 2048
    y = pp.conv(x, w, backend="julia")
    assert y.dtype == np.float16
    assert y.item() == np.float16(4196)


def test_half_precision_is_rounded_once():
    x, w, bias = np.array([[[1.0]]], np.float16), np.array([[[2.0**-11]]], np.float16), np.array([1.0], np.float16)
    # 2^-11 + 1 is a tie in float16 (to even: 1); with 2^-12 more, which only float32 keeps, it rounds up.
    x2, w2 = np.array([[[1.0], [1.0]]], np.float16), np.array([[[2.0**-11], [2.0**-12]]], np.float16)
    assert pp.conv(x, w, bias, backend="julia").item() == 1
    assert pp.conv(x2, w2, bias, backend="julia").item() == 1 + 2.0**-10


def test_mixed_types_are_refused():
    x, w = random(1, 2, 6), random(3, 2, 2, dtype="float64")
    assert nnlib("(x, w) -> NNlib.conv(x, w; flipped=true)", x, w).dtype == np.float64
    with pytest.raises(TypeError, match=r"x is float32 but weight is float64.*convert one of them"):
        pp.conv(x, w, backend="julia")


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_integers_are_refused(dtype):
    x, w = np.ones((1, 1, 4), dtype), np.ones((1, 1, 2), dtype)
    for call in (lambda: pp.conv(x, w, backend="julia"), lambda: pp.conv_input(x.shape, w, x[..., 1:], backend="julia"),
                 lambda: pp.conv_weight(x, w.shape, x[..., 1:], backend="julia")):
        with pytest.raises(TypeError, match=rf"the arrays are {dtype}; backend 'julia' convolves.*backend='numpy'"):
            call()


def test_transposes_do_not_conjugate():
    """NNlib's do; this package's vjp conjugates, as torch's backward does, its transposes do not."""
    x, w, dy = (random(*shape, dtype="complex128") for shape in ((2, 4, 6), (6, 2, 3), (2, 6, 4)))
    dims = "NNlib.DenseConvDims(x, w; flipkernel=true, groups=2)"
    theirs = nnlib(f"(x, w, dy) -> NNlib.∇conv_data(dy, w, {dims})", x, w, dy)
    ours = pp.conv_input(x.shape, w, dy, groups=2, backend="julia")
    np.testing.assert_allclose(ours, pp.conv_input(x.shape, w, dy, groups=2), rtol=1e-10, atol=1e-10)
    assert np.abs(ours - theirs).max() > 0.1
    _, pullback = pp.vjp(pp.conv, x, w, groups=2, backend="julia")
    np.testing.assert_allclose(pullback(dy)[0], theirs, rtol=1e-10, atol=1e-10)
    theirs = nnlib(f"(x, w, dy) -> NNlib.∇conv_filter(x, dy, {dims})", x, w, dy)
    ours = pp.conv_weight(x, w.shape, dy, groups=2, backend="julia")
    np.testing.assert_allclose(ours, pp.conv_weight(x, w.shape, dy, groups=2), rtol=1e-10, atol=1e-10)
    assert np.abs(ours - theirs).max() > 0.1
    np.testing.assert_allclose(pullback(dy)[1], theirs, rtol=1e-10, atol=1e-10)


def test_a_factor_under_differentiation():
    """NNlib's rule for alpha throws; here a factor is a factor of the result."""
    x, w, dy = random(1, 2, 6), random(3, 2, 2), random(1, 3, 5)
    rule = ("(x, w, dy) -> begin; d = NNlib.DenseConvDims(x, w; flipkernel=true); "
            "_, back = ChainRulesCore.rrule(NNlib.conv, x, w, d; alpha=2f0); ChainRulesCore.unthunk(back(dy)[2]); end")
    assert nnlib(rule, x, w, dy) == "MethodError"
    _, pullback = pp.vjp(pp.conv, x, w, backend="julia")
    np.testing.assert_allclose(pullback(2 * dy)[0], 2 * pp.conv_input(x.shape, w, dy), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- memory


def test_memory_is_shared(monkeypatch):
    """Contiguous operands reach Julia on their own memory, and the result is the array that Julia wrote to."""
    from pyflux_pad.backends.julia.runtime import running

    seen, call = [], running().call
    monkeypatch.setattr(running(), "call", lambda name, integers, *at: (seen.append(at), call(name, integers, *at)))
    x, w = random(2, 3, 6), random(4, 3, 2)
    y = pp.conv(x, w, padding=((1, 0),), backend="julia")
    assert seen.pop() == (y.ctypes.data, x.ctypes.data, w.ctypes.data)
    dx = pp.conv_input(x.shape, w, y, padding=((1, 0),), backend="julia")
    assert seen.pop() == (dx.ctypes.data, y.ctypes.data, w.ctypes.data)
    dw = pp.conv_weight(x, w.shape, y, padding=((1, 0),), backend="julia")
    assert seen.pop() == (dw.ctypes.data, x.ctypes.data, y.ctypes.data)


@pytest.mark.engine("torch")
def test_memory_of_tensors_is_shared(monkeypatch):
    import torch

    from pyflux_pad.backends.julia.runtime import running

    seen, call = [], running().call
    monkeypatch.setattr(running(), "call", lambda name, integers, *at: (seen.append(at), call(name, integers, *at)))
    x, w = (torch.tensor(array, requires_grad=True) for array in (random(2, 3, 6), random(4, 3, 2)))
    y = pp.conv(x, w, padding=((1, 0),), backend="julia")
    assert seen.pop() == (y.data_ptr(), x.data_ptr(), w.data_ptr())
    g = torch.randn_like(y)
    y.backward(g)
    assert sorted(at[1:] for at in seen) == sorted([(g.data_ptr(), w.data_ptr()), (x.data_ptr(), g.data_ptr())])


def layouts(array):
    """Yield the same values as other memory: what a call may be handed."""
    yield "non-contiguous", np.repeat(array, 2, axis=-1)[..., ::2]
    yield "reversed", array[..., ::-1].copy()[..., ::-1]
    yield "Fortran", np.asfortranarray(array)
    yield "byte-swapped", array.astype(array.dtype.newbyteorder("S"))
    raw = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    raw[...] = array
    assert not raw.flags.aligned
    yield "misaligned", raw
    locked = array.copy()
    locked.flags.writeable = False
    yield "read-only", locked


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_layouts(which, dtype):
    x, w, dy = random(2, 4, 5, 6, dtype=dtype), random(2, 2, 3, 2, dtype=dtype), random(2, 2, 4, 7, dtype=dtype)
    options = {"padding": ((1, 0), (0, 2)), "groups": 2}
    expected = [pp.conv(x, w, **options), pp.conv_input(x.shape, w, dy, **options),
                pp.conv_weight(x, w.shape, dy, **options), *(lambda p: (p(dy)))(pp.vjp(pp.conv, x, w, **options)[1])]
    x, w, dy = (list(layouts(array))[which][1] for array in (x, w, dy))
    options["backend"] = "julia"
    found = [pp.conv(x, w, **options), pp.conv_input(x.shape, w, dy, **options),
             pp.conv_weight(x, w.shape, dy, **options), *(lambda p: (p(dy)))(pp.vjp(pp.conv, x, w, **options)[1])]
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5)


def test_stride_zero():
    x, w = np.broadcast_to(np.float32(3), (2, 3, 6)), random(4, 3, 2)
    np.testing.assert_allclose(pp.conv(x, w, backend="julia"), pp.conv(x, w), rtol=1e-4, atol=1e-5)


def test_operands_stay_as_they_are():
    x, w, dy = random(2, 3, 6), random(4, 3, 2), random(2, 4, 5)
    kept = [array.copy() for array in (x, w, dy)]
    pp.conv(x, w, backend="julia")
    pp.conv_input(x.shape, w, dy, backend="julia")
    pp.conv_weight(x, w.shape, dy, backend="julia")
    for array, before in zip((x, w, dy), kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_nan_stays_where_it_is():
    x, w = random(1, 1, 8), random(1, 1, 3)
    x[0, 0, 4] = np.nan
    np.testing.assert_array_equal(np.isnan(pp.conv(x, w, padding=((1, 0),), backend="julia")[0, 0]),
                                  [False, False, False, True, True, True, False])


# ---------------------------------------------------------------- pools and pads

POOL = ("(x, dy) -> begin; p = NNlib.PoolDims(x, ({k},); padding={pad}, stride=1); y = NNlib.{name}pool(x, p); "
        "NNlib.∇{name}pool(dy, y, x, p); end")


def gradient(name, x, dy, **options):
    _, pullback = pp.vjp(getattr(pp, f"{name}_pool"), x, **options, backend="julia")
    return pullback(dy)[0]


def test_windows_over_both_borders_count_once():
    x, dy = random(1, 1, 3), np.ones((1, 1, 3), np.float32)
    theirs = nnlib(POOL.format(name="mean", k=5, pad=2), x, dy)
    np.testing.assert_allclose(theirs, np.full((1, 1, 3), 0.8), rtol=1e-6)
    np.testing.assert_allclose(gradient("avg", x, dy, kernel_size=5, padding=2, stride=1), np.full((1, 1, 3), 0.6),
                               rtol=1e-6)
    x, dy = random(1, 1, 1), np.ones((1, 1, 1), np.float32)
    assert nnlib(POOL.format(name="max", k=3, pad=1), x, dy).item() == 2
    assert gradient("max", x, dy, kernel_size=3, padding=1, stride=1).item() == 1


def test_the_gradient_goes_to_the_maximum():
    """NNlib sends it to the first element that is about as large."""
    x, dy = np.array([[[1, 1.0001]]], np.float32), np.ones((1, 1, 1), np.float32)
    np.testing.assert_array_equal(nnlib(POOL.format(name="max", k=2, pad=0), x, dy), [[[1, 0]]])
    np.testing.assert_array_equal(gradient("max", x, dy, kernel_size=2, stride=1), [[[0, 1]]])


def test_nan_wins_a_maximum():
    x = np.array([[[1, np.nan, 0, 2]]], np.float32)
    np.testing.assert_array_equal(nnlib("x -> NNlib.maxpool(x, (2,); stride=1)", x), [[[1, 0, 2]]])
    np.testing.assert_array_equal(pp.max_pool(x, 2, stride=1, backend="julia"), [[[np.nan, np.nan, 2]]])


def test_minus_infinity_stays():
    x = np.full((1, 1, 2), -np.inf, np.float32)
    assert nnlib("x -> NNlib.maxpool(x, (2,))", x).item() == -np.finfo(np.float32).max
    assert pp.max_pool(x, 2, backend="julia").item() == -np.inf
    y, index = pp.max_pool(x, 1, padding=((1, 0),), stride=1, return_indices=True, backend="julia")
    np.testing.assert_array_equal(y, [[[-np.inf] * 3]])
    np.testing.assert_array_equal(index, [[[-1, 0, 1]]])


def test_lp_pool_takes_absolute_values():
    x, dy = np.array([[[-1.5, 2, 0, 0]]]), np.ones((1, 1, 2))
    assert nnlib("x -> NNlib.lpnormpool(x, 1.5, (2,))", x) == "DomainError"
    expected = [(1.5**1.5 + 2**1.5) ** (1 / 1.5), 0]
    np.testing.assert_allclose(pp.lp_pool(x, 2, norm_type=1.5, backend="julia"), [[expected]], rtol=1e-12)
    lp = ("(x, dy) -> begin; p = NNlib.PoolDims(x, (2,)); y = NNlib.lpnormpool(x, p; p=2); "
          "NNlib.∇lpnormpool(dy, y, x, p; p=2); end")
    assert np.isnan(nnlib(lp, x, dy)[0, 0, 2:]).all()
    np.testing.assert_allclose(gradient("lp", x, dy, kernel_size=2), [[[-0.6, 0.8, 0, 0]]], rtol=1e-12)


def test_an_odd_pad_tuple_is_refused():
    """NNlib leaves out the last entry without a word."""
    x = random(1, 1, 4)
    assert nnlib("x -> NNlib.pad_repeat(x, (1, 2, 3); dims=1)", x).shape == (1, 1, 7)
    with pytest.raises((pp.GeometryError, TypeError), match="pad"):
        pp.pad(x, (1, 2, 3), "replicate", backend="julia")


def test_reflection_of_one_axis():
    """NNlib's default form has no method for one spatial axis."""
    x = random(1, 2, 4)
    assert nnlib("x -> NNlib.pad_reflect(x, 2)", x) == "TypeError"
    np.testing.assert_array_equal(pp.pad(x, 2, "reflect", backend="julia"),
                                  np.pad(x, [(0, 0), (0, 0), (2, 2)], "reflect"))


def test_repeated_reflection():
    x = random(1, 2, 3)
    assert nnlib("x -> NNlib.pad_symmetric(x, (5, 0); dims=1)", x) == "BoundsError"
    np.testing.assert_array_equal(pp.pad(x, ((5, 0),), "symmetric", backend="julia"),
                                  np.pad(x, [(0, 0), (0, 0), (5, 0)], "symmetric"))


# ---------------------------------------------------------------- what says what runs


def test_julia_info():
    info = pp.julia_info()
    assert tuple(map(int, info.julia.split("."))) >= (1, 10, 3)
    assert tuple(map(int, info.nnlib.split("."))) >= (0, 9, 30)
    assert info.threads >= 1
    assert "blas" in info.blas
    assert info.executable.endswith("julia")
    assert info.project.endswith("Project.toml")
    lines = str(info).splitlines()
    assert len(lines) == len(vars(info))
    assert f"{'nnlib':16}{info.nnlib}" in lines


def test_the_command_line_says_what_runs():
    done = subprocess.run([sys.executable, "-m", "pyflux_pad", "julia"], capture_output=True, text=True, timeout=120,
                          check=True)
    assert pp.julia_info().nnlib in done.stdout


def test_check_of_the_command_line():
    done = subprocess.run([sys.executable, "-m", "pyflux_pad", "check", "--backend", "julia", "numpy"],
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conv_weight" in done.stdout
    assert "every engine is right" in done.stdout


def test_what_julia_says_comes_through():
    """A call that NNlib refuses is a RuntimeError with its words; the next one works."""
    from pyflux_pad.backends.julia.runtime import running

    x, w = random(1, 1, 4), random(1, 1, 2)
    pp.conv(x, w, backend="julia")
    integers = np.ones(27, np.int64)
    integers[5] = 0
    with pytest.raises(RuntimeError, match=r"conv: Julia says: .*please report"):
        running().call("conv", integers.ctypes.data, x.ctypes.data, x.ctypes.data, w.ctypes.data)
    np.testing.assert_allclose(pp.conv(x, w, backend="julia"), pp.conv(x, w), rtol=1e-5)


def test_the_oracle_agrees():
    """One convolution by hand-written loops, so that the engines do not only agree with each other."""
    x, w = random(2, 4, 5, 6, dtype="float64"), random(6, 2, 3, 2, dtype="float64")
    options = {"stride": (2, 1), "padding": ((3, 0), (0, 2)), "dilation": (1, 2), "groups": 2}
    np.testing.assert_allclose(pp.conv(x, w, **options, backend="julia"), oracle.conv(x, w, **options), rtol=1e-12)
