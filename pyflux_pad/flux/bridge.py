"""Calls of the Julia extension for Flux: integers, addresses and a text go there, a text comes back.

Only `backends.julia.runtime` knows threads, locks and the end of the process; this file knows what is asked.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..backends import BackendUnavailable, julia_info
from ..backends.julia.runtime import Runtime, running
from ..console import notice

DTYPES = (
    "float32", "float64", "complex64", "complex128", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool",
)  # fmt: skip
"""NumPy's names of the element types that cross the border, in the order of PyFluxPadFluxExt.ELEMENTS."""


class FluxError(RuntimeError):
    """What Julia says when Flux fails on a call that is not known to be wrong beforehand."""


_ERRORS: dict[str, type[BaseException]] = {
    "shape": ValueError, "type": TypeError, "code": ValueError, "changed": RuntimeError, "missing": BackendUnavailable,
    "memory": MemoryError, "interrupted": KeyboardInterrupt, "julia": FluxError,
}  # fmt: skip


def ask(what: str, operation: str, integers: Iterable[int] = (), text: str = "") -> str:
    """Call an operation of the extension and return its answer.

    Parameters
    ----------
    what
        What messages of errors begin with: the public call.
    operation
        A name in PyFluxPadFluxExt.OPERATIONS.
    integers
        Its integers; the arrays whose addresses are among them are kept alive by the caller.
    text
        Its text.

    Raises
    ------
    BackendUnavailable
        Without a Julia that has Flux, with the remedy.
    ValueError, TypeError, RuntimeError, MemoryError, KeyboardInterrupt
        As Julia says.
    """
    extension = _extension()
    if released := [_released.popleft() for _ in range(len(_released))]:
        extension.call("release", [len(released), *released], "")
    failed, answer = extension.call(operation, integers, text)
    if not failed:
        return answer
    kind, _, said = answer.partition("\n")
    raise _ERRORS[kind](f"{what}: {said or 'Julia was interrupted or has no memory left'}")


class Kept:
    """Something that Julia keeps for Python under a number until this object is gone.

    Parameters
    ----------
    number
        Its number.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, _released.append, number).atexit = False


_released: deque[int] = deque()
"""Numbers of what is gone: the next call tells Julia, because an object may end at any moment, inside a call too."""


class _Extension:
    """The C functions of the extension."""

    def __init__(self, julia: Runtime, entries: Iterable[str]) -> None:
        self.julia = julia
        addresses = {name: int(address) for name, address in map(str.split, entries)}
        self._answer = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(addresses.pop("answer"))
        prototype = julia.prototype(ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
        self._entries: dict[str, Callable[..., int]] = {name: prototype(place) for name, place in addresses.items()}
        self._buffer = ctypes.create_string_buffer(1 << 14)

    def call(self, operation: str, integers: Iterable[int], text: str) -> tuple[bool, str]:
        """Return whether an operation failed, and its answer."""
        return self.julia.inside(self._call, self._entries[operation], np.array([*integers], np.int64), text.encode())

    def _call(self, entry: Callable[..., int], integers: np.ndarray, text: bytes) -> tuple[bool, str]:
        buffer = self._buffer
        length = entry(integers.ctypes.data, text, ctypes.addressof(buffer), len(buffer))
        if abs(length) > len(buffer):
            buffer = ctypes.create_string_buffer(abs(length))
            self._answer(ctypes.addressof(buffer), len(buffer))
        return length < 0, ctypes.string_at(buffer, abs(length)).decode()


def available() -> bool:
    """Say whether live models can be made here: starts Julia and loads Flux, if both are there."""
    try:
        _extension()
    except BackendUnavailable:
        return False
    return True


_loaded: _Extension | None = None


def _extension() -> _Extension:
    """Return the extension, loading Flux at the first call."""
    global _loaded
    if _loaded is None:
        julia_info()  # says what is missing, juliacall too
    julia = running()
    if _loaded is None or _loaded.julia is not julia:
        with notice("loading Flux; the first time on a machine Julia compiles it, which takes minutes ..."):
            kind, *facts = julia.flux_entries()
        if kind != "ready":
            raise BackendUnavailable(f"pyflux_pad.flux cannot run: {_REASONS[kind](*facts)}")
        _loaded = _Extension(julia, facts)
    return _loaded


_REASONS: dict[str, Callable[..., str]] = {
    "missing": lambda project: (
        f"the project {project} has no package Flux; add it: julia --project={project} -e 'import Pkg; "
        f'Pkg.add("Flux")\', or point PYTHON_JULIACALL_PROJECT to a project with Flux and PythonCall'
    ),
    "version": lambda found, project: (
        f"the project {project} has Flux {found}, and this package knows Flux 0.16; "
        f'import Pkg; Pkg.add(name="Flux", version="0.16")'
    ),
    "thread": lambda: "Flux is loaded by the thread that started Julia (as a rule the main thread); call it there once",
    "failed": lambda text: f"loading Flux failed: {text[:800]}",
}
"""What the answer to the request for Flux means."""


# --------------------------------------------------------------------------------------------------------------- arrays


def describe(array: np.ndarray) -> list[int]:
    """Return the integers that describe an array's memory: element type, address, number of axes, sizes."""
    address = array.__array_interface__["data"][0]
    return [DTYPES.index(array.dtype.name) + 1, address, array.ndim, *array.shape]


def checked(what: str, name: str, array: Any) -> np.ndarray:
    """Return an array that Julia can read as it lies.

    Raises
    ------
    TypeError
        For what is no NumPy array, a dtype that Julia does not have, or another byte order.
    ValueError
        For memory that is not C-contiguous.
    """
    if type(array) is not np.ndarray:
        raise TypeError(f"{what}: {name} is a {type(array).__name__}, not a NumPy array; convert it first")
    if array.dtype.name not in DTYPES:
        raise TypeError(f"{what}: {name} is {array.dtype}; Julia takes {', '.join(DTYPES)}; use astype(...)")
    if not array.dtype.isnative:
        raise TypeError(f"{what}: {name} has the byte order of another machine ({array.dtype.str}); convert it with "
                        f"astype({array.dtype.name!r})")  # fmt: skip
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(
            f"{what}: {name} of the shape {array.shape} has the strides {array.strides}, which is not the order of C; "
            f"Julia reads the memory as it lies, so pass numpy.ascontiguousarray(...)"
        )
    return array


class _Memory:
    """Memory of Julia's for NumPy; the array that is made of it keeps its owner alive."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, ...], owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": shape, "typestr": np.dtype(dtype).str,
        }  # fmt: skip


def view(address: int, dtype: str, shape: tuple[int, ...], owner: object) -> np.ndarray:
    """Return a writable array on Julia's memory, which `owner` keeps there."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_Memory(address, dtype, shape, owner))
