"""A device of NumPy arrays: the CuPy engine's own code, and its CUDA texts compiled by the host's compiler.

What runs here is the logic of the engine and the arithmetic of its kernels, not a GPU.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import types
from typing import Any

import numpy as np

COMPILER = shutil.which(os.environ.get("CXX", "g++"))

# CUDA's names for a host: one thread after the other, every block whole, so that threads beyond the last cell run too.
# On x86-64 and AArch64 integers and floating-point numbers are passed in registers of their own, so one signature
# serves every kernel of up to six integers or pointers and a double.
SHIM = """
#include <cmath>
#include <cstdint>
#include <cstring>
#define __device__
#define __global__
using std::copysign; using std::fabs; using std::pow;
static struct { unsigned x; } blockIdx, blockDim, threadIdx;
template <class T> static void atomicAdd(T *sum, T value) { *sum += value; }
template <class Bits> struct Half {
    unsigned short bits;
    Half() = default;
    explicit Half(float value) : bits(Bits::round(value)) {}
    operator float() const { return Bits::widen(bits); }
};
template <class To, class From> static To bits_of(From from) { To to; memcpy(&to, &from, sizeof to); return to; }
struct Binary16 {
    static unsigned short round(float value) { return bits_of<unsigned short>(_Float16(value)); }
    static float widen(unsigned short bits) { return bits_of<_Float16>(bits); }
};
struct Brain {
    static unsigned short round(float value) {
        uint32_t bits = bits_of<uint32_t>(value);
        return value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    static float widen(unsigned short half) { return bits_of<float>(uint32_t(half) << 16); }
};
typedef Half<Brain> __nv_bfloat16;
typedef Half<Binary16> __half;
extern "C" void each(long long threads, void *kernel, const long long *given, double number)
{
    typedef void (*Kernel)(long long, long long, long long, long long, long long, long long, double);
    blockDim.x = 256;
    for (long long thread = 0; thread < (threads + 255) / 256 * 256; ++thread) {
        blockIdx.x = thread / 256;
        threadIdx.x = thread % 256;
        ((Kernel)kernel)(given[0], given[1], given[2], given[3], given[4], given[5], number);
    }
}
"""


@functools.cache
def compiled(text):
    """Compile a CUDA text for the host; return the library."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"pyflux_pad_kernels_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    text = SHIM + text.replace("#include <cuda_fp16.h>", "").replace("#include <cuda_bf16.h>", "")
    name = folder / hashlib.sha256(text.encode()).hexdigest()
    library = name.with_suffix(".so")
    if not library.exists():
        source, made = name.with_suffix(f".{os.getpid()}.cpp"), name.with_suffix(f".{os.getpid()}.so")
        source.write_text(text)
        command = [COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-fno-fast-math", "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        made.rename(library)  # all at once: other test processes may look for it
    return ctypes.CDLL(str(library))


class HostDevice:
    """NumPy's memory as a device."""

    xp: Any = np

    def __init__(self):
        self.launched = []

    def of(self, array) -> int:
        return 0

    def on(self, number):
        return contextlib.nullcontext()

    def pointer(self, array):
        return array.ctypes.data

    def stream(self):
        return types.SimpleNamespace(ptr=0)

    def workspace(self, size):
        owner = np.empty(max(size, 1), np.uint8)
        return owner, owner.ctypes.data

    def upload(self, integers):
        return integers.copy()

    def forget(self, value):
        pass

    def launch(self, source, kernel, threads, *arguments):
        self.launched.append(kernel)
        library = compiled(source)
        numbers = [a for a in arguments if isinstance(a, float)]
        given = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments if not isinstance(a, float)]
        assert all(type(a) in (int, float) or isinstance(a, np.ndarray) for a in arguments), "what a launch can pass"
        integers = (ctypes.c_longlong * 6)(*given, *[0] * (6 - len(given)))
        library.each(ctypes.c_longlong(threads), getattr(library, kernel), integers, ctypes.c_double(*numbers))
