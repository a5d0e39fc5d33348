"""Arithmetic of the CUDA kernels, compiled by the host's compiler from the very text that a GPU gets; no GPU runs here.

Pools, padding modes, columns and their gradients through the CuPy engine's own Python, on NumPy arrays.
"""

import ctypes
import functools
import importlib.util
import pathlib

import cases
import cupy_host
import cupy_logic
import numpy as np
import oracle_pools
import pytest
import test_pad
import test_pools
from pool_cases import pool_cases
from test_random import run

import pyflux_pad as pp
from pyflux_pad.backends.cupy import windows
from pyflux_pad.backends.cupy.arrays import Arrays
from pyflux_pad.geometry import adaptive_geometry, covering_bounds, pool_geometry

compiles = pytest.mark.skipif(cupy_host.COMPILER is None, reason="no C++ compiler here (CXX or g++)")
registered = cupy_logic.registered
KERNELS = cupy_logic.engine("host-kernels", {"arrays": lambda: Arrays(np)})
DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint32", "int64", "uint64")
COMPLEX = ("complex64", "complex128")


def named(checks):
    return pytest.mark.parametrize("check", checks, ids=lambda check: getattr(check, "__name__", None))


@compiles
@named([
    functools.partial(test_pools.test_random, seed=0), functools.partial(test_pools.test_random, seed=1),
    *(functools.partial(test_pools.test_random_indices, dtype=dtype)
      for dtype in ("float64", "int64", "int8", "uint8")),
    test_pools.test_ties_nan_and_empty_windows_by_hand, test_pools.test_window_over_both_borders,
    *(functools.partial(test_pools.test_adaptive, axes=axes) for axes in (1, 2, 3)),
    *(functools.partial(test_pools.test_unfold_and_fold, seed=seed) for seed in (0, 1)),
    *(functools.partial(test_pools.test_half_precision_is_rounded_once, function=function)
      for function in (pp.max_pool, pp.avg_pool, pp.lp_pool)),
    functools.partial(test_pad.test_random, seed=0), functools.partial(test_pad.test_random, seed=1),
    functools.partial(test_pad.test_random_gradients, detach=False),
    functools.partial(test_pad.test_random_gradients, detach=True), test_pad.test_empty_axis,
])
def test_host_kernels(check):
    """What every engine must pass."""
    launched = cupy_logic.MADE["host-kernels"].device.launched
    launched.clear()
    check(KERNELS)
    assert launched, "no kernel ran"


@pytest.mark.parametrize("function", [pp.max_pool, pp.avg_pool, pp.lp_pool])
@pytest.mark.parametrize("shape", [(0, 2, 5, 6), (2, 0, 5, 6)], ids=("no batch", "no channels"))
def test_host_kernels_have_nothing_to_do(function, shape):
    launched = cupy_logic.MADE["host-kernels"].device.launched
    launched.clear()
    test_pools.test_empty_arrays(KERNELS, function, shape)
    assert not launched


@compiles
@pytest.mark.parametrize("dtype", (*DTYPES, *COMPLEX))
def test_host_kernels_pad_every_dtype(dtype):
    """Bit for bit numpy.pad, and its transpose: integers modulo 2^bits, low precision summed in float32."""
    def check(engine, case, dtype):
        x = cases.fill(np.random.default_rng(case.seed), (2, 2, *case.size), dtype)
        value = 3 if dtype in ("uint8", "uint32", "uint64") else -3 + 2j if dtype in COMPLEX else -3
        y = engine(pp.pad, x, case.padding, case.mode, value)
        np.testing.assert_array_equal(y, test_pad.numpy_pad(x, case.padding, case.modes, value), strict=True)
        grad = cases.fill(np.random.default_rng(1), y.shape, dtype)
        _, (dx,) = engine.vjp(pp.pad, x, grad_output=grad, padding=case.padding, mode=case.mode)
        wide = grad.astype(np.complex128 if dtype in COMPLEX else dtype if grad.dtype.kind in "iu" else np.float64)
        expected = test_pad.transposed(wide, case.size, case.padding, case.modes)
        if grad.dtype.kind in "iu":
            expected = (wide.reshape(*wide.shape[:2], -1) @ test_pad.matrix(
                case.size, case.padding, case.modes).astype(dtype)).reshape(expected.shape)
        np.testing.assert_allclose(dx, expected.astype(dtype), *loose(dtype), err_msg=repr(case))

    run(check, KERNELS, test_pad.pad_cases(31, 60), dtype)


def loose(dtype):
    """Sums in float32 or float64 in another order; integers are exact."""
    return {"float16": (1e-3, 1e-2), "float32": (1e-5, 1e-5), "complex64": (1e-5, 1e-5),
            "float64": (1e-12, 1e-12), "complex128": (1e-12, 1e-12)}.get(dtype, (0, 0))


@compiles
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_host_kernels_bfloat16(dtype):
    """bfloat16 is widened, summed in float32 and rounded once."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-3, 5, 2 * 3 * 5 * 7).reshape(2, 3, 5, 7).astype(ml_dtypes.bfloat16)
    for function, options in ((pp.avg_pool, {}), (pp.lp_pool, {"norm_type": 3.0}), (pp.max_pool, {})):
        options = {"kernel_size": (2, 3), "padding": ((1, 0), (0, 2)), "stride": 1, **options}
        y, (dx,) = KERNELS.vjp(function, x, grad_output=np.ones((2, 3, 5, 7), dtype), **options)
        wide, (dwide,) = pp.vjp(function, x.astype(np.float32), **options)[0], pp.vjp(
            function, x.astype(np.float32), **options)[1](np.ones((2, 3, 5, 7), np.float32))
        np.testing.assert_allclose(y.astype(np.float32), wide, 2.0**-8)
        np.testing.assert_allclose(dx.astype(np.float32), dwide, 2.0**-8, 2.0**-8)


@compiles
@pytest.mark.parametrize("kind", ["max", "avg", "lp", "pad"])
def test_host_kernels_read_any_strides(kind):
    """Channels last, reversed, with gaps and broadcast: the kernels read in place."""
    x = np.arange(2 * 3 * 5 * 6.0).reshape(2, 5, 6, 3).transpose(0, 3, 1, 2) % 17
    views = {"channels last": x, "reversed": x[:, :, ::-1, ::-1], "gaps": np.repeat(x, 2, 3)[..., ::2],
             "broadcast": np.broadcast_to(x[:1], x.shape),
             "interior": np.pad(x, ((0, 0),) * 2 + ((1, 2),) * 2)[:, :, 1:-2, 1:-2]}
    options = {"kernel_size": (2, 3), "stride": (1, 2), "padding": ((1, 0), (0, 2))}
    functions = {"max": pp.max_pool, "avg": pp.avg_pool, "lp": pp.lp_pool, "pad": pp.pad}
    if kind == "pad":
        options = {"padding": ((1, 2), (3, 0)), "mode": "reflect"}
    for name, view in views.items():
        dense = np.ascontiguousarray(view)
        expected, pullback = pp.vjp(functions[kind], dense, **options)
        grad = np.arange(1.0, expected.size + 1).reshape(expected.shape[::-1]).T % 11
        y, (dx,) = KERNELS.vjp(functions[kind], view, grad_output=grad, **options)
        np.testing.assert_allclose(y, expected, 1e-14, err_msg=name)
        np.testing.assert_allclose(dx, pullback(grad)[0], 1e-13, 1e-13, err_msg=name)


@compiles
def test_host_kernels_at_the_ends_of_a_dtype():
    """The lowest value has a place as any other; powers that vanish send no gradient, as on NumPy."""
    ends_of_dtypes(KERNELS)


def ends_of_dtypes(engine):
    for dtype in ("float32", "float64", "int8", "uint64"):
        lowest = -np.inf if dtype[0] == "f" else np.iinfo(dtype).min
        y, where = test_pools.with_indices(engine, np.full((1, 1, 4), lowest, dtype), kernel_size=2, padding=((0, 2),))
        assert y.ravel().tolist() == [lowest] * 3
        assert where.ravel().tolist() == [0, 2, -1]
    for value in (0.0, 1e-200):
        _, (dx,) = engine.vjp(pp.lp_pool, np.full((1, 1, 4), value), grad_output=np.ones((1, 1, 2)), kernel_size=2)
        np.testing.assert_array_equal(dx, np.zeros((1, 1, 4)))


@compiles
def test_host_kernels_count_beyond_32_bits(monkeypatch):
    """Above the limit the kernels are compiled for 64-bit integers; the values stay the same."""
    monkeypatch.setattr(windows, "_NARROW", 4)
    run_random = functools.partial(test_pools.test_random, seed=2)
    monkeypatch.setattr(test_pools, "CHUNK", 60)
    run_random(KERNELS)


@compiles
@pytest.mark.parametrize("file, sound, broken", [
    ("pools.cu", "value > best", "value >= best"),
    ("pools.cu", "|| value != value", ""),
    ("pools.cu", "where < 0 ||", ""),
    ("pools.cu", "i += plan.step[0]", "++i"),
    ("pools.cu", "k += plan.step[2]", "++k"),
    ("pools.cu", "total(counts[i]) *", ""),
    ("pools.cu", "sum == 0 ? total(0) :", ""),
    ("pools.cu", "power - 1)), value)", "power - 1)), total(1))"),
    ("gather.cu", "inside &= at >= 0", "inside = at >= 0"),
    ("gather.cu", "first[axis] = list + ends[cell.at[axis]]", "first[axis] = list"),
])
def test_a_broken_kernel_is_caught(monkeypatch, file, sound, broken):
    """The checks above can fail; only what stays inside its memory is broken here."""
    text = windows.source_of(file)
    assert sound in text
    monkeypatch.setattr(windows, "source_of", lambda name: text.replace(sound, broken) if name == file else
                        pathlib.Path(windows.__file__).with_name(name).read_text("utf-8"))
    monkeypatch.setattr(windows, "pools_text", windows.pools_text.__wrapped__)
    monkeypatch.setattr(windows, "sums_text", windows.sums_text.__wrapped__)
    monkeypatch.setattr(windows, "gather_text", windows.gather_text.__wrapped__)
    checks = (functools.partial(test_pools.test_random, seed=0), functools.partial(test_pad.test_random, seed=0),
              functools.partial(test_pad.test_random_gradients, detach=False),
              functools.partial(test_pools.test_random_indices, dtype="float64"), ends_of_dtypes)
    wrong = 0
    for check in checks:
        try:
            check(KERNELS)
        except AssertionError:
            wrong += 1
    assert wrong


@compiles
def test_host_kernels_say_what_they_did(record_property):
    record_property("validated", "kernels: the CUDA text compiled and run on the CPU"
                    f"{', and compiled by NVRTC' if nvrtc() else ''}; no GPU ran")


# ---------------------------------------------------------------- the tables of integers


def test_windows_that_cover_a_cell():
    """`covering_bounds` against the windows that the oracle lists, strided, dilated and adaptive."""
    geometries = []
    for case in pool_cases(5, 300):
        options = case.arguments
        geometries.append((pool_geometry("test", case.size, options["kernel_size"], options["stride"],
                                         options["padding"], options["dilation"], options["ceil_mode"]), case.windows))
    for n in range(1, 8):
        geometries += [(adaptive_geometry("test", (n,), out), oracle_pools.adaptive_windows((n,), (out,)))
                       for out in range(1, 10)]
    for geometry, boxes in geometries:
        for axis in range(geometry.ndim):
            firsts, counts, step = covering_bounds(geometry, axis)
            held = {index[axis]: {cell[axis] for cell in cells} for index, cells, _ in boxes if cells}
            for cell, (first, count) in enumerate(zip(firsts, counts, strict=True)):
                found = {first + step * number for number in range(count)}
                # A window that is empty on another axis is not in the oracle's list, and holds no cell at all.
                assert {j for j, cells in held.items() if cell in cells} <= found
                assert all(cell in held.get(j, {cell}) for j in found)


# ---------------------------------------------------------------- CUDA's own compiler, where it is installed


def nvrtc():
    """Return the folder of NVIDIA's runtime compiler and headers, if pip brought them."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = pathlib.Path(folder) / "cu13"
        if list(found.glob("lib/libnvrtc.so*")) and (found / "include/cuda_fp16.h").exists():
            return found
    return None


@pytest.mark.skipif(nvrtc() is None, reason="nvidia-cuda-nvrtc and nvidia-cuda-runtime are not installed here")
@pytest.mark.parametrize("place", ["int32", "int64"])
@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX, "bfloat16"])
def test_cudas_compiler_takes_the_kernels(dtype, place):
    """Compiled for a Hopper GPU, on any machine; nothing is run."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    texts = [windows.gather_text, windows.sums_text, *([] if dtype in COMPLEX else [windows.pools_text])]
    for text in texts:
        compile_for_hopper(text(np.dtype(dtype), np.dtype(place)))


def compile_for_hopper(text):
    """Compile as cupy.RawModule does; assert that there is nothing to complain of."""
    folder = nvrtc()
    assert folder
    for name in sorted(folder.glob("lib/libnvrtc-builtins.so*")):
        ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(min(folder.glob("lib/libnvrtc.so*"))))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=sm_90", f"-I{folder / 'include'}".encode()]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert (status, log.value.strip()) == (0, b""), log.value.decode()


