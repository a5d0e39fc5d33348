"""GoogLeNet from ONNX into Flux, the model that Flux could not load for want of asymmetric padding.

Caffe2 exported its four stride-2 pools with the pads [0, 0, 2, 2]: nothing before, two rows and columns after. The
architecture comes with the onnx package, the weights are random. The port itself is four lines; what follows it runs
the model on every engine here and compares.

Run ``python examples/port_googlenet.py [folder]``; it needs the extras `onnx` and `torch`. With a Julia that has Flux,
``julia --project=PROJECT FOLDER/check.jl`` runs what was written and compares it with the outputs stored beside it.
"""

import pathlib
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

import pyflux_pad as pp
from pyflux_pad import porting


def googlenet(seed=0):
    """Return the ONNX file as bytes: onnx's GoogLeNet with random weights and Caffe2's pads."""
    folder = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / "light_inception_v1.onnx")
    graph, random = model.graph, np.random.default_rng(seed)
    shapes = {array.name: numpy_helper.to_array(array) for array in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]]
        scale = (2 / max(np.prod(shape[1:]), 1)) ** 0.5 if len(shape) > 1 else 0.1
        weight = (scale * random.standard_normal(shape)).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
        graph.node.remove(node)
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "MaxPool" and list(attributes["strides"].ints) == [2, 2]:
            attributes["pads"].ints[:] = [0, 0, 2, 2]
        elif node.op_type == "AveragePool":
            attributes["pads"].ints[:] = [0, 0, 0, 0]
    del graph.value_info[:]
    model.ir_version = 8
    return model.SerializeToString()


def main(folder=None):
    folder = pathlib.Path(folder or pathlib.Path(tempfile.mkdtemp()) / "googlenet")
    source = googlenet()

    graph = porting.read_onnx(source)
    uneven = [node for node in graph.nodes if node.pads and node.pads.padding and not node.pads.padding.is_symmetric]
    print(*(f"{node.name or node.outputs[0]}: {node.op}, pads {node.pads}" for node in uneven), sep="\n")
    porting.write_flux(graph, folder)

    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)
    inputs = {graph.inputs[0].name: image}
    outputs = {}
    # The image is a NumPy array, which CuPy's engine does not take.
    for backend in [name for name, engine in pp.available_backends().items() if engine.available and name != "cupy"]:
        (outputs[backend],) = graph.run(inputs, backend=backend).values()
    largest = np.abs(outputs["numpy"]).max()
    apart = {name: float(np.abs(output - outputs["numpy"]).max() / largest) for name, output in outputs.items()}
    print("difference from the NumPy engine, of the largest output:")
    print(*(f"  {name:6} {difference:.1e}" for name, difference in apart.items()), sep="\n")
    written = sorted(path.name for path in folder.iterdir())
    print(f"written to {folder}: {', '.join(written)}")
    return len(uneven) == 4 and max(apart.values()) < 1e-4


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
