"""A Flux model as a torch module: torch's optimisers, losses and schedulers over Zygote's gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from .model import FluxModel


class FluxModule(torch.nn.Module):
    """A Flux model whose arrays are this module's parameters and buffers, on the same memory in both directions.

    The keys of the state_dict are the names of `FluxModel.parameters`; what Flux trains is a parameter, the rest
    (statistics) a buffer. `train` and `eval` set the model's mode. Gradients are of the first order.

    Parameters
    ----------
    model
        The model; it stays usable.

    Raises
    ------
    TypeError
        When called with a tensor that is not on the CPU, or of a dtype that the model does not take.
    RuntimeError
        When called after something (``.to()``, ``.double()``, ``load_state_dict(assign=True)``) gave a parameter other
        memory, and in a backward pass if a parameter was changed in place since the forward pass.
    """

    def __init__(self, model: FluxModel) -> None:
        super().__init__()
        self.model = model
        self._places: dict[str, int] = {}
        for name, array in model.parameters().items():
            *path, leaf = name.split(".")
            holder: torch.nn.Module = self
            for step in path:
                if step not in holder._modules:
                    holder.add_module(step, torch.nn.Module())
                holder = holder.get_submodule(step)
            tensor = torch.from_numpy(array)
            if name in model.trained:
                holder.register_parameter(leaf, torch.nn.Parameter(tensor))
            else:
                holder.register_buffer(leaf, tensor)
            self._places[name] = tensor.data_ptr()
        self.train(model.training)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the value of the model, a tensor or a tuple of them."""
        for tensor in inputs:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"FluxModule takes tensors, got a {type(tensor).__name__}; FluxModel takes NumPy arrays"
                )
        state = dict(self.named_parameters()) | dict(self.named_buffers())
        for name, place in self._places.items():
            if state[name].data_ptr() != place:
                raise RuntimeError(
                    f"FluxModule: {name} no longer lies in Julia's memory; .to(), .double() and the like and "
                    f"load_state_dict(assign=True) give a parameter new memory. Make a FluxModule of a new model"
                )
        if self.model.training != self.training:
            self.model.train(self.training)
        trained = [state[name] for name in self.model.trained]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *trained)):
            return _Zygote.apply(self.model, len(inputs), *inputs, *trained)
        return _tensors(self.model(*map(_array, inputs)))

    def extra_repr(self) -> str:
        """Return the model's own description."""
        return repr(self.model)


class _Zygote(torch.autograd.Function):
    """A call of the model, and its pullback."""

    @staticmethod
    def forward(ctx: Any, model: FluxModel, count: int, *tensors: torch.Tensor) -> Any:
        wanted = any(ctx.needs_input_grad[2 : 2 + count])
        value, ctx.pullback = model.differentiate([_array(tensor) for tensor in tensors[:count]], wanted)
        ctx.count, ctx.trained = count, model.trained
        ctx.save_for_backward(*tensors)  # torch then notices what was changed in place before the backward pass
        return _tensors(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: torch.Tensor) -> Any:  # type: ignore
        saved = ctx.saved_tensors
        assert len(saved) == ctx.count + len(ctx.trained)
        grad_inputs, gradients = ctx.pullback(*map(_array, grad_output))
        arrays = [*(grad_inputs or [None] * ctx.count), *(gradients[name] for name in ctx.trained)]
        needed = ctx.needs_input_grad[2:]
        return None, None, *(torch.from_numpy(a) if need else None for a, need in zip(arrays, needed, strict=True))


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's memory as an array; a tensor that is not contiguous is copied, as torch does."""
    if tensor.device.type != "cpu":
        raise TypeError(f"FluxModule: the input is on {tensor.device}; Julia reads memory of the CPU, so call .cpu()")
    return tensor.detach().resolve_conj().resolve_neg().contiguous().numpy()


def _tensors(value: Any) -> Any:
    return tuple(map(torch.from_numpy, value)) if isinstance(value, tuple) else torch.from_numpy(value)
