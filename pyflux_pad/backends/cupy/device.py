"""What the engine needs of a GPU besides an array module: pointers, streams, memory, kernels. CuPy's, in one place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from importlib import resources
from threading import Lock
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

Array = Any
Value = TypeVar("Value")
Method = TypeVar("Method", bound=Callable[..., Any])

_BLOCK = 256
"""Threads per block of a kernel."""


class Device(Protocol):
    """Where arrays live and kernels run; the tests have one of NumPy arrays and a host compiler."""

    xp: ModuleType
    """The array module."""

    def of(self, array: Array) -> int:
        """Return the number of the device that holds an array."""
        ...

    def on(self, number: int) -> AbstractContextManager[Any]:
        """Return a context in which the device of this number is the current one."""
        ...

    def pointer(self, array: Array) -> int:
        """Return the address of the first element."""
        ...

    def stream(self) -> Any:
        """Return the current stream, whose `ptr` is its address."""
        ...

    def workspace(self, size: int) -> tuple[Any, int]:
        """Return memory of the current stream: its owner, and its address."""
        ...

    def upload(self, integers: np.ndarray) -> Array:
        """Return a copy on the current device that every stream may read."""
        ...

    def forget(self, value: Any) -> None:
        """Wait until no stream reads what a cache drops."""
        ...

    def launch(self, source: str, kernel: str, threads: int, *arguments: Any) -> None:
        """Run a kernel of a source text; an argument is an array, an int (long long) or a float (double)."""
        ...


def on_device(method: Method) -> Method:
    """Let a method of an engine run on the device of its second argument, an array."""

    @wraps(method)
    def run(self: Any, first: Any, array: Array, *rest: Any, **options: Any) -> Any:
        with self.device.on(self.device.of(array)):
            return method(self, first, array, *rest, **options)

    return cast(Method, run)


class CupyDevice:
    """CUDA through CuPy: whatever device and stream are current."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self._module = cache(lambda source: xp.RawModule(code=source))
        self._kernel = cache(lambda source, kernel: self._module(source).get_function(kernel))

    def of(self, array: Array) -> int:
        """Return the number of the device that holds an array."""
        return array.device.id

    def on(self, number: int) -> AbstractContextManager[Any]:
        """Return a context in which the device of this number is the current one."""
        return nullcontext() if self.xp.cuda.runtime.getDevice() == number else self.xp.cuda.Device(number)

    def pointer(self, array: Array) -> int:
        """Return the address of the first element."""
        return array.data.ptr

    def stream(self) -> Any:
        """Return the current stream."""
        return self.xp.cuda.get_current_stream()

    def workspace(self, size: int) -> tuple[Any, int]:
        """Return memory of CuPy's pool, which gives it again only to work that follows on the same stream."""
        memory = self.xp.cuda.alloc(max(size, 1))
        return memory, memory.ptr

    def upload(self, integers: np.ndarray) -> Array:
        """Return a copy that is complete when this returns: it will be read on any stream."""
        copy = self.xp.asarray(integers)
        self.stream().synchronize()
        return copy

    def forget(self, value: Any) -> None:
        """Wait for the device: memory goes back to the stream that asked for it, others may still read it."""
        self.xp.cuda.Device().synchronize()

    def launch(self, source: str, kernel: str, threads: int, *arguments: Any) -> None:
        """Run a kernel on the current stream; it is compiled at its first use, and CuPy keeps that on disk."""
        self._kernel(source, kernel)((-(-threads // _BLOCK),), (_BLOCK,), arguments)


class Cache(Generic[Value]):
    """The values made last, at most `size` of them, for any number of threads; failures are kept like values.

    Two threads that ask for the same new value at once may both make it, and the first one made stays.
    """

    def __init__(self, size: int, dropped: Callable[[Value], None] = lambda value: None) -> None:
        self.size, self.dropped = size, dropped
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made by `make` where there is none yet."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        drops = []
        with self._lock:
            value = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self.size:
                drops.append(self._values.popitem(last=False)[1])
        for drop in drops:
            self.dropped(drop)
        return value


@cache
def source_of(name: str) -> str:
    """Return the text of one of this folder's CUDA files."""
    return resources.files("pyflux_pad.backends.cupy").joinpath(name).read_text("utf-8")
