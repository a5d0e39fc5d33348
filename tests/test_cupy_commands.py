"""Logic of the commands for a GPU, on a machine of NumPy arrays with a frontend that computes; no GPU runs here."""

import contextlib
import importlib.util
import json
import pathlib
import sys
import types
from typing import Any

import cupy_fakes
import cupy_host
import cupy_logic
import numpy as np
import pytest

import pyflux_pad as pp
from pyflux_pad import backends, porting
from pyflux_pad.backends import BackendInfo
from pyflux_pad.backends.cupy import CupyEngine, frontend, prepad
from pyflux_pad.backends.cupy.arrays import Arrays
from pyflux_pad.backends.cupy.providers import Missing
from pyflux_pad.bench import exact, gpu

compiles = pytest.mark.skipif(cupy_host.COMPILER is None, reason="no C++ compiler here (CXX or g++)")


class Planned(cupy_fakes.Graph):
    """A graph with two plans that can be executed one by one."""

    def get_execution_plan_count(self):
        return 2

    def get_plan_name_at_index(self, index):
        return f"engine {index}"

    def build_plan_at_index(self, index):
        self.log.append("build_plans")

    def get_workspace_size_plan_at_index(self, index):
        return 16

    def execute_plan_at_index(self, pointers, workspace, index, handle):
        self.log = [*self.log[:3], "build_plans"]
        self.execute(pointers, workspace, handle)


class Cudnn(cupy_fakes.Cudnn):
    def pygraph(self, **given):
        return Planned(self, **given)


class HostMachine:
    """NumPy's memory as a GPU; `spoil` may change what the pre-padded path gives."""

    xp = np

    def __init__(self, spoil=None):
        self.device: Any = cupy_host.HostDevice()
        self.cudnn, self.spoil = Cudnn(), spoil
        graphs = frontend.Graphs(self.device, self.cudnn)
        self.makers = {
            "frontend": lambda: frontend.Frontend("frontend", graphs, pairs=True),
            "prepad": lambda: frontend.Frontend("prepad", graphs, pairs=False),
            "torch": self.no_torch,
            "arrays": lambda: Arrays(np),
        }

    def no_torch(self):
        raise Missing("no torch here")

    def engine(self, provider, allow_tf32=False):
        engine: Any = CupyEngine(self.device, provider, allow_tf32, dict(self.makers))
        if self.spoil and provider == "prepad":
            sound = engine._convolve
            engine._convolve = lambda *given, spoil=self.spoil: spoil(sound(*given))
        return engine

    def versions(self):
        return {"device": "a host"}

    def to_host(self, array):
        return array

    def milliseconds(self, call):
        call()
        return 1.0

    def growth(self, call):
        return call().nbytes + 64

    def stream(self):
        return contextlib.nullcontext()

    def synchronize(self):
        pass


TINY = (gpu.Shape("tiny", (2, 4, 9, 8), (6, 4, 3, 3), ((2, 0), (0, 2))),
        gpu.Shape("tiny, stride 2", (2, 4, 8, 8), (6, 4, 3, 3), ((0, 2), (0, 2)), 2),
        gpu.Shape("odd", (2, 7, 12, 12), (3, 7, 10, 10), ((9, 0), (9, 0))))


@compiles
@pytest.mark.filterwarnings("ignore:pyflux_pad:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:(invalid|divide|overflow).*:RuntimeWarning")
def test_logic_of_the_report(tmp_path):
    """Every step runs and finds everything right; the file has all of it; people get a line per step."""
    path = tmp_path / "report.json"
    record = gpu.report(HostMachine(), str(path), TINY, 0.05)
    wrong = {name: step for name, step in record["steps"].items() if not step.get("passed", True)}
    wrong.pop("host", None)  # the fake's execution is Python, and its cost no measure
    assert not wrong
    assert json.loads(path.read_text("utf-8"))["steps"].keys() == record["steps"].keys()
    steps = record["steps"]
    assert steps["exact"]["compared"] >= 3 * 3 * 3
    assert steps["every plan"]["executed"] > 0
    assert {row["operator"] for row in steps["times"]["rows"]} == set(exact.OPERATORS)
    assert any("chosen conv_input" in verdict["what"] for verdict in steps["times"]["verdicts"])
    assert not any("odd" in verdict["what"] for verdict in steps["times"]["verdicts"])
    text = "\n".join(gpu.text(record))
    assert all(name in text for name in steps)
    assert "providers frontend, prepad, arrays" in text


def test_logic_of_a_wrong_provider():
    """A provider that is off by one somewhere is found, with the case."""
    def spoil(result):
        result[(0,) * result.ndim] += 1
        return result

    found = exact.exactness(HostMachine(spoil), 4, ("float32",), 60)
    assert not found["passed"]
    assert {row[4] for row in found["mismatches"]} == {"prepad"}
    assert all(row[5] == 1 for row in found["mismatches"])


@compiles
def test_logic_of_wrong_kernels(monkeypatch):
    machine = HostMachine()
    launch = machine.device.launch

    def without_a_cell(source, kernel, threads, *arguments):
        launch(source, kernel, max(threads - 256, 0), *arguments)

    monkeypatch.setattr(machine.device, "launch", without_a_cell)
    with np.errstate(all="ignore"):
        assert not exact.kernels(machine, 8, ("float32",))["passed"]


def test_logic_of_a_step_that_breaks(monkeypatch, tmp_path):
    """It is a finding; the steps after it run."""
    steps = (("first", lambda: 1 / 0), ("second", lambda: {"passed": True, "count": 3}))
    monkeypatch.setattr(gpu, "_steps", lambda *given: iter(steps))
    record = gpu.report(HostMachine(), str(tmp_path / "report.json"))
    assert not record["passed"]
    assert record["steps"]["first"]["error"].startswith("ZeroDivisionError")
    assert record["steps"]["second"]["passed"]
    text = list(gpu.text(record))
    assert "WRONG" in text[0]
    assert "count 3" in text[1]
    assert text[2].startswith("first: ZeroDivisionError")


def test_logic_of_the_verdicts():
    """What must be reached, per path; float64 and paths without a time are reported alone."""
    row = {"shape": gpu.SHAPES[0].name, "operator": "conv", "dtype": "float32", "tf32": False,
           "symmetric": 1.0, "native": 1.04, "prepad": 1.3, "chosen": 1.04}
    assert [(v["what"].split()[0], v["passed"]) for v in gpu._verdicts(row)] == [("native", True), ("prepad", False)]
    strided = {**row, "shape": gpu.SHAPES[2].name, "operator": "conv_input", "chosen": 1.3, "native": 9.0}
    assert [(v["what"].split()[0], v["passed"]) for v in gpu._verdicts(strided)] == [("chosen", False)]
    assert not list(gpu._verdicts({**row, "dtype": "float64"}))
    assert not list(gpu._verdicts({**row, "native": "refused", "prepad": "refused"}))
    for shape in gpu.SHAPES:
        assert shape.geometry().output_size == (shape.symmetric() or shape.geometry()).output_size
        assert shape.geometry().symmetric_equivalent is None


def test_bench_without_a_gpu(run, monkeypatch):
    """One line that says why, and exit status 2."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(backends._ENGINES, "cupy", raising=False)
    status, out, error = run("bench", "--device", "cuda")
    assert (status, out) == (2, "")
    assert error.startswith("pyflux-pad bench: error: backend 'cupy' cannot run:")
    assert "pip install" in error


def test_logic_of_check(run, monkeypatch):
    """`check --backend cupy` hands CuPy arrays over and takes NumPy arrays back."""
    given = []

    def asarray(array):
        given.append(array)
        return array

    found = {**pp.available_backends(), "cupy": BackendInfo("cupy", "14", "cuda", True)}
    monkeypatch.setattr(pp, "available_backends", lambda: found)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(asarray=asarray, asnumpy=lambda array: array))
    engine = cupy_logic.LogicEngine(cupy_host.HostDevice(), makers={"prepad": cupy_logic.Symmetric})
    monkeypatch.setitem(backends._ENGINES, "cupy", engine)
    status, out, _ = run("check", "--backend", "cupy", "numpy")
    assert status == 0, out
    assert given
    assert "cupy" in out
    monkeypatch.setattr(engine, "_convolve", lambda operator, geometry, first, *rest: first * 0)
    assert run("check", "--backend", "cupy")[0] == 1


def test_info_lists_the_providers(run, monkeypatch):
    found = {"cupy": BackendInfo("cupy", "14", "cuda", True, providers={"frontend": "not installed", "arrays": ""})}
    monkeypatch.setattr(pp, "available_backends", lambda: found)
    _, out, _ = run("info")
    assert "frontend: not installed" in out
    assert "arrays: there" in out


def example():
    path = pathlib.Path(__file__).parents[1] / "examples" / "gpu_inference.py"
    spec = importlib.util.spec_from_file_location("gpu_inference", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dry_run_of_the_flux_layer(tmp_path, capsys, monkeypatch):
    """The layer that cuDNN refused, from a state_dict: both ways, the CPU, and what they print."""
    module = example()
    monkeypatch.setattr(module.FluxLayer, "shape", (2, 7, 100, 100))
    generator = np.random.default_rng(0)
    weight = generator.standard_normal(module.WEIGHT_SHAPE, np.float32)
    np.savez(tmp_path / "layer.npz", weight=weight)
    assert module.main("--dry-run", "--batches", "3", "--weights", str(tmp_path / "layer.npz"))
    out = capsys.readouterr().out
    assert "native      6 pictures" in out
    assert "pre-padded  6 pictures" in out
    assert "largest difference, native from pre-padded" in out
    monkeypatch.setattr(module, "prepad", lambda xp, geometry, x: prepad(xp, geometry, x * 1.01))
    assert not module.main("--dry-run", "--batches", "1", "--weights", str(tmp_path / "layer.npz"))


@pytest.mark.engine("torch")
def test_dry_run_of_a_ported_model(tmp_path, capsys):
    """A folder that write_flux wrote, on pictures of a folder."""
    import torch

    model = torch.nn.Sequential(torch.nn.ZeroPad2d((1, 0, 0, 2)), torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    graph = porting.read_torch(model.eval(), (torch.zeros(2, 3, 9, 8),))
    porting.write_flux(graph, tmp_path / "ported")
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        np.save(tmp_path / "pictures" / f"{number}.npy", np.random.default_rng(number).random((2, 3, 9, 8)))
    module = example()
    assert module.main("--dry-run", "--model", str(tmp_path / "ported"), "--input", str(tmp_path / "pictures"))
    assert "6 pictures" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=r"no \.npy files of shape"):
        module.main("--dry-run", "--model", str(tmp_path / "ported"), "--input", str(tmp_path / "empty"))


def test_the_example_without_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(backends._ENGINES, "cupy", raising=False)
    with pytest.raises(pp.BackendUnavailable, match="pip install"):
        example().main("--batches", "1")
