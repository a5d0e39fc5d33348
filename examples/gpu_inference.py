"""Inference on a GPU by two ways around cuDNN's symmetric padding: native pairs of pads, and a pre-padded input.

Without ``--model`` it runs the Flux layer that cuDNN refused, Conv((10, 10), 7 => 3, pad = (9, 0, 9, 0)) on batches of
100x100x7x100 (NNlib's order; 100 pictures of 7 channels). With it, a model that `pyflux_pad.porting` reads: a folder
that write_flux wrote, or an ONNX file. While one stream computes a batch, the other one copies the next.

    python examples/gpu_inference.py                            # CuPy arrays on cuDNN
    python examples/gpu_inference.py --device torch --model ported_folder --input pictures_folder
    python examples/gpu_inference.py --weights layer.npz        # a state_dict of the Flux layer: weight and bias
    python examples/gpu_inference.py --dry-run                  # the same on NumPy, without a GPU

It prints the throughput of both ways and the largest difference between them and the CPU, and fails if that is large.
"""

import argparse
import contextlib
import pathlib
import sys
import time
from typing import Any

import numpy as np

import pyflux_pad as pp
from pyflux_pad import porting
from pyflux_pad.backends.cupy import configure, prepad
from pyflux_pad.console import Progress

PADS = pp.Padding.from_flux((9, 0, 9, 0), 2)
LAYER = {"padding": PADS, "flip_kernel": True}
X_SHAPE, WEIGHT_SHAPE = (100, 7, 100, 100), (3, 7, 10, 10)
PROVIDERS = {"native": "frontend", "pre-padded": "prepad"}


# ---------------------------------------------------------------- what is run


class FluxLayer:
    """The convolution of a state_dict with weight and, if it has one, bias, on arrays or tensors of any library."""

    shape = X_SHAPE

    def __init__(self, state):
        self.weight, self.bias = state["weight"], state.get("bias")

    def on(self, place):
        """Return the layer as a function of a batch there; `place` moves an array."""
        weight, bias = place(self.weight), None if self.bias is None else place(self.bias)
        return lambda x, **options: pp.conv(x, weight, bias, **LAYER, **options)

    def cpu(self):
        return self.on(np.asarray)

    def cpu_pre_padded(self):
        """Return the layer on NumPy with the input padded until one pad per axis is enough."""

        def run(x):
            geometry = pp.plan(x.shape, self.weight.shape, padding=PADS).geometry
            padded, left = prepad(np, geometry, x)
            return pp.conv(padded, self.weight, self.bias, padding=left.padding, flip_kernel=True)

        return run

    def cuda(self):
        run = self.on(lambda array: _torch().from_numpy(np.ascontiguousarray(array)).cuda())
        return lambda x: run(x, backend="cupy")

    def cupy(self):
        import cupy  # type: ignore

        return self.on(cupy.asarray)


class Ported:
    """A model with one input and one output that `pyflux_pad.porting` reads."""

    def __init__(self, path):
        self.graph = porting.read_flux(path) if path.is_dir() else porting.read_onnx(str(path))
        (value,) = self.graph.inputs
        self.name, self.shape = value.name, tuple(n if isinstance(n, int) else 1 for n in value.shape or ())

    def cpu(self):
        return lambda x: next(iter(self.graph.run({self.name: x}, backend="numpy").values()))

    def cpu_pre_padded(self):
        """Return the model on torch's kernels, whose padding is symmetric too."""
        return lambda x: next(iter(self.graph.run({self.name: x}, backend="torch").values()))

    def cuda(self):
        return self.graph.to_torch(backend="cupy").cuda().eval()

    def cupy(self) -> Any:
        raise SystemExit("a ported model runs on torch's tensors: add --device torch")


def _torch():
    import torch

    return torch


def model_of(arguments):
    if arguments.model:
        return Ported(arguments.model)
    if arguments.weights:
        return FluxLayer(state_dict(arguments.weights))
    generator = np.random.default_rng(0)
    weight = generator.standard_normal(WEIGHT_SHAPE, np.float32) / 26
    return FluxLayer({"weight": weight, "bias": generator.standard_normal(3, np.float32)})


def state_dict(path):
    """Read a state_dict of NumPy arrays (.npz), of safetensors, or of torch (.pt)."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    return {name: tensor.numpy() for name, tensor in _torch().load(path, weights_only=True).items()}


def batches_of(arguments, shape):
    """Return a function of a batch's number: files of a folder in turn, or random pictures."""
    if arguments.input:
        files = sorted(arguments.input.glob("*.npy"))
        if not files:
            raise SystemExit(f"{arguments.input} has no .npy files of shape {shape}")
        return len(files), lambda number: np.ascontiguousarray(np.load(files[number]), np.float32)
    return arguments.batches, lambda number: np.random.default_rng(number).standard_normal(shape, np.float32)


# ---------------------------------------------------------------- where it is run


class Host:
    """NumPy in the place of a GPU: nothing overlaps, everything else is the same."""

    def __init__(self, model):
        self.runs = {"native": model.cpu(), "pre-padded": model.cpu_pre_padded()}

    def way(self, name):
        return self.runs[name]

    def slot(self):
        return contextlib.nullcontext()

    def up(self, batch, slot):
        return batch

    def down(self, y, slot):
        return y

    def wait(self, slot):
        pass


class Cupy:
    """CuPy arrays, copied through pinned memory on the slot's stream."""

    def __init__(self, model):
        configure()  # says what is missing, if anything is
        import cupy  # type: ignore
        import cupyx  # type: ignore

        self.cupy, self.pinned, self.run = cupy, cupyx.empty_pinned, model.cupy()
        cupy.cuda.Device().synchronize()  # the weights are there for every stream

    def way(self, name):
        configure(provider=PROVIDERS[name])
        return self.run

    def slot(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def up(self, batch, slot):
        slot.host = self.pinned(batch.shape, batch.dtype)  # held until the slot is used again: the copy reads it
        slot.host[...] = batch
        x = self.cupy.empty(batch.shape, batch.dtype)
        x.set(slot.host, slot.stream)
        return x

    def down(self, y, slot):
        return y.get(stream=slot.stream, out=self.pinned(y.shape, y.dtype), blocking=False)

    def wait(self, slot):
        slot.stream.synchronize()


class Torch:
    """torch tensors on the CuPy engine."""

    def __init__(self, model):
        configure()  # says what is missing, if anything is
        self.torch, self.run = _torch(), model.cuda()
        self.torch.cuda.synchronize()  # the weights are there for every stream

    def way(self, name):
        configure(provider=PROVIDERS[name])
        return self.run

    def slot(self):
        return self.torch.cuda.Stream()

    def up(self, batch, slot):
        slot.host = self.torch.from_numpy(batch).pin_memory()
        return slot.host.cuda(non_blocking=True)

    def down(self, y, slot):
        return self.torch.empty(y.shape, dtype=y.dtype, pin_memory=True).copy_(y, non_blocking=True)

    def wait(self, slot):
        slot.stream.synchronize()


class Slot:
    """One of the two halves of the double buffer: a stream, and what is on its way in it."""

    def __init__(self, stream):
        self.stream = stream
        self.host = None
        self.result: Any = ()


def run(device, name, count, batch):
    """Return the outputs of all batches by one way, and the seconds that they took."""
    outputs = {}
    context = device.torch.no_grad() if isinstance(device, Torch) else contextlib.nullcontext()
    with Progress(name, count) as progress, context:
        model = device.way(name)
        model_once(device, model, batch(0))  # plans are made, kernels compiled
        slots = [Slot(device.slot()) for _ in range(2)]
        start = time.perf_counter()
        for number in range(count + 2):
            slot = slots[number % 2]
            if slot.result:
                device.wait(slot)
                done, output = slot.result
                outputs[done], slot.result = np.asarray(output), ()
                progress.step()
            if number < count:
                data = batch(number)
                with entered(device, slot.stream):
                    slot.result = number, device.down(model(device.up(data, slot)), slot)
        return [outputs[number] for number in range(count)], time.perf_counter() - start


def entered(device, stream):
    """Return a context in which a stream is the current one; torch's streams are no contexts themselves."""
    return device.torch.cuda.stream(stream) if isinstance(device, Torch) else stream


def model_once(device, model, data):
    slot = Slot(device.slot())
    with entered(device, slot.stream):
        device.down(model(device.up(data, slot)), slot)
    device.wait(slot)


def main(*argv):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, help="a folder that write_flux wrote, or an ONNX file")
    parser.add_argument("--weights", type=pathlib.Path, help="a state_dict of the Flux layer: .npz, .safetensors, .pt")
    parser.add_argument("--input", type=pathlib.Path, help="a folder of .npy files, one batch each")
    parser.add_argument("--batches", type=int, default=8, help="random batches where there is no folder (default: 8)")
    parser.add_argument("--device", choices=("cupy", "torch"), default="cupy", help="whose arrays (default: cupy)")
    parser.add_argument("--dry-run", action="store_true", help="on NumPy, without a GPU")
    arguments = parser.parse_args(argv)
    model = model_of(arguments)
    count, batch = batches_of(arguments, model.shape)
    device = Host(model) if arguments.dry_run else {"cupy": Cupy, "torch": Torch}[arguments.device](model)
    outputs, pictures = {}, 0
    for name in PROVIDERS:
        outputs[name], seconds = run(device, name, count, batch)
        pictures = sum(len(y) for y in outputs[name])
        print(f"{name:10}  {pictures} pictures in {seconds:.3f} s, {pictures / seconds:.1f} per second")
    expected = [model.cpu()(batch(number)) for number in range(count)]
    largest = max(float(np.abs(y).max()) for y in expected)
    pairs = [("native", "pre-padded"), ("native", "CPU"), ("pre-padded", "CPU")]
    outputs["CPU"] = expected
    worst = 0.0
    for one, other in pairs:
        apart = max(float(np.abs(a - b).max()) for a, b in zip(outputs[one], outputs[other], strict=True)) / largest
        print(f"largest difference, {one} from {other}: {apart:.1e} of the largest output")
        worst = max(worst, apart)
    return worst < 1e-4


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
