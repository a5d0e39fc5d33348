"""What the process may ask of the C library's allocator."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc takes no more


def tune_memory(keep_bytes: int = 1 << 30) -> bool:
    """Ask the C library to keep freed memory for the next allocation, for the whole process.

    Memory that is touched for the first time costs more than most padding: the kernel hands out zeroed pages one by
    one. By default glibc gives large blocks back to the kernel at once, until a program has freed a large block for
    the first time; then it keeps blocks up to that size. This sets both thresholds from the beginning: blocks up to
    32 MB are kept, up to `keep_bytes` in all. Results do not change; the process's resident size falls later, or not
    at all.

    Parameters
    ----------
    keep_bytes
        Bytes of freed memory at the top of the heap that are not given back.

    Returns
    -------
    bool
        Whether it had an effect: True on Linux with glibc, False elsewhere.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none
        return False
    keep_bytes = min(int(keep_bytes), 2**31 - 1)
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, keep_bytes))
