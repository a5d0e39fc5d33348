"""Logic of tensors on the CuPy engine through torch's operators: tensors of the CPU stand for those of a GPU."""

import contextlib
from typing import Any

import checks
import cupy_logic
import numpy as np
import pytest
from cases import CONV_CASES, TRANSPOSED_CASES
from cupy_host import HostDevice
from engines import Engine

import pyflux_pad as pp
from pyflux_pad import backends
from pyflux_pad.backends.cupy import CupyEngine, bridge

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.engine("torch"), pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]
CARRIED = Engine("cupy-under-torch", "numpy", tensors=True, backend="cupy")
SOME = [case for case in (*CONV_CASES, *TRANSPOSED_CASES) if case.name.startswith("2d_")]


@pytest.fixture(autouse=True)
def provider(monkeypatch):
    """Make "cupy" an engine on the host's memory, for tensors of the CPU."""
    from pyflux_pad.backends.torch_ops import CarriedEngine

    symmetric = cupy_logic.Symmetric()
    carried = CarriedEngine("cupy", "cupy")
    carried.device = "cpu"
    monkeypatch.setitem(backends._ENGINES, "cupy", CupyEngine(HostDevice(), makers={"prepad": lambda: symmetric}))
    monkeypatch.setitem(backends._ADAPTED, ("cupy", "torch"), carried)
    monkeypatch.setattr(bridge, "on_torchs_stream", lambda device, torch, place: contextlib.nullcontext())
    return symmetric


@pytest.mark.parametrize("case", SOME, ids=str)
def test_logic_of_tensors(provider, case):
    checks.forward(CARRIED, case, "float64")
    checks.gradients(CARRIED, case, "float64")
    assert provider.calls
    assert {geometry.ndim for _, geometry in provider.calls} == {2}, "the third axis that the operators add is dropped"


def test_logic_of_higher_derivatives():
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 2, 3, 2, dtype=torch.float64, requires_grad=True)

    def conv(x, weight):
        return pp.conv(x, weight, stride=(2, 1), padding=((1, 2), (0, 3)), groups=2, backend="cupy")

    assert torch.autograd.gradcheck(conv, (x, weight))
    assert torch.autograd.gradgradcheck(conv, (x, weight))


def test_logic_of_dense_results():
    """The operators promise dense results: a gradient that is the interior of a padded one is copied."""
    x = torch.randn(1, 2, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    y = pp.conv(x, torch.randn(3, 2, 2, 3), padding=((0, 1), (3, 0)), backend="cupy")
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.is_contiguous()
    assert gradient.is_contiguous()


def test_logic_of_streams_is_asked(monkeypatch):
    """Each of the three operators runs in the context of torch's stream."""
    entered = []

    @contextlib.contextmanager
    def on_torchs_stream(device, torch, place):
        entered.append(place.type)
        yield

    monkeypatch.setattr(bridge, "on_torchs_stream", on_torchs_stream)
    x, weight = torch.ones(1, 1, 4, 4, requires_grad=True), torch.ones(1, 1, 2, 2, requires_grad=True)
    pp.conv(x, weight, padding=((1, 0), (0, 0)), backend="cupy").sum().backward()
    assert entered == ["cpu"] * 3


class Cuda:
    """What of torch.cuda and cupy.cuda the two stream contexts touch."""

    def __init__(self, address):
        self.address, self.log = address, []

    def current_device(self):
        return 3

    def current_stream(self, number):
        self.log.append(("current_stream", number))
        return type("S", (), {"cuda_stream": self.address})

    class Stream:
        null = contextlib.nullcontext("null")

        @staticmethod
        def from_external(stream):
            assert stream.__cuda_stream__()[0] == 0
            return contextlib.nullcontext(stream.__cuda_stream__()[1])


@pytest.mark.parametrize("address", [0, 77])
def test_logic_of_torchs_stream(monkeypatch, address):
    """CuPy works on torch's current stream of the tensor's device, the default one included."""
    monkeypatch.undo()
    cuda = Cuda(address)
    device: Any = HostDevice()
    numbers = []
    device.on = lambda number: numbers.append(number) or contextlib.nullcontext()
    device.xp = type("xp", (), {"cuda": cuda})
    for place, number in ((torch.device("cuda", 1), 1), (torch.device("cuda"), 3)):
        with bridge.on_torchs_stream(device, type("T", (), {"cuda": cuda}), place):
            pass
        assert (numbers[-1], cuda.log[-1]) == (number, ("current_stream", number))


def test_logic_of_a_cuda_kernel():
    """The operators have kernels for CUDA, and refuse a CPU tensor there as everywhere."""
    for name in ("conv", "conv_input", "conv_weight"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"pyflux_pad::{name}", "CUDA")
    with pytest.raises(TypeError, match=r"mixed|float32 but"):
        pp.conv(torch.ones(1, 1, 4), torch.ones(1, 1, 2, dtype=torch.float64), backend="cupy")


def test_numpy_matches():
    """The stand-in is no tautology: with the provider's result spoiled, the values are wrong."""
    engine: Any = backends._ENGINES["cupy"]
    sound = engine._convolve
    engine._convolve = lambda *given: sound(*given) * np.float64(2)
    with pytest.raises(AssertionError):
        checks.forward(CARRIED, SOME[0], "float64")
