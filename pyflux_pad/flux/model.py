"""A live Flux model: called, differentiated, looked into and kept, from Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import safetensors
from ..console import notice
from .bridge import Kept, ask, checked, describe, view
from .structure import Structure

if TYPE_CHECKING:
    from .layers import Layer

Gradients = dict[str, np.ndarray]
_COMPILING = "Julia compiles the gradient of this model, once per process; up to 20 s ..."


class _Entry(NamedTuple):
    """What Julia says of one array of a model."""

    name: str
    trained: bool
    address: int
    dtype: str
    shape: tuple[int, ...]


class FluxModel:
    """A Flux model in Julia, with Flux's own values and Zygote's own gradients.

    Arrays have their axes in the reverse order of Julia's, the same bytes: Flux's ``(W, H, C, N)`` is ``(N, C, H, W)``
    here. The model starts in test mode, as `eval` sets it.

    Parameters
    ----------
    layer
        What to make, with new parameters as Flux initialises them.

    Raises
    ------
    BackendUnavailable
        Without a Julia that has Flux, with the remedy.
    ValueError
        If Julia refuses to make the layer.

    Notes
    -----
    Nothing of NNlib's is repaired here, unlike on ``backend="julia"``, so these faults of its pools remain: a maximum
    ignores NaN, and is the lowest finite number where a window holds nothing but padding or -inf; the gradient of a
    maximum goes to the first cell within sqrt(eps) of it; and a window that reaches into the padding at both ends of an
    axis counts twice in the gradient of a maximum and of a mean.
    """

    def __init__(self, layer: Layer) -> None:
        self._open(int(ask("FluxModel", "make", text=layer.julia)))

    @classmethod
    def from_julia(cls, code: str) -> FluxModel:
        """Return the model that Julia code stands for, such as ``Chain(Conv((3, 3), 1 => 4))``: anything callable.

        The code runs in a module of its own that has Flux, NNlib, Zygote, Optimisers and Functors; ``Main.name`` is a
        model that Julia has already.

        Raises
        ------
        ValueError
            If the code cannot be parsed (with line and place) or run, or its value cannot be called.
        """
        return cls._of(int(ask("FluxModel.from_julia", "make", text=code)))

    @classmethod
    def from_file(cls, path: str | Path) -> FluxModel:
        """Return the model of a Julia file: its last value, or what `load_model` of its module returns.

        The ``model.jl`` that `porting.write_flux` writes is such a file.

        Raises
        ------
        ValueError
            If there is no such file, or as `from_julia` does.
        """
        place = Path(path).absolute()
        if not place.is_file():
            raise ValueError(f"FluxModel.from_file: there is no file {place}")
        return cls._of(int(ask("FluxModel.from_file", "make_from_file", text=str(place))))

    @classmethod
    def _of(cls, number: int) -> FluxModel:
        model = cls.__new__(cls)
        model._open(number)
        return model

    def _open(self, number: int) -> None:
        self.kept = Kept(number)
        self.training = False
        self._differentiated = False
        entries = self._entries("FluxModel")
        self.trained = tuple(entry.name for entry in entries if entry.trained)
        """The names of the parameters that have gradients, in the model's order."""
        self._shapes = {entry.name: (entry.dtype, entry.shape) for entry in entries}

    def __repr__(self) -> str:
        count = sum(math.prod(self._shapes[name][1]) for name in self.trained)
        return f"FluxModel({count:,} trained parameters in {len(self.trained)} arrays)"

    def __deepcopy__(self, memo: dict[int, Any]) -> FluxModel:
        raise TypeError("FluxModel: the model lives in Julia and is not copied; make a second one, load_state_dict()")

    # ------------------------------------------------------------------------------------------------------- its values

    def __call__(self, *inputs: np.ndarray) -> Any:
        """Return the value of the model for arrays ``(N, ...)``: an array, or a tuple of them as the model does.

        Raises
        ------
        TypeError
            For what is no NumPy array, and for a dtype that is not that of the parameters: Flux would convert silently.
        ValueError
            For arrays that are not C-contiguous, and for a shape that a layer does not take.
        RuntimeError
            If the arrays of the model were replaced in Julia, and with Julia's words where Flux fails otherwise.
        """
        result = _Result("FluxModel", self, "evaluate_model", inputs)
        return result.values()

    def vjp(self, *inputs: np.ndarray) -> tuple[Any, Pullback]:
        """Return the value and a function from its cotangent to the gradients, as `pyflux_pad.vjp` does."""
        return self.differentiate(inputs)

    def differentiate(self, inputs: Sequence[np.ndarray], wanted: bool = True) -> tuple[Any, Pullback]:
        """Return the value and its pullback; where the inputs' gradients are not `wanted` there are none.

        The first call says that Julia compiles.
        """
        compiling = nullcontext() if self._differentiated else notice(_COMPILING)
        with compiling:
            result = _Result("FluxModel", self, "pullback", inputs, int(wanted))
            value, pullback = result.values(), Pullback(self, result, inputs if wanted else ())
            if not self._differentiated:
                pullback(*[np.zeros(shape, dtype) for dtype, shape in result.kinds])
        self._differentiated = True
        return value, pullback

    def grad(self, x: np.ndarray, grad_output: np.ndarray) -> tuple[np.ndarray, Gradients]:
        """Return the gradient of ``sum(model(x) * grad_output)`` by x, and by the arrays of the model by name.

        Those of statistics are what Zygote gives, zero in training mode; `trained` names what is trained.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As a call does, and for a `grad_output` of another dtype or shape than the result.
        """
        _, pullback = self.vjp(x)
        (grad_x,), gradients = pullback(grad_output)
        return grad_x, gradients

    def train(self, mode: bool = True) -> FluxModel:
        """Put the layers that know one into their training mode (``Flux.trainmode!``), or out of it; return self."""
        ask("FluxModel.train", "set_mode", [self.kept.number, bool(mode)])
        self.training = bool(mode)
        return self

    def eval(self) -> FluxModel:
        """Put the layers that know one into their test mode (``Flux.testmode!``); return self."""
        return self.train(False)

    def gpu(self) -> FluxModel:
        """Return a copy of the model on the GPU, by CUDA.jl: inputs are copied there and results back.

        Its arrays have no memory that NumPy could see: `parameters` of it is empty, and gradients are those of inputs.
        Not yet run on hardware.

        Raises
        ------
        BackendUnavailable
            Where the Julia project lacks CUDA or cuDNN, with the line that adds it, or CUDA.jl finds no GPU.
        """
        return FluxModel._of(int(ask("FluxModel.gpu", "to_gpu", [self.kept.number])))

    # ------------------------------------------------------------------------------------------------------- its arrays

    def _entries(self, what: str) -> list[_Entry]:
        entries = []
        for line in filter(None, ask(what, "describe", [self.kept.number]).split("\n")):
            name, trained, address, dtype, *shape = line.split(" ")
            entries.append(_Entry(name, trained == "1", int(address), dtype, tuple(map(int, shape))))
        return entries

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the arrays of the model by name: views on Julia's memory, which change it where they are written to.

        All axes are reversed and the bytes are as Flux stores them: kernels of Conv and ConvTranspose are turned by 180
        degrees against PyTorch's, those of CrossCor are not, and the weight of Dense is ``(in, out)``. A name is the
        path in the model, places counted from 0: ``layers.0.weight``. Flux's Greek names are written out: ``beta``,
        ``gamma``, ``mean``, ``variance``; the statistics are here too, and not in `trained`.

        Raises
        ------
        RuntimeError
            If the arrays of the model were replaced in Julia; views taken before show what the model no longer uses,
            and every use of the model says so.
        """
        return {e.name: view(e.address, e.dtype, e.shape, self.kept) for e in self._entries("FluxModel.parameters")}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the arrays of the model by name."""
        return {name: array.copy() for name, array in self.parameters().items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy arrays into those of the model: all of them, of their dtypes and shapes, or nothing is changed.

        Raises
        ------
        ValueError, TypeError
            For missing and unknown names, another shape, another dtype.
        """
        own = self.parameters()
        missing, unknown = sorted(set(own) - set(state)), sorted(set(state) - set(own))
        if missing or unknown:
            raise ValueError(f"load_state_dict: missing are {missing}, unknown are {unknown}; the names are those of "
                             f"parameters()")  # fmt: skip
        for name, array in own.items():
            given = state[name]
            if not isinstance(given, np.ndarray) or given.dtype != array.dtype:
                found = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
                raise TypeError(f"load_state_dict: {name} is {array.dtype}, given is {found}; convert it first")
            if given.shape != array.shape:
                raise ValueError(f"load_state_dict: {name} has the shape {array.shape}, given is {given.shape}")
        for name, array in own.items():
            array[...] = state[name]

    def save(self, path: str | Path) -> None:
        """Write the arrays of the model: ``.safetensors`` under the names and axes here, ``.jld2`` as ``Flux.state``.

        Raises
        ------
        ValueError
            For another ending.
        BackendUnavailable
            For ``.jld2`` where the Julia project has no JLD2.
        """
        place = _file("FluxModel.save", path)
        if place.suffix == ".jld2":
            ask("FluxModel.save", "save_jld2", [self.kept.number], str(place))
        else:
            safetensors.write(place, self.parameters())

    def load(self, path: str | Path) -> None:
        """Copy the arrays of a file that `save` wrote for a model of the same layers into those of the model.

        Raises
        ------
        ValueError, TypeError
            For another ending, a file that does not fit, and what `load_state_dict` refuses.
        BackendUnavailable
            For ``.jld2`` where the Julia project has no JLD2.
        """
        place = _file("FluxModel.load", path)
        if place.suffix == ".jld2":
            ask("FluxModel.load", "load_jld2", [self.kept.number], str(place))
        else:
            self.load_state_dict(safetensors.read(place))

    def structure(self, input_shape: Sequence[int], dtype: str | None = None) -> Structure:
        """Return what the model is made of, found out by running it on zeros of a shape; by default of its own dtype.

        Raises
        ------
        ValueError, TypeError, RuntimeError
            As a call does.
        """
        own = next((self._shapes[name][0] for name in self.trained), "float32")
        x = np.zeros(tuple(input_shape), dtype or own)
        return Structure.of(ask("FluxModel", "structure", [self.kept.number, 1, *describe(x)]))

    def summary(self, input_shape: Sequence[int]) -> str:
        """Return a table of the layers for an input ``(N, ...)``: name, kind, shape of the output, parameters."""
        sizes = {name: math.prod(self._shapes[name][1]) for name in self.trained}
        return self.structure(input_shape).table(tuple(input_shape), sizes)


class _Result:
    """The value of a model for some inputs, still in Julia; of a pullback, with what its gradients need."""

    def __init__(
        self, what: str, model: FluxModel, operation: str, inputs: Sequence[np.ndarray], *settings: int
    ) -> None:
        arrays = [checked(what, "the input", array) for array in inputs]
        integers = [entry for array in arrays for entry in describe(array)]
        head, *lines = ask(what, operation, [model.kept.number, *settings, len(arrays), *integers]).split("\n")
        number, several = head.split(" ")
        self.kept, self.is_tuple = Kept(int(number)), several == "true"
        self.kinds = [(dtype, tuple(map(int, shape))) for dtype, *shape in (line.split(" ") for line in lines)]

    def values(self) -> Any:
        """Return copies."""
        arrays = [np.empty(shape, dtype) for dtype, shape in self.kinds]
        ask("FluxModel", "fetch", [self.kept.number, *(entry for array in arrays for entry in describe(array))])
        return tuple(arrays) if self.is_tuple else arrays[0]


class Pullback:
    """A function from the cotangent of a result to the gradients, by Zygote; it can be called more than once."""

    def __init__(self, model: FluxModel, result: _Result, inputs: Sequence[np.ndarray]) -> None:
        self.model, self.result = model, result
        self._inputs = [(array.dtype, array.shape) for array in inputs]

    def __call__(self, *grad_output: np.ndarray) -> tuple[tuple[np.ndarray, ...], Gradients]:
        """Return the gradients of the inputs, and those of the model's floating-point arrays by name.

        Parameters
        ----------
        grad_output
            An array of the dtype and shape of every result.

        Raises
        ------
        TypeError, ValueError
            For another dtype, another shape, memory that is not C-contiguous.
        """
        model, result = self.model, self.result
        arrays = self.cotangents(grad_output)
        grad_inputs = [np.empty(shape, dtype) for dtype, shape in self._inputs]
        gradients = {
            name: np.empty(shape, dtype)
            for name, (dtype, shape) in model._shapes.items()
            if np.dtype(dtype).kind in "fc"
        }
        integers = [model.kept.number, result.kept.number, *arrays, len(grad_inputs)]
        for place, array in enumerate(grad_inputs, 1):
            integers += [place, *describe(array)]
        for array in gradients.values():
            integers += describe(array)
        ask("FluxModel", "back", integers)
        return tuple(grad_inputs), gradients

    def cotangents(self, grad_output: Sequence[np.ndarray]) -> list[int]:
        """Return the integers of checked cotangents, whose arrays the caller keeps alive."""
        kinds = self.result.kinds
        if len(grad_output) != len(kinds):
            raise ValueError(f"FluxModel: the model has {len(kinds)} results, given are {len(grad_output)} cotangents")
        integers = [len(kinds)]
        for (dtype, shape), array in zip(kinds, grad_output, strict=True):
            checked("FluxModel", "grad_output", array)
            if array.dtype != dtype or array.shape != shape:
                raise (TypeError if array.dtype != dtype else ValueError)(
                    f"FluxModel: grad_output must be {dtype} {shape}, as the result; given: {array.dtype} {array.shape}"
                )
            integers += describe(array)
        return integers


def _file(what: str, path: str | Path) -> Path:
    place = Path(path).absolute()
    if place.suffix not in (".safetensors", ".jld2"):
        raise ValueError(f"{what}: {place.name} must end in .safetensors or .jld2")
    return place
