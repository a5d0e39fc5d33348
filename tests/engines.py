"""The engines under test, each behind one call that takes and returns NumPy arrays."""

import dataclasses
import functools
import os

import numpy as np

import pyflux_pad

NAMES = ("numpy", "torch", "julia", "cupy")
"""Every engine the project has or will have, in the order of the report."""


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether an engine can run here; `reason` says why not and what to do about it."""

    runs: bool
    version: str | None
    reason: str


@functools.cache
def status(name):
    """Ask the package about one engine."""
    backend = pyflux_pad.available_backends().get(name)
    if backend is None:
        return Status(False, None, "no such engine in this version")
    reason = "" if backend.available else "; ".join(" ".join(text.split()) for text in (backend.reason, backend.remedy))
    return Status(bool(backend.available), backend.version, reason)


def requested():
    """Return the engines that PYFLUX_PAD_TEST_BACKENDS asks for: these must run."""
    return tuple(filter(None, map(str.strip, os.environ.get("PYFLUX_PAD_TEST_BACKENDS", "").split(","))))


@dataclasses.dataclass(frozen=True)
class Engine:
    """One way to reach an engine.

    Attributes
    ----------
    id : str
        Name in the test report.
    computes : str
        The engine that does the work.
    tensors : bool
        Whether it is handed torch tensors (through autograd) or NumPy arrays.
    backend : str or None
        What `backend=` says; None lets the arrays choose.
    """

    id: str
    computes: str
    tensors: bool
    backend: str | None = None

    def __str__(self):
        return self.id

    @property
    def needs(self):
        """The engines without which this one cannot be tested."""
        return {self.computes, "torch"} if self.tensors else {self.computes}

    def __call__(self, function, *arguments, **options):
        """Call `function` on arrays of this engine's type; check the type of the result and return it as NumPy."""
        return self._to_numpy(function(*map(self._from_numpy, arguments), **self._options(options)), arguments)

    def vjp(self, function, *arguments, grad_output, **options):
        """Return the result and the gradients by every array among `arguments` (None elsewhere)."""
        if not self.tensors:
            y, pullback = pyflux_pad.vjp(function, *arguments, **self._options(options))
            return self._to_numpy(y, arguments), pullback(grad_output)
        import torch

        arguments = [self._from_numpy(argument) for argument in arguments]
        leaves = [a.requires_grad_() for a in arguments if isinstance(a, torch.Tensor)]
        y = function(*arguments, **self._options(options))
        gradients = torch.autograd.grad(y, leaves, self._from_numpy(grad_output))
        assert [g.dtype for g in gradients] == [leaf.dtype for leaf in leaves]
        return self._to_numpy(y.detach(), leaves), tuple(g.numpy() for g in gradients)

    def _options(self, options):
        return options if self.backend is None else {**options, "backend": self.backend}

    def _from_numpy(self, argument):
        """Copy an array to a tensor if this engine takes tensors; leave sizes, None and the rest as they are."""
        if not self.tensors or not isinstance(argument, np.ndarray):
            return argument
        import torch

        return torch.tensor(argument)

    def _to_numpy(self, result, arguments):
        array = result
        if self.tensors:
            import torch

            assert type(result) is torch.Tensor, f"{self}: a tensor went in, {type(result)} came out"
            array = result.detach().numpy()
        assert type(array) is np.ndarray, f"{self}: an array went in, {type(array)} came out"
        given = next(a for a in arguments if hasattr(a, "dtype"))
        assert str(result.dtype).split(".")[-1] == str(given.dtype).split(".")[-1], (
            f"{self}: {given.dtype} went in, {result.dtype} came out")
        return array


ENGINES = (
    Engine("numpy", "numpy", tensors=False),
    Engine("torch", "torch", tensors=True),
    Engine("numpy-under-torch", "numpy", tensors=True, backend="numpy"),
    Engine("julia", "julia", tensors=False, backend="julia"),
    Engine("julia-under-torch", "julia", tensors=True, backend="julia"),
)
CARRIED = next(e for e in reversed(ENGINES) if e.tensors and (e.computes == "numpy" or status(e.computes).runs))
"""An engine under torch's operators, which are the same for all of them: Julia's where there is one."""
TENSOR_ENGINES = (ENGINES[1], CARRIED)
"""What the long tests of torch's transforms and derivatives run on."""
