"""Where a GPU is measured: CuPy's events, streams and memory pool. The tests have a machine of NumPy arrays."""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from ..backends import get
from ..backends.cupy import CupyEngine
from ..backends.cupy.device import Array, Device
from ..backends.cupy.frontend import loaded_libraries


class Machine(Protocol):
    """What the measurements need of a device."""

    xp: ModuleType
    device: Device

    def engine(self, provider: str | None, allow_tf32: bool = False) -> CupyEngine:
        """Return an engine that computes with one provider, or with the first that can."""
        ...

    def versions(self) -> dict[str, Any]:
        """Return versions of libraries, and what the device is."""
        ...

    def to_host(self, array: Array) -> np.ndarray:
        """Return a NumPy array."""
        ...

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Return the time that one call takes on the device."""
        ...

    def growth(self, call: Callable[[], Any]) -> int:
        """Return the most bytes that a call allocates, its result included."""
        ...

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context with a new current stream."""
        ...

    def synchronize(self) -> None:
        """Wait for the device."""
        ...


class CupyMachine:
    """The current device of CuPy."""

    _BATCHES, _CALLS = 5, 5

    def __init__(self) -> None:
        engine: Any = get("cupy")
        self.device, self.xp = engine.device, engine.xp
        self._chain = engine.chain

    def engine(self, provider: str | None, allow_tf32: bool = False) -> CupyEngine:
        """Return an engine that shares its plans with all others made here."""
        return CupyEngine(self.device, provider, allow_tf32, dict(self._chain.makers))

    def versions(self) -> dict[str, Any]:
        """Return versions of libraries, and what the device is."""
        xp = self.xp
        number = xp.cuda.Device().id
        properties = xp.cuda.runtime.getDeviceProperties(number)
        found: dict[str, Any] = {
            "device": properties["name"].decode(),
            "compute_capability": xp.cuda.Device().compute_capability,
            "cuda_runtime": xp.cuda.runtime.runtimeGetVersion(),
            "cuda_driver": xp.cuda.runtime.driverGetVersion(),
            "cupy": xp.__version__,
            "numpy": np.__version__,
        }
        for name in ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "torch", "ml_dtypes"):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
        found["cudnn_libraries"] = loaded_libraries()
        return found

    def to_host(self, array: Array) -> np.ndarray:
        """Return a NumPy array."""
        return self.xp.asnumpy(array)

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Return the median over batches of calls between two events."""
        cuda = self.xp.cuda
        for _ in range(self._CALLS):
            call()
        times = []
        for _ in range(self._BATCHES):
            start, stop = cuda.Event(), cuda.Event()
            start.record()
            for _ in range(self._CALLS):
                call()
            stop.record()
            stop.synchronize()
            times.append(cuda.get_elapsed_time(start, stop) / self._CALLS)
        return statistics.median(times)

    def growth(self, call: Callable[[], Any]) -> int:
        """Return by how much CuPy's pool, empty of free blocks before, grows in a call."""
        call()  # plans and modules are loaded
        self.synchronize()
        pool = self.xp.get_default_memory_pool()
        pool.free_all_blocks()
        before = pool.total_bytes()
        result = call()
        self.synchronize()
        after = pool.total_bytes()
        del result
        return after - before

    def stream(self) -> AbstractContextManager[Any]:
        """Return a context with a new current stream that does not wait for the default one."""
        return self.xp.cuda.Stream(non_blocking=True)

    def synchronize(self) -> None:
        """Wait for the device."""
        self.xp.cuda.Device().synchronize()


def host_microseconds(machine: Machine, call: Callable[[], Any], calls: int) -> float:
    """Return the time that the host spends in a call, best of several batches; the device is idle before each."""
    times = []
    for _ in range(7):
        machine.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    machine.synchronize()
    return min(times)
