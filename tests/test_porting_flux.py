"""Flux out and in: what is written, what must not be, the way back, and the models under a real Flux."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

import porting_models as models  # noqa: E402
from porting_onnx import floats, random  # noqa: E402
from test_porting_cases import LIGHT, randomised  # noqa: E402
from test_porting_networks import LOWEST, in_float64, installed, reference, tone  # noqa: E402

from pyflux_pad import cli, porting  # noqa: E402
from pyflux_pad.porting import Graph, ModelError, Node, Pads, Value  # noqa: E402
from pyflux_pad.porting.flux import safetensors  # noqa: E402
from pyflux_pad.porting.module import state_names  # noqa: E402
from pyflux_pad.porting.operators import OPERATORS  # noqa: E402


def of_torch(build, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return porting.read_torch(models.settled(build()), (x,))


def of_onnx(model):
    return porting.read_onnx(model.SerializeToString())


def of_package(package, path, sizes):
    return porting.read_onnx(installed(package, path), sizes=sizes)


NETWORKS = {
    "TCN": lambda: of_torch(models.TCN, (2, 3, 20)),
    "U-Net": lambda: of_torch(models.UNet, (2, 1, 12, 16)),
    "MobileNet": lambda: of_torch(models.Mobile, (2, 3, 33, 36)),
    "tiny YOLOv2": lambda: of_onnx(models.tiny_yolov2(width=4, size=96)),
    "GoogLeNet": lambda: of_onnx(models.googlenet()),
}
REAL = {
    "basic-pitch": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx", {"unk__749": 1}),
    "rapidocr": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                 {"x.0": 1, "x.2": 48, "x.3": 192}),
}  # fmt: skip


def single(op, shape, *arrays, outputs=("y",), **attributes):
    """Return a graph of one operator on an input x and constants; None is an input left out."""
    names = ["" if array is None else f"a{place}" for place, array in enumerate(arrays)]
    node = Node("n", op, ("x", *names), outputs, OPERATORS[op].complete("n", attributes))
    weights = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    trained = frozenset(name for name, array in weights.items() if array.dtype.kind == "f")
    return Graph("single", (Value("x", "float32", shape),), tuple(map(Value, outputs)), (node,), weights, trained)


def window(kernel, *pairs, stride=1, dilation=1, **more):
    n = len(kernel)
    return {"kernel_shape": kernel, "pads": Pads.explicit(pairs), "strides": (stride,) * n,
            "dilations": (dilation,) * n, **more}  # fmt: skip


SINGLES = {
    "conv with pads of four kinds": lambda: single(
        "Conv", (2, 4, 7, 8), random(6, 2, 2, 3), random(6), **window((2, 3), (2, 0), (1, 3), dilation=2, group=2)),
    "conv that crops": lambda: single("Conv", (1, 2, 7, 8), random(3, 2, 2, 3), **window((2, 3), (-1, 2), (1, -2))),
    "transposed with outpad": lambda: single(
        "ConvTranspose", (2, 4, 5, 6), random(4, 3, 2, 3), random(6),
        **window((2, 3), (0, -1), (1, 0), stride=2, group=2)),
    "transposed with more": lambda: single(
        "ConvTranspose", (1, 2, 4, 3), random(2, 3, 2, 2), random(3), **window((2, 2), (-1, 0), (1, -3), stride=2)),
    "max pool, dilated, overhanging": lambda: single(
        "MaxPool", (1, 2, 9, 10), **window((2, 3), (0, 1), (2, 0), stride=2, dilation=2, ceil_mode=1)),
    "average pool that counts its pads": lambda: single(
        "AveragePool", (1, 2, 8, 9), **window((3, 3), (0, 1), (1, 0), stride=2, ceil_mode=1, count_include_pad=1)),
    "average pool that does not": lambda: single(
        "AveragePool", (1, 2, 8, 9), **window((3, 3), (0, 2), (1, 0), stride=2)),
    "reflection": lambda: single(
        "Pad", (1, 2, 5, 6), mode="reflect", pads=Pads.explicit([(0, 0), (0, 0), (1, 3), (2, 0)])),
    "pad and crop": lambda: single(
        "Pad", (1, 2, 5, 6), pads=Pads.explicit([(0, 0), (0, 1), (-1, 3), (2, -2)]), constant_value=1.5),
    "LRN": lambda: single("LRN", (2, 7, 3, 4), size=4, alpha=0.5),
    "product": lambda: single("MatMul", (2, 1, 4, 5), random(3, 5, 6)),
    "gather": lambda: single("Gather", (4, 5, 3), np.array([[0, -1, 2]]), axis=1),
    "resize": lambda: single("Resize", (1, 2, 3, 5), np.zeros(0, np.float32), floats(1, 1, 2, 1.5)),
    "resize linear": lambda: single(
        "Resize", (1, 2, 3, 5), np.zeros(0, np.float32), floats(1, 1, 2, 0.6), mode="linear"),
    "resize linear corners": lambda: single(
        "Resize", (1, 2, 4, 3), np.zeros(0, np.float32), np.zeros(0, np.float32), np.array([1, 2, 7, 5]),
        mode="linear", coordinate_transformation_mode="align_corners"),
    "resize linear asymmetric": lambda: single(
        "Resize", (1, 2, 3), np.zeros(0, np.float32), floats(1, 1, 2.5), mode="linear",
        coordinate_transformation_mode="asymmetric"),
    "LSTM": lambda: single("LSTM", (4, 2, 3), random(1, 20, 3), random(1, 20, 5), outputs=("y", "h", "c")),
    "LSTM with everything": lambda: single(
        "LSTM", (2, 4, 3), random(2, 20, 3), random(2, 20, 5), random(2, 40), np.array([4, 2], np.int32),
        random(2, 2, 5), random(2, 2, 5), random(2, 15), outputs=("y", "h", "c"), direction="bidirectional", layout=1,
        activations=("HardSigmoid", "Tanh", "Affine", "Sigmoid", "Softsign", "LeakyRelu"),
        activation_alpha=(0.3, 0.9, 0.1), activation_beta=(0.4, 0.2), clip=0.8),
    "LSTM, backwards, coupled": lambda: single(
        "LSTM", (4, 2, 3), random(1, 20, 3), random(1, 20, 5), random(1, 40), np.array([4, 1], np.int32),
        outputs=("y", "h", "c"), direction="reverse", input_forget=1),
    "GRU": lambda: single(
        "GRU", (4, 2, 3), random(2, 15, 3), random(2, 15, 5), random(2, 30), outputs=("y", "h"),
        direction="bidirectional"),
    "GRU that resets after": lambda: single(
        "GRU", (4, 2, 3), random(1, 15, 3), random(1, 15, 5), random(1, 30), None, random(1, 2, 5),
        outputs=("y", "h"), linear_before_reset=1, clip=0.5),
    "depth to space": lambda: single("DepthToSpace", (1, 8, 2, 3), blocksize=2),
    "group norm": lambda: single("GroupNormalization", (2, 6, 4, 5), random(6), random(6), num_groups=3),
    "layer norm": lambda: single("LayerNormalization", (2, 3, 4, 5), random(4, 5), random(4, 5), axis=2),
}  # fmt: skip


def code_of(graph, folder):
    porting.write_flux(graph, folder)
    return (folder / "model.jl").read_text()


# ------------------------------------------------------------------------------------------------------------- the text


def test_pads_strides_and_sizes_are_reversed(tmp_path):
    graph = single("Conv", (1, 2, 9, 9), random(3, 2, 2, 5), **{
        **window((2, 5), (1, 2), (3, 4)), "strides": (2, 3), "dilations": (1, 2)})  # fmt: skip
    code = code_of(graph, tmp_path / "out")
    assert "Conv(array(Float32, 0, (5, 2, 2, 3)), false; stride=(3, 2), pad=(3, 4, 1, 2), dilation=(2, 1))" in code
    assert '# Conv "n": 1x3x6x3, pads (1,2) (3,4)' in code


def test_kernels_are_turned_once_and_shapes_kept(tmp_path):
    weight = random(3, 2, 2, 5)
    graph = single("Conv", (1, 2, 9, 9), weight, **window((2, 5), (0, 0), (0, 0)))
    porting.write_flux(graph, tmp_path / "out")
    stored = safetensors.read(tmp_path / "out" / "weights.safetensors")["a0"]
    np.testing.assert_array_equal(stored, weight[:, :, ::-1, ::-1])
    np.testing.assert_array_equal(porting.read_flux(tmp_path / "out").arrays["a0"], weight)
    safe = pytest.importorskip("safetensors.numpy")
    np.testing.assert_array_equal(safe.load_file(tmp_path / "out" / "weights.safetensors")["a0"], stored)


def test_a_kernel_that_something_else_reads_is_not_turned(tmp_path):
    graph = single("Conv", (1, 2, 9, 9), random(3, 2, 2, 5), **window((2, 5), (0, 0), (0, 0)))
    more = Node("m", "Identity", ("a0",), ("z",), {})
    graph = graph.replaced(nodes=(*graph.nodes, more), outputs=(*graph.outputs, Value("z")))
    assert "flipped=true" in code_of(graph, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "graph.json").read_text())["flipped"] == []


def test_output_padding(tmp_path):
    graph = single("ConvTranspose", (1, 2, 4, 4), random(2, 3, 2, 2), **window((2, 2), (1, 0), (0, -1), stride=2))
    assert "stride=(2, 2), pad=(0, 0, 1, 0), outpad=(1, 0))" in code_of(graph, tmp_path / "out")


# --------------------------------------------------------------------------------------------------------- the way back


@pytest.mark.parametrize("name", NETWORKS)
def test_read_back(name, tmp_path):
    graph = NETWORKS[name]()
    porting.write_flux(graph, tmp_path / "out")
    back = porting.read_flux(tmp_path / "out")
    assert back.parameters == graph.parameters
    for key in graph.parameters:
        np.testing.assert_array_equal(back.arrays[key], graph.arrays[key])
    (value,) = graph.inputs
    x = np.random.default_rng(1).standard_normal(tuple(map(int, value.shape or ()))).astype(np.float32)
    for key, want in graph.run({value.name: x}).items():
        np.testing.assert_array_equal(back.run({value.name: x})[key], want)
    if name in ("TCN", "U-Net", "MobileNet"):
        gradients = []
        for module in (graph.to_torch(), back.to_torch()):
            module(torch.as_tensor(x)).square().sum().backward()
            gradients.append({key: parameter.grad for key, parameter in module.named_parameters()})
        torch.testing.assert_close(*gradients, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------------- refusals


def refuses(graph, folder, match, **options):
    before = sorted(folder.parent.iterdir())
    with pytest.raises(ModelError, match=match):
        porting.write_flux(graph, folder, **options)
    assert sorted(folder.parent.iterdir()) == before


def test_nothing_is_written_of_what_cannot_be(tmp_path):
    graph = single("Resize", (1, 1, 4, 4), np.zeros(0, np.float32), floats(1, 1, 2, 2), mode="cubic")
    refuses(graph, tmp_path / "out", r"node 'n' \(Resize\): mode='cubic', .* there are nearest, and linear")
    open_sizes = single("Relu", ("batch", 2))
    refuses(open_sizes, tmp_path / "out", r"input x: float32 batchx2 has open sizes.*--size NAME=VALUE")
    wide = single("Pad", (1, 1, 3), mode="reflect", pads=Pads.explicit([(0, 0), (0, 0), (0, 3)]))
    refuses(wide, tmp_path / "out", r"node 'n' \(Pad\)")


def test_folders_that_exist(tmp_path, monkeypatch):
    graph, out = single("Relu", (1, 2)), tmp_path / "out"
    porting.write_flux(graph, out)
    refuses(graph, out, "exists and is not overwritten")
    porting.write_flux(graph, out, force=True)
    monkeypatch.setattr("pyflux_pad.porting.flux.write._check", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        porting.write_flux(graph, out, force=True)
    assert porting.read_flux(out).nodes == graph.nodes  # the old one is whole
    assert sorted(tmp_path.iterdir()) == [out]
    (out / "thesis.tex").write_text("")
    refuses(graph, out, r"files that write_flux did not write and would delete \(thesis\.tex\)", force=True)


def test_damaged_folders(tmp_path):
    with pytest.raises(ModelError, match=r"has no graph\.json"):
        porting.read_flux(tmp_path)
    porting.write_flux(single("Relu", (1, 2)), tmp_path / "out")
    porting.write_flux(single("PRelu", (1, 2), floats(1, 2)), tmp_path / "more")
    weights = tmp_path / "more" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="outside of the file"):
        porting.read_flux(tmp_path / "more")
    record = tmp_path / "out" / "graph.json"
    record.write_text(record.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(ModelError, match="has the format 9, known is 1"):
        porting.read_flux(tmp_path / "out")
    record.write_text("{")
    with pytest.raises(ModelError, match="is no record of a model"):
        porting.read_flux(tmp_path / "out")


# --------------------------------------------------------------------------------------------------------- command line


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHON_JULIACALL_EXE", "PYTHON_JULIACALL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    pathlib.Path("tiny.onnx").write_bytes(models.tiny_yolov2(width=2, size=64).SerializeToString())
    assert cli.main(["port", "tiny.onnx", "--to", "flux", "out", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "the outputs agree" in shown
    assert "check.jl: not run; set PYTHON_JULIACALL_EXE" in shown
    assert cli.main(["port", "tiny.onnx", "--to", "flux", "out"]) != 0


# ----------------------------------------------------------------------------------------------------------- under Flux

PROJECT = os.environ.get("PYFLUX_PAD_FLUX_PROJECT", "")
flux = pytest.mark.skipif(
    not PROJECT or not shutil.which("julia"),
    reason="PYFLUX_PAD_FLUX_PROJECT names no Julia project with Flux, or there is no julia on the PATH",
)

# Every check in a module of its own: one process, because loading Flux takes longer than most checks.
DRIVER = """
for folder in ARGS
    place = Module()
    Core.eval(place, :(include(path) = Base.include($place, path)))
    passed = try
        Base.include(place, joinpath(folder, "check.jl"))
        Base.invokelatest(place.check)
    catch error
        println(sprint(showerror, error))
        false
    end
    println(passed ? "PASSED " : "FAILED ", basename(folder))
end
"""


def run_checks(tmp_path, graphs):
    """Write the graphs, run all their checks; return the verdicts and what was printed."""
    folders = []
    for name, graph in graphs.items():
        folders.append(tmp_path / re.sub(r"\W+", "_", name))
        porting.write_flux(graph, folders[-1])
    (tmp_path / "driver.jl").write_text(DRIVER)
    done = subprocess.run(["julia", f"--project={PROJECT}", tmp_path / "driver.jl", *folders], capture_output=True,
                          text=True, timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(PASSED|FAILED) (\w+)$", done.stdout, re.MULTILINE)
    assert len(found) == len(graphs), done.stdout
    return {folder: verdict == "PASSED" for verdict, folder in found}, done.stdout


@flux
def test_networks_under_flux(tmp_path):
    verdicts, shown = run_checks(tmp_path, {name: build() for name, build in NETWORKS.items()})
    assert all(verdicts.values()), shown


@flux
def test_operators_under_flux(tmp_path):
    verdicts, shown = run_checks(tmp_path, {name: build() for name, build in SINGLES.items()})
    assert all(verdicts.values()), shown


@flux
def test_light_models_under_flux(tmp_path):
    graphs = {}
    for name in ("light_densenet121", "light_inception_v2", "light_shufflenet"):
        model, arrays = randomised(LIGHT[name])
        graph = porting.read_onnx(model)
        (image,) = (value for value in graph.inputs if arrays[value.name].shape[:2] == (1, 3))
        weights = {key: array for key, array in arrays.items() if key != image.name}
        graphs[name] = graph.replaced(inputs=(image,), arrays={**graph.arrays, **weights},
                                      parameters=graph.parameters | set(weights))  # fmt: skip
    verdicts, shown = run_checks(tmp_path, graphs)
    assert all(verdicts.values()), shown


def found(pattern, text):
    """Return what a pattern with one group finds in a text."""
    match = re.search(pattern, text)
    assert match, text
    return match[1]


@flux
def test_rapidocr_under_flux(tmp_path):
    verdicts, shown = run_checks(tmp_path, {"rapidocr": of_package(*REAL["rapidocr"])})
    assert all(verdicts.values()), shown


# Write what a model gives for the inputs of its check.
OUTPUTS = """
include(joinpath(ARGS[1], "model.jl"))
inputs = open(joinpath(ARGS[1], "check.safetensors")) do io
    array = Ported.reader(io)
    {inputs}
end
open(io -> foreach(y -> write(io, y), Ported.load_model()(inputs...)), ARGS[2], "w")
"""


def outputs_of_julia(folder, shapes):
    """Run the model of a folder in Julia on the inputs of its check; return its outputs."""
    reads = found(r"array = Ported\.reader\(io\)\n +(\(.*?,\)),", (folder / "check.jl").read_text())
    (folder.parent / "outputs.jl").write_text(OUTPUTS.format(inputs=reads))
    raw = folder.parent / "outputs.bin"
    subprocess.run(["julia", f"--project={PROJECT}", folder.parent / "outputs.jl", folder, raw], check=True,
                   timeout=900)  # fmt: skip
    flat = np.fromfile(raw, np.float32)
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    assert flat.size == ends[-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


@flux
@pytest.mark.parametrize("keys", [(69,), (60, 64, 67)], ids=("A4", "C major"))
def test_basic_pitch_hears_the_notes_in_julia(keys, tmp_path):
    """As in test_porting_networks: the notes, and as near to the result in float64 as ONNX Runtime is."""
    path = installed("basic_pitch", REAL["basic-pitch"][1])
    graph = of_package(*REAL["basic-pitch"])
    inputs = {graph.inputs[0].name: tone(*keys)}
    porting.write_flux(graph, tmp_path / "out", inputs=inputs)
    wanted = reference(path.read_bytes(), inputs)
    exact = in_float64(graph).run({name: array.astype(np.float64) for name, array in inputs.items()})
    names = [value.name for value in graph.outputs]
    heard = dict(zip(names, outputs_of_julia(tmp_path / "out", [wanted[name].shape for name in names]), strict=True))
    for name, want in wanted.items():
        error, theirs = (np.abs(array - exact[name]).max() for array in (heard[name], want))
        assert error <= max(1e-4 * np.abs(want).max(), 1.5 * theirs), name
    notes = np.argsort(heard["StatefulPartitionedCall:1"][0].mean(0))[-len(keys):] + LOWEST
    assert sorted(notes) == sorted(keys)


# The derivative of the sum of squares by the weights, on the way from the weights of one folder to those of another.
SLOPE = """
module A
include(joinpath(ARGS[1], "model.jl"))
end
module B
include(joinpath(ARGS[2], "model.jl"))
end
using Flux
x = open(io -> A.Ported.reader(io){read}, joinpath(ARGS[1], "check.safetensors"))
flat, rebuild = Flux.destructure(A.Ported.load_model())
there, _ = Flux.destructure(B.Ported.load_model())
gradient = Flux.gradient(weights -> sum(abs2, rebuild(weights)(x)), flat)[1]
println("SLOPE ", sum(Float64.(gradient) .* (Float64.(there) .- flat)))
"""


@flux
@pytest.mark.parametrize("name", ["TCN", "U-Net", "MobileNet"])
def test_gradients_under_flux(name, tmp_path):
    """Zygote's gradient by all weights at once is torch's: their products with a random direction are equal."""
    graph = NETWORKS[name]()
    rng = np.random.default_rng(3)
    step = {key: (0.1 * rng.standard_normal(graph.arrays[key].shape)).astype(np.float32)
            for key in sorted(graph.parameters)}  # fmt: skip
    moved = graph.replaced(
        arrays={**graph.arrays, **{key: graph.arrays[key] + change for key, change in step.items()}})
    porting.write_flux(graph, tmp_path / "a")
    porting.write_flux(moved, tmp_path / "b")
    stored = safetensors.read(tmp_path / "a" / "check.safetensors")
    (x,) = (array for key, array in stored.items() if key.startswith("input "))
    module = graph.to_torch()
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(module(torch.as_tensor(x)).square().sum(), list(parameters.values()))
    by_key = dict(zip(parameters, gradients, strict=True))
    keys = state_names(graph)
    products = [by_key[keys[name]].double().numpy() * change for name, change in step.items()]
    read = found(r"array(\(Float32, .*?\)\)),", (tmp_path / "a" / "check.jl").read_text())
    (tmp_path / "slope.jl").write_text(SLOPE.format(read=read))
    done = subprocess.run(["julia", f"--project={PROJECT}", tmp_path / "slope.jl", tmp_path / "a", tmp_path / "b"],
                          capture_output=True, text=True, timeout=900, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    slope = float(found(r"SLOPE (\S+)", done.stdout))
    assert abs(slope - sum(part.sum() for part in products)) <= 1e-5 * sum(np.abs(part).sum() for part in products)


@flux
def test_a_kernel_that_is_not_turned_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("pyflux_pad.porting.flux.write.turned", lambda kernel: kernel)
    verdicts, shown = run_checks(tmp_path, {"MobileNet": NETWORKS["MobileNet"]()})
    assert verdicts == {"MobileNet": False}, shown
    assert "MISMATCH" in shown
