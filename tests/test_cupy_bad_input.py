"""What the CuPy engine refuses, and how it says so: without a GPU, on stand-ins for what is missing or wrong."""

import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import cupy_fakes
import cupy_logic
import numpy as np
import pytest
from cupy_host import HostDevice
from test_bad_input import refused
from test_cupy_frontend import CASE, GRAD, WEIGHT, X, convolve, engine, makers

import pyflux_pad as pp
from pyflux_pad.backends import BackendUnavailable
from pyflux_pad.backends.cupy import CupyEngine, bridge, frontend, load, prepad, presence, unpad
from pyflux_pad.backends.cupy.arrays import Arrays
from pyflux_pad.backends.cupy.providers import VARIABLE, Missing

ROOT = pathlib.Path(__file__).parents[1]


def python(code, **environment):
    """Run code in a fresh interpreter; return (status, output and errors)."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path, **environment},
                          capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


# ---------------------------------------------------------------- CuPy, driver, device


def test_cupy_missing():
    """No CuPy: the report says so with the remedy, and asking for it is an error with both."""
    code = """
import sys
sys.modules["cupy"] = None
import numpy, pyflux_pad as pp
info = pp.available_backends()["cupy"]
assert not info.available and "cupy is not installed" in info.reason and "pip install" in info.remedy, info
for call in (lambda: pp.conv(numpy.ones((1, 1, 4)), numpy.ones((1, 1, 2)), backend="cupy"),
             lambda: pp.set_default_backend("cupy")):
    try:
        call()
    except pp.BackendUnavailable as error:
        assert info.reason in str(error) and info.remedy in str(error), error
    else:
        raise SystemExit("a missing CuPy did not raise")
"""
    status, output = python(code)
    assert status == 0, output


def fake_cupy(error=None, count=0):
    """Return a CuPy without a device, as it is found on machines that have none."""

    def get_device_count():
        if error:
            raise RuntimeError(error)
        return count

    runtime = types.SimpleNamespace(getDeviceCount=get_device_count)
    return types.SimpleNamespace(
        __version__="14.2.0", cuda=types.SimpleNamespace(is_available=lambda: False, runtime=runtime))


def test_driver_missing():
    """CuPy is there, the driver is not: its own words, and what to do."""
    refused(BackendUnavailable, ("'cupy' cannot run", "14.2.0", "cudaErrorInsufficientDriver", "install"),
            load, fake_cupy("cudaErrorInsufficientDriver: CUDA driver version is insufficient"))


def test_device_hidden():
    refused(BackendUnavailable, ("finds 0 devices", "CUDA_VISIBLE_DEVICES"), load, fake_cupy())


@pytest.mark.skipif("cupy" not in sys.modules and not __import__("importlib.util").util.find_spec("cupy"),
                    reason="cupy is not installed here: the stand-ins above are all")
def test_real_cupy_without_a_device():
    """The real CuPy: either there is a GPU, or the error has CuPy's reason and a remedy."""
    code = """
import cupy, pyflux_pad as pp
info = pp.available_backends()["cupy"]
try:
    pp.set_default_backend("cupy")
    assert cupy.cuda.is_available() and info.available
except pp.BackendUnavailable as error:
    assert not cupy.cuda.is_available() and not info.available
    assert info.reason and info.remedy and "'cupy' cannot run" in str(error) and "install" in str(error), error
"""
    status, output = python(code)
    assert status == 0, output


def test_real_cupy_arrays_need_the_engine(monkeypatch):
    """The report without an import: no driver library, or a CuPy that finds no device."""
    monkeypatch.setattr(presence, "_DRIVERS", ("libno_such_driver.so.1",))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert presence.missing() == ("there is no CUDA driver (libno_such_driver.so.1)",
                                  "install NVIDIA's driver, on a machine with one of its GPUs")
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    assert "finds no CUDA device" in str(presence.missing())


def test_numpy_arrays_are_not_converted(monkeypatch):
    """An engine of CuPy arrays takes CuPy arrays: nothing goes to a GPU and back unasked."""
    device = HostDevice()
    made = CupyEngine(device, makers={"arrays": lambda: Arrays(np)})
    monkeypatch.setitem(pp.backends._ENGINES, "cupy", made)
    refused(TypeError, ("'cupy'", "does not take arrays of numpy"), pp.conv, X, WEIGHT, backend="cupy")


@pytest.mark.engine("torch")
def test_tensors_of_the_cpu_are_not_moved(monkeypatch):
    import torch

    made = CupyEngine(HostDevice(), makers={"arrays": lambda: Arrays(np)})
    monkeypatch.setitem(pp.backends._ENGINES, "cupy", made)
    monkeypatch.delitem(pp.backends._ADAPTED, ("cupy", "torch"), raising=False)
    x, weight = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 2, 2)
    refused(TypeError, ("backend 'cupy' computes on a GPU", "x is on cpu", "x.cuda()"),
            pp.conv, x, weight, backend="cupy")
    monkeypatch.delitem(pp.backends._ADAPTED, ("cupy", "torch"))


# ---------------------------------------------------------------- cuDNN


def test_frontend_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    refused(Missing, ("cannot be imported", "pip install nvidia-cudnn-frontend"), frontend.load)


def test_unrelated_module_named_cudnn(monkeypatch):
    other = types.ModuleType("cudnn")
    other.__file__ = "/somewhere/cudnn.py"
    monkeypatch.setitem(sys.modules, "cudnn", other)
    refused(Missing, ("/somewhere/cudnn.py", "is not NVIDIA's frontend", "rename it"), frontend.load)


@pytest.mark.parametrize("version", ["1.14.1", "1.17.0", "1.29.0", "2.0.0"])
def test_frontend_of_another_version(monkeypatch, version):
    cudnn = cupy_fakes.Cudnn()
    cudnn.__version__ = version
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    refused(Missing, (version, "1.18", "1.29", "pip install"), frontend.load)


def test_cudnn_missing(monkeypatch):
    cudnn = cupy_fakes.Cudnn()

    def backend_version():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    cudnn.backend_version = backend_version
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    refused(Missing, ("finds no cuDNN", "cudnnGetVersion", "pip install nvidia-cudnn-cu13"), frontend.load)


def test_cudnn_of_two_versions(monkeypatch, tmp_path):
    """Two libraries in one process share symbols: neither is used."""
    maps = tmp_path / "maps"
    maps.write_text("7f01-7f02 r-xp 00000000 00:00 1   /opt/a b/libcudnn.so.9\n"
                    "7f03-7f04 r--p 00000000 00:00 1   /opt/a b/libcudnn.so.9\n"
                    "7f05-7f06 r-xp 00000000 00:00 2   /usr/lib/libcudnn_graph.so.9\n"
                    "7f07-7f08 r-xp 00000000 00:00 3   /usr/lib/libcudnn.so.9.12.0\n"
                    "7f09-7f0a rw-p 00000000 00:00 0\n")
    assert frontend.loaded_libraries(str(maps)) == ["/opt/a b/libcudnn.so.9", "/usr/lib/libcudnn.so.9.12.0"]
    assert frontend.loaded_libraries(str(tmp_path / "nothing")) == []
    monkeypatch.setitem(sys.modules, "cudnn", cupy_fakes.Cudnn())
    assert frontend.load() is sys.modules["cudnn"]
    monkeypatch.setattr(frontend, "loaded_libraries", lambda: ["/opt/libcudnn.so.9", "/usr/lib/libcudnn.so.9"])
    refused(Missing, ("two cuDNN", "/opt/libcudnn.so.9, /usr/lib/libcudnn.so.9", "keep one"), frontend.load)


def test_torch_without_cuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(Missing, ("torch cannot be imported", "pip install"), bridge.load)
    cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.13.0", cuda=cuda))
    refused(Missing, ("torch 2.13.0 finds no GPU", "built for CUDA"), bridge.load)


def missing(message):
    def make():
        raise Missing(message)

    return make


def test_everything_of_cudnn_missing():
    """CuPy's own kernels compute, after one warning with every reason; by name it is an error."""
    providers = {"frontend": missing("no frontend"), "prepad": missing("no frontend"), "torch": missing("no torch"),
                 "arrays": lambda: Arrays(np)}
    made = cupy_logic.LogicEngine(HostDevice(), makers=providers)
    with pytest.warns(RuntimeWarning, match=r"'arrays', because these cannot: frontend \(no frontend\); prepad "
                                            r"\(no frontend\); torch \(no torch\); " + VARIABLE) as seen:
        _ = [convolve(made, operator=operator) for operator in ("conv", "conv_input", "conv_weight")]
    assert len(seen) == 1
    made.configure("torch", False)
    refused(BackendUnavailable, ("provider 'torch' was asked for", "no torch", "frontend, prepad, arrays"),
            convolve, made)


def test_no_provider_at_all():
    made = cupy_logic.LogicEngine(HostDevice(), makers={"frontend": missing("no frontend")})
    refused(BackendUnavailable, ("conv on cupy", "no provider", "no frontend"), convolve, made)


def test_report_of_providers(monkeypatch):
    """In the order of trial, each with its reason, without an import."""
    found = presence.providers()
    assert list(found) == ["frontend", "prepad", "torch", "arrays"]
    assert found["arrays"] == ""
    monkeypatch.setattr(presence.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in presence.providers()["frontend"]
    monkeypatch.setattr(presence.importlib.util, "find_spec", lambda name: "something")

    def version(name):
        raise presence.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(presence.importlib.metadata, "version", version)
    assert presence.providers()["prepad"] == "the module cudnn is not NVIDIA's frontend"
    assert presence.providers()["torch"] == "torch is not installed"
    monkeypatch.setattr(presence.importlib.metadata, "version", lambda name: "2.13.0+cpu")
    assert "built for CPUs" in presence.providers()["torch"]


# ---------------------------------------------------------------- settings


def test_unknown_provider(monkeypatch):
    made = engine(cupy_fakes.Cudnn())
    refused(ValueError, ("'winograd'", "frontend, prepad, arrays"), made.configure, "winograd", False)
    refused(TypeError, ("allow_tf32", "1"), made.configure, None, 1)
    there: Any = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: True))
    monkeypatch.setenv(VARIABLE, "winograd")
    refused(ValueError, (VARIABLE, "'winograd'", "frontend, prepad, torch, arrays"), load, there)
    monkeypatch.setenv(VARIABLE, "prepad")
    assert load(there).provider == "prepad"
    monkeypatch.setenv(VARIABLE, "")
    assert load(there).provider is None


# ---------------------------------------------------------------- arrays


def test_two_devices():
    """Arrays on two devices: which is where, and the remedy."""
    device = HostDevice()
    device.of = lambda array: 1 if array is WEIGHT else 0
    made = cupy_logic.LogicEngine(device, makers={"arrays": lambda: Arrays(np)})
    refused(TypeError, ("conv: x is on device 0 but weight is on device 1", "cupy.cuda.Device(0)"),
            made.check, "conv", {"x": X, "weight": WEIGHT})


@pytest.mark.parametrize("dtype", ["bool", "datetime64[s]", "float128"])
def test_dtype_that_no_engine_takes(dtype):
    made = engine(cupy_fakes.Cudnn())
    x = np.ones((1, 1, 3), "int64").astype(dtype)
    refused(TypeError, ("conv: x has dtype", "float16, bfloat16"), made.check, "conv", {"x": x, "weight": x})
    refused(TypeError, ("x is float32 but weight is float64", "convert"),
            made.check, "conv", {"x": X, "weight": WEIGHT.astype("float64")})


class Full:
    """NumPy whose memory is full for what a test says."""

    def __init__(self, refuses):
        self.refuses = refuses

    def __getattr__(self, name):
        return getattr(np, name)

    def empty(self, shape, dtype):
        if self.refuses(shape):
            raise MemoryError("Out of memory allocating 1,234 bytes")
        return np.empty(shape, dtype)


def test_out_of_memory_while_pre_padding():
    """A clear error, nothing kept: the next call with room is right."""
    device, cudnn = HostDevice(), cupy_fakes.Cudnn()
    full = [True]
    padded = (2, 6, 7, 6)
    device.xp = Full(lambda shape: full[0] and tuple(shape) == padded)
    made = cupy_logic.LogicEngine(device, makers=makers(cudnn, device, ("prepad",)))
    refused(MemoryError, (f"pre-padded input {padded} of float32", "2,016 bytes", "1,234", "provider='frontend'"),
            convolve, made)
    assert not cudnn.graphs
    full[0] = False
    np.testing.assert_allclose(convolve(made), pp.conv(X, WEIGHT, **CASE.arguments), 1e-5)


def test_prepad_and_unpad_are_adjoint():
    """The public pre-padding on its own: ``<prepad(x), y> = <x, unpad(y)>``, cuts, slack and empty axes included."""
    from cases import CONV_CASES

    copied = 0
    for case in CONV_CASES:
        geometry = pp.plan(case.x_shape, case.weight_shape, **{**case.arguments, "flip_kernel": False}).geometry
        generator = np.random.default_rng(3)
        x = generator.integers(-3, 4, case.x_shape).astype(float)
        padded, left = prepad(np, geometry, x)
        assert padded.shape == left.input_shape
        assert all(low == high >= 0 for low, high in left.padding)
        y = generator.integers(-3, 4, padded.shape).astype(float)
        assert np.vdot(padded, y) == np.vdot(x, unpad(np, geometry, y)), case
        copied += padded.base is None and padded is not x
    assert copied > len(CONV_CASES) / 3


def test_gradient_of_another_shape(monkeypatch):
    made = engine(cupy_fakes.Cudnn())
    made.name = "shapes"
    monkeypatch.setitem(pp.backends._REGISTRY, "shapes", pp.backends.Registration(
        lambda: made, "numpy", "", True, ("numpy",), ""))
    refused(pp.GeometryError, ("grad_output must have the shape",), pp.conv_input, X.shape, WEIGHT, GRAD[:, :, 1:],
            **CASE.arguments, backend="shapes")
    refused(ValueError, ("out shares memory",), pp.conv, X, WEIGHT, **CASE.arguments, backend="shapes",
            out=np.lib.stride_tricks.as_strided(X, GRAD.shape, GRAD.strides))
