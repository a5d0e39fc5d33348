"""What of CUDA is here, asked without importing CuPy, torch or the frontend."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys

from .providers import NAMES

_DRIVERS = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",)


def missing() -> tuple[str, str] | None:
    """Return why CuPy cannot run here, and the remedy; None if it may."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and not cupy.cuda.is_available():
        return "CuPy finds no CUDA device", "run where nvidia-smi lists a GPU that CUDA_VISIBLE_DEVICES does not hide"
    for name in _DRIVERS:
        try:
            ctypes.CDLL(name)
        except OSError:
            return f"there is no CUDA driver ({name})", "install NVIDIA's driver, on a machine with one of its GPUs"
    return None


def providers() -> dict[str, str]:
    """Return every provider of convolutions in order of trial, and why it is missing, "" if it seems to be there."""
    reasons = _frontend(), _frontend(), _torch(), ""
    return dict(zip(NAMES, reasons, strict=True))


def _frontend() -> str:
    if importlib.util.find_spec("cudnn") is None:
        return "nvidia-cudnn-frontend is not installed"
    try:
        importlib.metadata.version("nvidia-cudnn-frontend")
    except importlib.metadata.PackageNotFoundError:
        return "the module cudnn is not NVIDIA's frontend"
    return ""


def _torch() -> str:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed"
    return f"torch {version} was built for CPUs" if version.endswith("+cpu") else ""
