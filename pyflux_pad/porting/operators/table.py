"""How an operator is described and found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..graph import ModelError

F = TypeVar("F", bound=Callable[..., Any])
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Operator:
    """One operator of the neutral vocabulary.

    Attributes
    ----------
    name
        ONNX's name.
    run
        ``run(library, *inputs, **attributes)`` returns an array, or a tuple of at least as many as the node names. The
        keyword ``wanted``, if it has it, is their number.
    attributes
        Every attribute with its default, or `REQUIRED`.
    inputs
        The least and the greatest number of inputs.
    host
        Inputs that are sizes, axes or settings: NumPy arrays whatever the engine.
    parameters
        Inputs whose arrays are trained.
    check
        ``check(attributes)`` returns what this package cannot do, "" if there is nothing.
    """

    name: str
    run: Callable[..., Any]
    attributes: Mapping[str, Any]
    inputs: tuple[int, float]
    host: tuple[int, ...]
    parameters: tuple[int, ...]
    check: Callable[[Mapping[str, Any]], str]
    takes_wanted: bool

    def complete(self, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes with defaults filled in.

        Raises
        ------
        ModelError
            For an unknown or missing attribute and for what the operator cannot do; `where` names the node.
        """
        for name in given:
            if name not in self.attributes:
                raise ModelError(
                    f"{where}: {self.name} has no attribute {name!r}; there are {', '.join(self.attributes) or 'none'}"
                )
        attributes = {**self.attributes, **given}
        for name, value in attributes.items():
            if value is REQUIRED:
                raise ModelError(f"{where}: {self.name} needs the attribute {name!r}")
        problem = self.check(attributes)
        if problem:
            raise ModelError(f"{where}: {problem}")
        return attributes


OPERATORS: dict[str, Operator] = {}
"""The neutral vocabulary by name."""


def operator(
    name: str,
    host: tuple[int, ...] = (),
    parameters: tuple[int, ...] = (),
    check: Callable[[Mapping[str, Any]], str] = lambda attributes: "",
) -> Callable[[F], F]:
    """Enter a function in the table: its keyword arguments are the operator's attributes."""

    def enter(run: F) -> F:
        least, most, attributes = 0, 0.0, {}
        for parameter in list(inspect.signature(run).parameters.values())[1:]:
            if parameter.kind is parameter.KEYWORD_ONLY:
                attributes[parameter.name] = parameter.default
            elif parameter.kind is parameter.VAR_POSITIONAL:
                most = float("inf")
            else:
                most += 1
                least += parameter.default is REQUIRED
        takes_wanted = attributes.pop("wanted", None) is not None
        OPERATORS[name] = Operator(name, run, attributes, (least, most), host, parameters, check, takes_wanted)
        return run

    return enter
