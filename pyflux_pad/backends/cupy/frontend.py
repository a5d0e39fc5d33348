"""cuDNN's graphs through its Python frontend: planned once for a geometry and its strides, executed on raw pointers."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ...geometry import ConvGeometry, Sizes
from .device import Array, Cache, Device
from .layouts import FIRST, element_strides, empty, has_layout, layout_of, settled
from .providers import Missing, Refused, result_shape

OLDEST, NEWEST = (1, 18), (1, 29)
"""Versions of nvidia-cudnn-frontend: from the first that loads cuDNN late to before the first that needs CUTLASS."""

_DTYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
_PLANS = 256
_FIRST, _SECOND, _RESULT = 1, 2, 3
"""Numbers of the tensors in every graph."""

# What rounds more than a sum of exact products does: never asked for. Tensor cores round float32 to TF32 first.
_INEXACT = (
    "REDUCED_PRECISION_REDUCTION",
    "FFT",
    "WINOGRAD",
    "WINOGRAD_TILE_4x4",
    "WINOGRAD_TILE_6x6",
    "WINOGRAD_TILE_13x13",
)
_TF32 = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")


def load() -> Any:
    """Import the frontend and let it find cuDNN.

    Raises
    ------
    Missing
        If it is not installed, another module has its name, its version is not one this package knows, or there is no
        cuDNN, or more than one.
    """
    try:
        cudnn = importlib.import_module("cudnn")
    except (ImportError, OSError) as error:
        raise Missing(f"the cuDNN frontend cannot be imported ({error}); pip install nvidia-cudnn-frontend") from error
    if not hasattr(cudnn, "pygraph"):
        place = getattr(cudnn, "__file__", "unknown place")
        raise Missing(
            f"the module cudnn ({place}) is not NVIDIA's frontend; remove it, or rename it, and pip install "
            f"nvidia-cudnn-frontend"
        )
    version = tuple(int(part) for part in cudnn.__version__.split(".")[:2])
    if not OLDEST <= version < NEWEST:
        raise Missing(
            f"nvidia-cudnn-frontend {cudnn.__version__} is not of the versions from {'.'.join(map(str, OLDEST))} to "
            f"before {'.'.join(map(str, NEWEST))}; pip install 'nvidia-cudnn-frontend>=1.18,<1.29'"
        )
    try:
        cudnn.backend_version()
    except RuntimeError as error:
        raise Missing(f"the frontend finds no cuDNN ({error}); pip install nvidia-cudnn-cu13, or -cu12") from error
    libraries = loaded_libraries()
    if len(libraries) > 1:
        raise Missing(
            f"two cuDNN libraries are in this process: {', '.join(libraries)}; keep one of them, e.g. uninstall the "
            f"nvidia-cudnn package that torch does not ask for, or empty LD_LIBRARY_PATH"
        )
    return cudnn


def loaded_libraries(maps: str = "/proc/self/maps") -> list[str]:
    """Return the paths of the cuDNN libraries in this process; none where the system does not say."""
    try:
        with open(maps, encoding="utf-8") as lines:  # noqa: PTH123, a pseudo-file that is read line by line
            paths = {line.split(maxsplit=5)[-1].strip() for line in lines if "/libcudnn.so" in line}
    except OSError:
        return []
    return sorted(paths)


class Tensor(NamedTuple):
    """What cuDNN is told of an array: sizes and element strides with at least two spatial axes, bytes of alignment."""

    dim: Sizes
    stride: Sizes
    alignment: int


def describe(array: Array, pointer: int, layout: str) -> Tensor:
    """Return what cuDNN is told of a settled array; one spatial axis is lifted to two."""
    dim, stride = tuple(array.shape), element_strides(array, layout)
    if len(dim) == 3:
        # The new axis has length 1 and steps over what is inside of it.
        inner = dim[2] * stride[2]
        dim, stride = (*dim[:2], 1, dim[2]), (*stride[:2], inner, stride[2])
    return Tensor(dim, stride, alignment_of(pointer))


def alignment_of(pointer: int) -> int:
    """Return the largest power of two up to 16 that divides an address."""
    return min(pointer & -pointer, 16) if pointer else 16


def operation_graph(
    cudnn: Any, handle: int | None, operator: str, geometry: ConvGeometry, dtype: str, tensors: tuple[Tensor, ...]
) -> Any:
    """Return the validated graph of one operator; `tensors` are its two operands and its result."""
    types, kind = cudnn.data_type, getattr(cudnn.data_type, _DTYPES[dtype])
    compute = types.DOUBLE if dtype == "float64" else types.FLOAT
    # A handle is needed for planning alone: without one, graphs are built and validated on any machine.
    given = {} if handle is None else {"handle": handle}
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=compute, compute_data_type=compute, **given)
    first, second = (
        graph.tensor(name=name, dim=list(tensor.dim), stride=list(tensor.stride), data_type=kind, uid=uid)
        for name, uid, tensor in zip(("first", "second"), (_FIRST, _SECOND), tensors, strict=False)
    )
    missing = 2 - min(geometry.ndim, 2)
    integers = {
        "pre_padding": [0] * missing + [low for low, _ in geometry.padding],
        "post_padding": [0] * missing + [high for _, high in geometry.padding],
        "stride": [1] * missing + list(geometry.stride),
        "dilation": [1] * missing + list(geometry.dilation),
    }
    if operator == "conv":
        result = graph.conv_fprop(image=first, weight=second, **integers)
    elif operator == "conv_input":
        result = graph.conv_dgrad(loss=first, filter=second, **integers)
    else:
        result = graph.conv_wgrad(image=first, loss=second, **integers)
    last = tensors[2]
    # The gradients' sizes cannot be inferred, and the default strides are channels-last in some versions.
    result.set_output(True).set_dim(list(last.dim)).set_stride(list(last.stride)).set_data_type(kind).set_uid(_RESULT)
    for tensor, told in zip((first, second, result), tensors, strict=True):
        _align(tensor, told.alignment)
    graph.validate()
    graph.build_operation_graph()
    return graph


def _align(tensor: Any, alignment: int) -> None:
    """Tell cuDNN where a tensor begins; the frontend 1.28 cannot, and takes 16 bytes for granted."""
    if hasattr(tensor, "set_alignment"):
        tensor.set_alignment(alignment)
    elif alignment < 16:
        raise ValueError(f"this frontend cannot be told that an array begins between 16-byte borders ({alignment})")


class _Planned(NamedTuple):
    """An executable graph and the bytes of its workspace; or no graph, and why."""

    graph: Any
    workspace: int
    refusal: str = ""


class _Handle:
    """A cuDNN handle of one device and one thread, and the stream it was last given, which lives as long."""

    def __init__(self, cudnn: Any) -> None:
        self.cudnn, self.stream = cudnn, None
        self.address = cudnn.create_handle()
        # Not at exit: the driver may be gone by then, and the handle goes with the process.
        weakref.finalize(self, cudnn.destroy_handle, self.address).atexit = False

    def follow(self, stream: Any) -> None:
        """Let the handle work on a stream."""
        if self.stream is None or self.stream.ptr != stream.ptr:
            self.cudnn.set_stream(handle=self.address, stream=stream.ptr)
            self.stream = stream


class _PerThread(threading.local):
    """The handles of a thread, by device."""

    def __init__(self) -> None:
        self.handles: dict[int, _Handle] = {}


class Graphs:
    """Plans of every geometry asked for lately, refusals too, and the handles that execute them; for all threads."""

    def __init__(self, device: Device, cudnn: Any) -> None:
        self.device, self.cudnn, self.version = device, cudnn, cudnn.backend_version()
        self.plans: Cache[_Planned] = Cache(_PLANS, device.forget)
        self._local = _PerThread()

    def handle(self, number: int) -> int:
        """Return this thread's handle of a device, at work on the current stream."""
        stream, handles = self.device.stream(), self._local.handles
        handle = handles.get(number)
        if handle is None:
            handle = handles[number] = _Handle(self.cudnn)
        try:
            handle.follow(stream)
        except RuntimeError:  # the stream it was on is gone, if that was not CuPy's own: begin with a new handle
            handle = handles[number] = _Handle(self.cudnn)
            handle.follow(stream)
        return handle.address

    def plan(
        self, operator: str, geometry: ConvGeometry, arrays: tuple[Array, ...], layout: str, allow_tf32: bool
    ) -> tuple[_Planned, int, dict[int, int]]:
        """Return what executes an operator on arrays of one layout: the plan, the handle and the pointers."""
        number, dtype = self.device.of(arrays[0]), arrays[0].dtype
        pointers = [self.device.pointer(array) for array in arrays]
        handle = self.handle(number)
        key = (
            operator, geometry, dtype, *[array.strides for array in arrays],
            *[alignment_of(pointer) for pointer in pointers], layout, number, self.version, allow_tf32,
        )  # fmt: skip

        def make() -> _Planned:
            tensors = tuple(describe(*given, layout) for given in zip(arrays, pointers, strict=True))
            return self._make(operator, geometry, dtype.name, tensors, handle, allow_tf32)

        named: dict[int, int] = dict(zip((_FIRST, _SECOND, _RESULT), pointers, strict=True))
        return self.plans.get(key, make), handle, named

    def _make(
        self,
        operator: str,
        geometry: ConvGeometry,
        dtype: str,
        tensors: tuple[Tensor, ...],
        handle: int,
        allow_tf32: bool,
    ) -> _Planned:
        """Plan a graph, or note why cuDNN has no plan for it."""
        cudnn = self.cudnn
        try:
            graph = operation_graph(cudnn, handle, operator, geometry, dtype, tensors)
            plan_graph(cudnn, graph, dtype, allow_tf32)
            graph.build_plans()
            return _Planned(graph, graph.get_workspace_size())
        except (cudnn.cudnnGraphNotSupportedError, ValueError, RuntimeError) as error:
            return _Planned(None, 0, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def plan_graph(cudnn: Any, graph: Any, dtype: str, allow_tf32: bool) -> None:
    """Ask for the plans of a graph, without those that are less exact than a sum of products."""
    # Heuristics alone have no plan for some strided gradients on small GPUs, where the fallback has one.
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    notes = _INEXACT if allow_tf32 or dtype != "float32" else (*_INEXACT, *_TF32)
    known = cudnn.numerical_note.__members__
    graph.deselect_numeric_notes([known[note] for note in notes if note in known])
    graph.check_support()


@lru_cache(maxsize=64)  # NumPy makes a dtype's name anew each time
def _takes(dtype: Any) -> bool:
    return dtype.name in _DTYPES


class Frontend:
    """The provider on top of the graphs, with pairs of pads ("frontend") or one pad per axis ("prepad")."""

    def __init__(self, name: str, graphs: Graphs, pairs: bool) -> None:
        self.name, self.graphs, self.pairs = name, graphs, pairs

    def takes(self, dtype: Any) -> bool:
        """Say whether cuDNN convolves a dtype."""
        return _takes(dtype)

    def plan(
        self, operator: str, geometry: ConvGeometry, first: Array, second: Array, out: Array | None, allow_tf32: bool
    ) -> Callable[[], Array]:
        """Return the call that computes an operator.

        Raises
        ------
        Refused
            If cuDNN has no plan.
        """
        device, xp = self.graphs.device, self.graphs.device.xp
        layout = layout_of(first) or FIRST
        first, second = settled(xp, first, layout), settled(xp, second, layout)
        if out is None or not has_layout(out, layout):
            out = empty(xp, result_shape(operator, geometry), first.dtype, layout)
        try:
            planned, handle, pointers = self.graphs.plan(operator, geometry, (first, second, out), layout, allow_tf32)
        except RuntimeError as error:
            raise Refused(f"cuDNN gives no handle: {error}") from error
        if planned.refusal:
            raise Refused(planned.refusal)
        return partial(_execute, device, planned, pointers, handle, (first, second), out)


def _execute(
    device: Device, planned: _Planned, pointers: dict[int, int], handle: int, operands: tuple[Array, Array], out: Array
) -> Array:
    """Run a plan; `operands` may be copies that only this call holds until it is in the stream."""
    memory, workspace = device.workspace(planned.workspace)
    planned.graph.execute(pointers, workspace, handle=handle)
    del memory
    return out
