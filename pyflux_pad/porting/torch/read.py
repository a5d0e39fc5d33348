"""Reading torch: a module is exported, and every operator of the exported program becomes nodes of the record."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..graph import Graph, ModelError, Value
from ..passes import tidy
from . import arithmetic, layers, shapes  # noqa: F401  these fill the table of handlers
from .builder import HANDLERS, Builder, Ref

if TYPE_CHECKING:
    import torch

_IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size", "_assert_async")
"""Checks that torch writes into its programs; they compute nothing."""


def read_torch(module: torch.nn.Module, example: tuple[Any, ...]) -> Graph:
    """Read a torch module by exporting it with ``torch.export``.

    Parameters
    ----------
    module
        In evaluation mode (``module.eval()``), where dropout does nothing and normalisations use stored statistics.
    example
        The positional arguments of a call, all tensors: their shapes are the shapes of the graph's inputs.

    Returns
    -------
    Graph
        Weights have the names that they have in ``module.state_dict()``, except those of LSTM and GRU layers, which
        are reordered. ``F.pad`` before a convolution or pool is part of it where that is exact.

    Raises
    ------
    ModelError
        If torch is missing, cannot export the module, or the program has operators that are not in the vocabulary;
        the message names all of them.
    """
    program = _exported(module, example)
    _refuse_unknown(program)
    builder = Builder()
    refs = _placeholders(program, builder)
    inputs = tuple(
        Value(refs[name].name, refs[name].dtype, refs[name].shape) for name in program.graph_signature.user_inputs
    )
    outputs: tuple[Value, ...] = ()
    for node in program.graph.nodes:
        if node.op == "call_function" and not _ignored(node.target):
            refs[node.name] = _read(node, builder, refs)
        elif node.op == "output":
            outputs = _outputs(builder, [_resolve(entry, refs) for entry in node.args[0]])
    used = {name for node in builder.nodes for name in node.inputs} | {value.name for value in outputs}
    graph = Graph(
        type(module).__name__, inputs, outputs, tuple(builder.nodes),
        {name: array for name, array in builder.arrays.items() if name in used},
        frozenset(builder.parameters & used), builder.values,
    )  # fmt: skip
    return tidy(graph)


def _outputs(builder: Builder, found: list[Any]) -> tuple[Value, ...]:
    """Return the outputs; one that is an input, an array or returned twice gets a node and a name of its own."""
    outputs: dict[str, Value] = {}
    for ref in found:
        if not isinstance(ref, Ref):
            raise ModelError(f"read_torch: the module must return tensors and nothing else, it returns {ref!r}")
        if ref.name in outputs or ref.name not in builder.values:
            builder.current, builder.operator = f"{ref.name}.output", "output"
            ref = builder.unary("Identity", ref)
        outputs[ref.name] = Value(ref.name, ref.dtype, ref.shape)
    return tuple(outputs.values())


def _exported(module: torch.nn.Module, example: tuple[Any, ...]) -> Any:
    try:
        import torch
    except ImportError:
        raise ModelError("read_torch needs the package torch; pip install 'pyflux-pad[torch]'") from None
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"read_torch takes a torch.nn.Module, got {type(module).__name__}")
    if not isinstance(example, tuple) or not all(isinstance(entry, torch.Tensor) for entry in example):
        raise TypeError("read_torch: example must be a tuple of tensors, the arguments of one call")
    if module.training:
        raise ModelError(
            f"read_torch: {type(module).__name__} is in training mode, in which dropout is random and normalisations "
            f"use the batch; call module.eval() first"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code, and of flat weights that it restores
            return torch.export.export(module, example).run_decompositions({})
    except Exception as error:
        raise ModelError(f"read_torch: torch.export cannot export {type(module).__name__}: {error}") from error


def _base(target: Any) -> str:
    """Return the name of torch's operator with its overload, "conv2d.default"."""
    return str(target).removeprefix("aten.")


def _handler(target: Any) -> Any:
    name = _base(target)
    return HANDLERS.get(name) or HANDLERS.get(name.rpartition(".")[0])


def _ignored(target: Any) -> bool:
    return _base(target).partition(".")[0] in _IGNORED


def _refuse_unknown(program: Any) -> None:
    unknown = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if _handler(node.target) is None and not _ignored(node.target):
            unknown.setdefault(str(node.target), node.name)
    if unknown:
        lines = [f"{target} (node {name!r})" for target, name in unknown.items()]
        known = ", ".join(sorted({name.partition(".")[0] for name in HANDLERS}))
        raise ModelError(f"read_torch: operators that cannot be read: {'; '.join(lines)}. Known are {known}")


def _placeholders(program: Any, builder: Builder) -> dict[str, Any]:
    """Enter parameters, buffers and constants as arrays under their own names, and the inputs."""
    from ..arrays.torch import as_array, dtype_name

    signature = program.graph_signature
    held: Mapping[str, str] = {
        **signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants,
    }  # fmt: skip
    refs: dict[str, Any] = {}
    tensors = {**program.constants, **program.state_dict}
    for place, name in held.items():
        array = as_array(tensors[name]).copy()  # a record does not change when the module is trained on
        builder.arrays[name] = array
        builder.names.add(name)
        refs[place] = Ref(name, array.shape, array.dtype.name)
        if place in signature.inputs_to_parameters and tensors[name].requires_grad:
            builder.parameters.add(name)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in refs:
            value = node.meta["val"]
            refs[node.name] = Ref(builder.fresh(node.name), tuple(value.shape), dtype_name(value))
    return refs


def _read(node: Any, builder: Builder, refs: Mapping[str, Any]) -> Any:
    """Return the `Ref` of a node's result, or a tuple of them."""
    if node.target is operator.getitem:
        builder.current, builder.operator = node.args[0].name, str(node.args[0].target)
        found = refs[node.args[0].name][node.args[1]]
        if found is None and node.users:
            raise builder.refuse(f"result {node.args[1]} (indices, statistics) has no counterpart; use only the first")
        return found
    builder.current, builder.operator = node.name, str(node.target)
    result = node.meta.get("val")
    arguments = {}
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name in node.kwargs:
            given = node.kwargs[argument.name]
        elif place < len(node.args):
            given = node.args[place]
        else:
            given = argument.default_value
        # "self" and "from" are no names for Python's parameters.
        arguments[{"self": "x", "input": "x"}.get(argument.name, argument.name)] = _resolve(given, refs)
    return _handler(node.target)(builder, result=result, **arguments)


def _resolve(value: Any, refs: Mapping[str, Any]) -> Any:
    """Return an argument with torch's nodes replaced by what has been read of them."""
    if isinstance(value, (list, tuple)):
        return [_resolve(entry, refs) for entry in value]
    return refs[value.name] if type(value).__name__ == "Node" else value
