"""safetensors files with NumPy alone: written with places that are known before the data, read with nothing trusted.

A file is the length of a header (8 bytes, little-endian), the header (JSON: dtype, shape and place of every array),
and the arrays' bytes in C order, without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The format's names of dtypes, and NumPy's."""
_CODES = {name: code for code, name in DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # the format's own limit


def places(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return where the bytes of every array begin after the header: wide dtypes first, so that all are aligned."""
    begins, end = {}, 0
    for name in sorted(arrays, key=lambda name: -arrays[name].itemsize):
        begins[name] = end
        end += arrays[name].nbytes
    return begins


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file, one array after the other, in the order of `places`."""
    begins = places(arrays)
    header: dict[str, object] = {
        name: {
            "dtype": _CODES[arrays[name].dtype.name],
            "shape": list(arrays[name].shape),
            "data_offsets": [begin, begin + arrays[name].nbytes],
        }
        for name, begin in begins.items()
    }
    text = json.dumps({"__metadata__": {"producer": "pyflux_pad"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in begins:
            array = arrays[name]
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file.

    Raises
    ------
    ValueError
        If the file is no safetensors file, is cut off, or places an array outside of it.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise ValueError(f"a header of {length} bytes does not fit into a file of {size}")
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return {name: _array(file, name, entry, 8 + length, size) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}; write the model again") from None


def _array(file: BinaryIO, name: str, entry: Mapping[str, Any], start: int, size: int) -> np.ndarray:
    begin, end = entry["data_offsets"]
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if not all(isinstance(n, int) and n >= 0 for n in (begin, end, *shape)) or start + end > size:
        raise ValueError(f"the array {name!r} of the shape {shape} lies at {begin} to {end}, outside of the file")
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError(f"the array {name!r} of the shape {shape} cannot be {end - begin} bytes of {dtype}")
    file.seek(start + begin)
    return np.fromfile(file, dtype.newbyteorder("<"), math.prod(shape)).astype(dtype, copy=False).reshape(shape)
