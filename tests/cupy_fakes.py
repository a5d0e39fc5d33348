"""A cuDNN frontend that records what it is asked and computes it on the host's memory, from the pointers given."""

import ctypes
import dataclasses
import enum
import types
from typing import Any

import ml_dtypes
import numpy as np

from pyflux_pad.backends.numpy import NumpyEngine
from pyflux_pad.geometry import ConvGeometry, plan_conv


class NotSupportedError(Exception):
    """cuDNN's own class: no RuntimeError."""


class Data(enum.Enum):
    HALF, BFLOAT16, FLOAT, DOUBLE = range(4)


class Note(enum.Enum):
    TENSOR_CORE, DOWN_CONVERT_INPUTS, REDUCED_PRECISION_REDUCTION, FFT, WINOGRAD, STRICT_NAN_PROP = range(6)


class Heuristics(enum.Enum):
    A, B, FALLBACK = range(3)


_DTYPES = {Data.HALF: np.float16, Data.BFLOAT16: ml_dtypes.bfloat16, Data.FLOAT: np.float32, Data.DOUBLE: np.float64}


@dataclasses.dataclass
class Tensor:
    """One tensor of a graph; setters return it, as the frontend's do."""

    dim: Any = None
    stride: Any = None
    data_type: Any = None
    uid: int = -1
    alignment: int = 16
    output: bool = False
    name: str = ""

    def _set(self, **values):
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def set_output(self, value):
        return self._set(output=value)

    def set_dim(self, value):
        return self._set(dim=value)

    def set_stride(self, value):
        return self._set(stride=value)

    def set_data_type(self, value):
        return self._set(data_type=value)

    def set_uid(self, value):
        return self._set(uid=value)

    def set_alignment(self, value):
        return self._set(alignment=value)

    def on(self, pointer):
        """The array at an address."""
        assert pointer % self.alignment == 0, f"{self} is not aligned as promised: {pointer:x}"
        dtype = np.dtype(_DTYPES[self.data_type])
        assert type(pointer) is int
        reach = 1 + sum((n - 1) * stride for n, stride in zip(self.dim, self.stride, strict=True))
        memory: Any = (ctypes.c_char * (reach * dtype.itemsize)).from_address(pointer)
        return np.lib.stride_tricks.as_strided(
            np.frombuffer(memory, dtype), self.dim, [stride * dtype.itemsize for stride in self.stride])


class Graph:
    """A graph of one convolution."""

    def __init__(self, cudnn, io_data_type, intermediate_data_type, compute_data_type, handle=None):
        self.cudnn, self.handle, self.compute = cudnn, handle, compute_data_type
        self.log, self.tensors, self.notes, self.modes = [], [], [], []
        cudnn.graphs.append(self)

    def tensor(self, **given):
        self.tensors.append(Tensor(**given))
        return self.tensors[-1]

    def conv_fprop(self, *, image, weight, **integers):
        return self._operator("conv", image, weight, integers)

    def conv_dgrad(self, *, loss, filter, **integers):
        return self._operator("conv_input", loss, filter, integers)

    def conv_wgrad(self, *, image, loss, **integers):
        return self._operator("conv_weight", image, loss, integers)

    def _operator(self, name, first, second, integers):
        assert set(integers) == {"pre_padding", "post_padding", "stride", "dilation"}
        assert all(type(value) is list and all(type(n) is int for n in value) for value in integers.values())
        self.name, self.operands, self.integers, self.result = name, (first, second), integers, Tensor()
        return self.result

    def validate(self):
        self.log.append("validate")
        assert self.result.output
        for tensor in (*self.operands, self.result):
            assert len(tensor.dim) == len(tensor.stride) in (4, 5), "an output without strides gets the frontend's own"

    def build_operation_graph(self):
        self.log.append("build_operation_graph")
        first, second, result = (*self.operands, self.result)
        x, w, y = {"conv": (first, second, result), "conv_input": (result, second, first),
                   "conv_weight": (first, result, second)}[self.name]
        rows = zip(x.dim[2:], w.dim[2:], *self.integers.values(), strict=True)
        out = [1 + (n + low + high - d * (k - 1) - 1) // s for n, k, low, high, s, d in rows]
        if y.dim[2:] != out or min(*self.integers["pre_padding"], *self.integers["post_padding"]) < 0:
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM")
        padding = tuple(zip(self.integers["pre_padding"], self.integers["post_padding"], strict=True))
        self.geometry = ConvGeometry(
            x.dim[0], x.dim[1], w.dim[0], x.dim[1] // w.dim[1], tuple(x.dim[2:]), tuple(w.dim[2:]), tuple(y.dim[2:]),
            tuple(self.integers["stride"]), tuple(self.integers["dilation"]), padding, False)

    def create_execution_plans(self, modes):
        self.modes = modes
        self.cudnn.refuse(self)

    def deselect_numeric_notes(self, notes):
        self.notes = notes

    def check_support(self):
        self.log.append("check_support")

    def build_plans(self):
        self.log.append("build_plans")

    def get_workspace_size(self):
        return self.cudnn.workspace_size

    def execute(self, pointers, workspace, handle):
        assert self.log == ["validate", "build_operation_graph", "check_support", "build_plans"]
        assert type(workspace) is int
        assert handle in self.cudnn.handles
        self.cudnn.executed.append((self, pointers, handle))
        self.cudnn.execute()
        first, second, result = (tensor.on(pointers[tensor.uid]) for tensor in (*self.operands, self.result))
        engine = NumpyEngine()
        if self.name == "conv":
            result[...] = engine.conv(plan_conv(self.geometry, native=True), first, second)
        elif self.name == "conv_input":
            result[...] = engine.conv_input(self.geometry, first, second)
        else:
            result[...] = engine.conv_weight(self.geometry, first, second)


class Cudnn(types.ModuleType):
    """The module. `refuse` and `execute` may raise; `streams` are the pointers given to handles."""

    __version__ = "1.26.0"
    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815, the frontend's name
    data_type, numerical_note, heur_mode = Data, Note, Heuristics

    def __init__(self):
        super().__init__("cudnn")
        self.graphs, self.executed, self.handles, self.streams, self.destroyed = [], [], [], [], []
        self.workspace_size = 64

    def pygraph(self, **given):
        return Graph(self, **given)

    def refuse(self, graph):
        pass

    def execute(self):
        pass

    def backend_version(self):
        return 91900

    def create_handle(self):
        self.handles.append(1000 + len(self.handles))
        return self.handles[-1]

    def destroy_handle(self, handle):
        self.destroyed.append(handle)

    def set_stream(self, *, handle, stream):
        self.streams.append((handle, stream))
