"""``pyflux-pad port`` and ``inspect``: what people and programs read, exit statuses, and what a large model takes."""

import io
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

import porting_models  # noqa: E402
from porting_onnx import floats, model, node, random  # noqa: E402

from pyflux_pad import porting  # noqa: E402
from pyflux_pad.console import Progress  # noqa: E402


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(tmp_path):
    """A model with a Caffe2 pool, a SAME pool, a causal and a plain convolution, and a Pad that is left."""
    nodes = [
        node("Conv", "x w", "a", pads=[2, 1, 0, 1], name="causal"),
        node("MaxPool", "a", "b", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 2, 2], name="caffe2"),
        node("MaxPool", "b", "c", kernel_shape=[2, 2], auto_pad="SAME_LOWER", name="lower"),
        node("BatchNormalization", "k scale scale scale scale", "d", name="norm"),
        node("Conv", "c w3", "k", pads=[1, 1, 1, 1], name="plain"),
        node("ConvTranspose", "d w2", "e", strides=[2, 2], pads=[0, 1, 1, 1], output_padding=[0, 1], name="up"),
        node("Pad", "e p", "y", mode="reflect", name="border"),
    ]
    arrays = {"w": random(4, 3, 3, 3), "w2": random(4, 4, 3, 3, seed=1), "w3": random(4, 4, 3, 3, seed=2),
              "scale": floats(1, 2, 3, 4),
              "p": np.array([0, 0, 0, 1, 0, 0, 0, 2])}  # fmt: skip
    proto = model(nodes, {"x": ("N", 3, 16, 16)}, arrays=arrays, opset=15)
    onnx.save(proto, tmp_path / "small.onnx")
    return "small.onnx"


# -------------------------------------------------------------------------------------------------------------- inspect


def test_inspect(run, small):
    status, out, err = run("inspect", small, "--size", "N=1")
    assert (status, err) == (0, "")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line[:1].isalpha()}
    assert rows["causal"] == "Conv 1x4x16x16 (2,0) (1,1) no same rule 108"
    assert rows["caffe2"] == "MaxPool 1x4x8x8 (0,2) (0,2) = tf, onnx_upper, jax"
    assert rows["lower"] == "MaxPool 1x4x8x8 (1,0) (1,0) same_lower = onnx_lower, flux"
    assert rows["plain"] == "Conv 1x4x8x8 (1,1) (1,1) 144"
    assert rows["up"] == "ConvTranspose 1x4x16x16 (0,1) (1,0) no same rule 144"
    assert rows["border"] == "Pad 1x4x16x19 (0,0) (0,0) (0,0) (1,2) no same rule"
    assert out.splitlines()[-1] == "7 nodes, 5 with lo != hi; 400 parameters, 0.0 MiB"


def test_inspect_json(run, small):
    status, out, _ = run("inspect", small, "--json")
    record = json.loads(out)
    assert status == 0
    assert record["inputs"] == ["x: float32 Nx3x16x16"]
    caffe2 = record["nodes"][1]
    assert caffe2 == {"name": "caffe2", "op": "MaxPool", "shapes": ["Nx4x8x8"], "pads": "(0,2) (0,2)",
                      "asymmetric": True, "equal_to": ["tf", "onnx_upper", "jax"], "parameters": 0}  # fmt: skip


def test_inspect_list_ops(run, small):
    proto = onnx.load(small)
    proto.graph.node.append(node("Einsum", "y", "z", equation="abcd->a"))
    onnx.save(proto, "with_einsum.onnx")
    status, out, _ = run("inspect", "with_einsum.onnx", "--list-ops")
    assert status == 0
    assert [line.split() for line in out.splitlines()[2:9]] == [
        ["BatchNormalization", "1", "yes"], ["Conv", "2", "yes"], ["ConvTranspose", "1", "yes"], ["Einsum", "1", "NO"],
        ["MaxPool", "2", "yes"], ["Pad", "1", "yes"], []]  # fmt: skip
    assert out.splitlines()[-1] == "7 of 8 nodes can be read"
    status, _, err = run("inspect", "with_einsum.onnx")
    assert status == 2
    assert re.match(r"pyflux-pad inspect: error: with_einsum\.onnx: operators that cannot be read: Einsum", err)


# ----------------------------------------------------------------------------------------------------------------- port


@pytest.mark.parametrize("fold", [(), ("--fold-bn",)])
@pytest.mark.parametrize("target", ["onnx", "torch"])
@pytest.mark.parametrize("against", [(), ("--against", "onnxruntime")])
def test_port_and_check(run, small, target, against, fold):
    arguments = "port", small, "out.bin", "--to", target, "--check", "--size", "N=2", *against, *fold
    for backend in ("numpy", "torch"):
        status, out, err = run(*arguments, "--backend", backend, "--force", "--json")
        assert (status, err) == (0, "")
        record = json.loads(out)
        assert record["passed"]
        assert record["nodes"] == (6 if fold else 7)
        assert {row["node"] for row in record["differences"]} >= {"causal", "caffe2", "lower", "up", "border"}
        assert sum(row["output"] for row in record["differences"]) == 1
        assert record["asymmetric"] == ["causal", "caffe2", "lower", "up", "border"]
    if target == "onnx":
        assert len(porting.read_onnx("out.bin").nodes) == record["nodes"]


def test_port_text(run, small):
    status, out, _ = run("port", small, "out.onnx", "--to", "onnx", "--check", "--size", "N=1")
    lines = out.splitlines()
    assert status == 0
    assert re.fullmatch(r"out\.onnx: 7 nodes for onnx, 0\.0 MiB, 5 with lo != hi pads", lines[0])
    assert lines[2] == "on numpy against the model on torch:"
    assert re.fullmatch(r"border +Pad +1x4x16x19 +\S+ +\S+ +right, output", lines[-3])
    assert lines[-1] == "the outputs agree: the limit is 0.0001 of the largest value"


def test_a_difference_is_seen(run, small, monkeypatch):
    """Stored outputs that are wrong: exit status 1, and the table says where."""
    graph = porting.read_onnx(small)
    x = random(1, 3, 16, 16)
    (y,) = graph.run({"x": x}).values()
    np.savez("right.npz", x=x, y=y)
    np.savez("wrong.npz", x=x, y=y[..., ::-1])
    assert run("port", small, "out.onnx", "--to", "onnx", "--check", "--inputs", "right.npz")[0] == 0
    status, out, _ = run("port", small, "out.onnx", "--to", "onnx", "--check", "--inputs", "wrong.npz", "--force")
    assert status == 1
    assert "outputs stored in wrong.npz" in out
    assert re.search(r"border .*MISMATCH, output", out)
    assert out.splitlines()[-1] == "the outputs DIFFER: the limit is 0.0001 of the largest value"


def test_existing_files_are_kept(run, small, tmp_path):
    (tmp_path / "out.onnx").write_text("precious")
    status, _, err = run("port", small, "out.onnx", "--to", "onnx")
    assert status == 2
    assert err == ("pyflux-pad port: error: port: out.onnx exists and is not overwritten; force it, or write "
                   "elsewhere\n")  # fmt: skip
    assert (tmp_path / "out.onnx").read_text() == "precious"


class Trap:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--check",), "input x: float32 Nx3x16x16 has open sizes; give them values (--size NAME=VALUE), or arrays"),
        (("--check", "--size", "N"), "--size N is no NAME=VALUE with a whole number, as in batch=1"),
        (("--size", "M=1"), "small.onnx: sizes ['M'] are not open in this model; open are ['N']"),
        (("--against", "onnxruntime"), "--against, --inputs and --backend are for --check; add it"),
        (("--check", "--inputs", "none.npz"), "none.npz is no npz file of plain arrays"),
        (("--check", "--inputs", "pickled.npz"), "pickled.npz is no npz file of plain arrays"),
        (("--check", "--inputs", "other.npz"), "other.npz lacks the inputs x; it has z"),
        (("--check", "--inputs", "double.npz"), "input 'x' must be float32, got float64; nothing is converted"),
        (("--check", "--size", "N=1", "--backend", "metal"), "backend='metal' is no backend"),
    ],
)
def test_bad_arguments(run, small, arguments, message, tmp_path):
    np.savez("other.npz", z=np.ones(1))
    np.savez("double.npz", x=np.ones((1, 3, 16, 16)))
    np.savez("pickled.npz", x=np.array([Trap()], object), allow_pickle=True)
    status, out, err = run("port", small, "out.onnx", "--to", "onnx", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("pyflux-pad port: error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "out.onnx").exists()


def test_a_bad_model_writes_nothing(run, small, tmp_path):
    whole = (tmp_path / small).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[:-40])
    before = sorted(tmp_path.iterdir())
    status, _, err = run("port", "cut.onnx", "out.onnx", "--to", "onnx")
    assert status == 2
    assert "cut.onnx: not an ONNX model, or truncated or corrupted" in err
    assert sorted(tmp_path.iterdir()) == before


def test_the_bar_is_drawn_for_people_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        with Progress("checking", 2, stream) as bar:
            bar.step()
            bar.step()
    assert f"checking [{'#' * 15}{' ' * 15}] 1/2" in screen.getvalue()
    assert screen.getvalue().endswith("\r")
    assert file.getvalue() == ""


# ------------------------------------------------------------------------------------------------------------ resources

STATUS = pathlib.Path("/proc/self/status")
# The peak of the process's own memory: getrusage would count that of the process which started it.
MEASURED = """
import re, sys, time
import numpy, onnx, torch, safetensors.torch, pyflux_pad.porting.module, pyflux_pad.cli
torch.set_num_threads(2)
def memory(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s+(\\d+) kB", file.read())[1]) * 1024
before, start = memory("VmRSS"), time.perf_counter()
status = pyflux_pad.cli.main(sys.argv[1:])
print("MEASURED", status, time.perf_counter() - start, memory("VmHWM") - before, file=sys.stderr)
"""


@pytest.mark.skipif(not STATUS.exists(), reason="Linux tells a process its memory there")
@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_a_large_model_is_checked_within_bounds(tmp_path, target, record_property):
    """tiny YOLOv2, 60.5 MiB: under 10 s, and at most 4 times its size above what the imports take."""
    data = porting_models.tiny_yolov2().SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    graph = porting.read_onnx(data)
    x = np.random.default_rng(1).uniform(0, 255, (1, 3, 416, 416)).astype(np.float32)
    np.savez(tmp_path / "stored.npz", image=x, **graph.run({"image": x}, backend="torch"))
    command = ("port", "model.onnx", "out", "--to", target, "--check", "--inputs", "stored.npz")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", MEASURED, *command], cwd=tmp_path, capture_output=True, text=True,
                          timeout=120, check=False, env=environment)  # fmt: skip
    assert "MEASURED 0" in done.stderr, done.stderr
    seconds, grown = map(float, done.stderr.split("MEASURED 0 ")[1].split())
    record_property("coverage", f"--check of a 60.5 MiB model to {target}: {seconds:.1f} s, {grown / len(data):.1f} "
                                f"times its size")  # fmt: skip
    assert seconds < 10
    assert grown <= 4 * len(data)
