"""Who computes a convolution of CuPy arrays: a chain of providers, the first of which that can is taken.

========== ==================================================================== ==========================
provider   computes with                                                        pads
========== ==================================================================== ==========================
frontend   cuDNN's graphs, through nvidia-cudnn-frontend                        (low, high) pairs
prepad     the same                                                             one per axis, pre-padded
torch      cuDNN of PyTorch, on the arrays' own memory                          one per axis, pre-padded
arrays     CuPy's own views and cuBLAS; complex and integer arrays too          any
========== ==================================================================== ==========================
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from ...geometry import ConvGeometry, Sizes
from .. import BackendUnavailable
from .device import Array, Cache, Device
from .prepad import pre_padding, prepad, unpad

NAMES = ("frontend", "prepad", "torch", "arrays")
VARIABLE = "PYFLUX_PAD_CUDNN_PROVIDER"
"""Environment variable that names a provider, read when the engine is made."""

_CHOICES = 1024


class Missing(Exception):
    """A provider cannot run in this process; the message says why and what to do."""


class Refused(Exception):
    """A provider has no plan for a geometry; the message is the reason that it gave."""


class Provider(Protocol):
    """Computes the three operators of a convolution; its geometry's pads are not negative, its kernel not flipped."""

    name: str
    pairs: bool
    """Whether it takes a (low, high) pair per axis; else both are equal on every axis."""

    def takes(self, dtype: Any) -> bool:
        """Say whether it computes a dtype at all."""
        ...

    def plan(
        self, operator: str, geometry: ConvGeometry, first: Array, second: Array, out: Array | None, allow_tf32: bool
    ) -> Callable[[], Array]:
        """Return the call that computes an operator, in `out` if it can; raise Refused where there is no plan."""
        ...


def result_shape(operator: str, geometry: ConvGeometry) -> Sizes:
    """Return the shape of an operator's result."""
    if operator == "conv":
        return geometry.output_shape
    return geometry.input_shape if operator == "conv_input" else geometry.weight_shape


class Chain:
    """The providers in order, made at their first use; of each why it is missing, and which one took a geometry."""

    def __init__(self, device: Device, makers: dict[str, Callable[[], Provider]]) -> None:
        self.device, self.makers = device, makers
        self._made: dict[str, Provider | Missing] = {}
        self._choices: Cache[dict[str, str]] = Cache(_CHOICES)
        self._warned: set[str] = set()

    def provider(self, name: str) -> Provider:
        """Return a provider; raise Missing if it cannot run."""
        made = self._made.get(name)
        if made is None:
            try:
                made = self.makers[name]()
            except Missing as missing:
                made = missing
            self._made[name] = made
        if isinstance(made, Missing):
            raise made
        return made

    def run(
        self,
        operator: str,
        geometry: ConvGeometry,
        first: Array,
        second: Array,
        out: Array | None,
        allow_tf32: bool,
        wanted: str | None,
    ) -> Array:
        """Return the result of the first provider that has a plan, or of the one that is wanted.

        What fails after a plan was made is an error of the call; no other provider is tried then.

        Raises
        ------
        BackendUnavailable
            If the provider that is wanted cannot run, or has no plan; or none has.
        TypeError
            If the provider that is wanted does not compute the dtype.
        """
        given = operator, geometry, first, second, out, allow_tf32
        if wanted is not None:
            return self._wanted(wanted, *given)()
        refused = self._choices.get(self._key(operator, geometry, first, second, allow_tf32), dict)
        for name in self.makers:
            if name in refused:
                continue
            try:
                call = self._planned(self.provider(name), *given)
            except (Missing, Refused) as reason:
                refused[name] = f"{name} ({reason})"
                continue
            if call is not None:
                self._warn(operator, refused, name)
                return call()
        reasons = "; ".join(refused.values())
        raise BackendUnavailable(f"{operator} on cupy: no provider computes this: {reasons}")

    def _wanted(self, name: str, operator: str, *given: Any) -> Callable[[], Array]:
        try:
            provider = self.provider(name)
            call = self._planned(provider, operator, *given)
        except (Missing, Refused) as reason:
            others = ", ".join(other for other in self.makers if other != name)
            raise BackendUnavailable(
                f"{operator} on cupy: provider {name!r} was asked for and cannot compute this: {reason}; ask for "
                f"another one ({others}) or for none"
            ) from reason
        if call is None:
            dtype = given[1].dtype.name
            raise TypeError(
                f"{operator} on cupy: provider {name!r} does not compute {dtype}; convert the arrays, or ask for "
                f"provider 'arrays'"
            )
        return call

    def _planned(
        self,
        provider: Provider,
        operator: str,
        geometry: ConvGeometry,
        first: Array,
        second: Array,
        out: Array | None,
        allow_tf32: bool,
    ) -> Callable[[], Array] | None:
        """Return the call that computes an operator by a provider, pads prepared; None for a dtype that it does not."""
        if not provider.takes(first.dtype):
            return None
        xp, pairs = self.device.xp, provider.pairs
        if operator == "conv_input":
            inner = pre_padding(geometry, pairs).geometry
            call = provider.plan(operator, inner, first, second, None, allow_tf32)
            return lambda: unpad(xp, geometry, call(), pairs)
        padded, inner = prepad(xp, geometry, first, pairs)
        return provider.plan(operator, inner, padded, second, out, allow_tf32)

    def _key(self, operator: str, geometry: ConvGeometry, first: Array, second: Array, allow_tf32: bool) -> Hashable:
        number = self.device.of(first)
        return operator, geometry, first.dtype, first.strides, second.strides, number, allow_tf32

    def _warn(self, operator: str, refused: dict[str, str], name: str) -> None:
        """Say once for each provider that another one takes its place."""
        news = [provider for provider in refused if provider not in self._warned]
        if news:
            self._warned.update(news)
            reasons = "; ".join(refused[provider] for provider in news)
            warnings.warn(
                f"pyflux_pad: {operator} on cupy is computed by provider {name!r}, because these cannot: {reasons}; "
                f"{VARIABLE} names one provider for all calls",
                RuntimeWarning,
                stacklevel=2,
            )
