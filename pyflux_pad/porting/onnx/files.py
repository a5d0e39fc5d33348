"""From a path or bytes to a parsed model whose arrays are NumPy's: everything that can be wrong with a file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import ModelError
from ..operators.elementwise import DTYPES
from .package import LARGEST, OLDEST_OPSET, load_onnx

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
"""How pickles and torch's archives of pickles begin; an ONNX file begins with a field number."""


def parse(source: str | Path | bytes) -> tuple[Any, str, Path | None]:
    """Return the model, its name for messages and the folder of its external data.

    Raises
    ------
    ModelError
        For a file that is missing, empty, too large, a pickle, or no ONNX model.
    """
    onnx = load_onnx("read_onnx")
    if isinstance(source, (bytes, bytearray)):
        name, folder, size = "the model", None, len(source)
    else:
        path = Path(source)
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        name, folder, size = str(path), path.parent, path.stat().st_size
    if size > LARGEST:
        raise ModelError(
            f"{name}: {size:,} bytes are more than the 2 GiB that one ONNX file can hold; save it with external data, "
            f"onnx.save(model, path, save_as_external_data=True)"
        )
    data = bytes(source) if isinstance(source, (bytes, bytearray)) else Path(source).read_bytes()
    if data.startswith(_PICKLES):
        raise ModelError(
            f"{name}: this is a pickle or a torch checkpoint, which can run any code when it is loaded, so it never "
            f"is; export the model, torch.onnx.export(...), or use read_torch on the module"
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # google.protobuf's DecodeError, whatever package it lives in
        raise ModelError(f"{name}: not an ONNX model, or truncated or corrupted: {error}") from None
    if not model.graph.node or not model.graph.output:
        raise ModelError(f"{name}: no graph with nodes and outputs in it; the file is no ONNX model or is truncated")
    return model, name, folder


def opset_of(model: Any, name: str) -> int:
    """Return the opset of ONNX's own operators.

    Raises
    ------
    ModelError
        If it is missing, too old or newer than the onnx package knows.
    """
    onnx = load_onnx("read_onnx")
    newest = onnx.defs.onnx_opset_version()
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions:
        raise ModelError(f"{name}: the model does not say which opset it uses; the file is incomplete")
    if not OLDEST_OPSET <= versions[0] <= newest:
        remedy = "install a newer onnx package" if versions[0] > newest else "convert it, onnx.version_converter"
        raise ModelError(f"{name}: opset {versions[0]} is outside {OLDEST_OPSET} to {newest}; {remedy}")
    return versions[0]


def array_of(tensor: Any, name: str, folder: Path | None) -> np.ndarray:
    """Return the array of a tensor, from inside the model or from its external file.

    Raises
    ------
    ModelError
        For a dtype that graphs do not carry, for data that does not fit the shape, and for external data outside the
        folder, missing or of a wrong size.
    """
    onnx = load_onnx("read_onnx")
    what = f"{name}: array {tensor.name!r}"
    dtype = dtype_of(tensor.data_type, what)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, np.dtype(dtype), what, folder)
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:
        raise ModelError(
            f"{what}: its data does not fit {dtype} of the shape {tuple(tensor.dims)}: {error}; the file is corrupted"
        ) from None


def dtype_of(code: int, what: str) -> str:
    """Return NumPy's name for ONNX's number of a dtype."""
    onnx = load_onnx("read_onnx")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(code).name
        label = onnx.TensorProto.DataType.Name(code)
    except (KeyError, ValueError):
        raise ModelError(
            f"{what} has the dtype number {code}, which ONNX does not know; the file is corrupted"
        ) from None
    if dtype not in DTYPES:
        raise ModelError(f"{what} is {label}, which graphs do not carry; they carry {', '.join(DTYPES)}")
    return dtype


def _external(tensor: Any, dtype: np.dtype, what: str, folder: Path | None) -> np.ndarray:
    """Read a tensor from a file beside the model, and from nowhere else."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{what} lies in the external file {location!r}; read the model from its path, not from bytes")
    base = folder.resolve()
    path = (base / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(base):
        raise ModelError(f"{what}: its external data {location!r} points outside the model's folder; it is not read")
    if not path.is_file():
        raise ModelError(f"{what}: its external file {location!r} is not beside the model")
    try:
        offset, length = int(entries.get("offset", 0)), entries.get("length")
        needed = math.prod(_sizes(tensor.dims)) * dtype.itemsize
        given = needed if length is None else int(length)
    except ValueError:
        raise ModelError(f"{what}: offset, length or shape of its external data are no sizes: {entries}") from None
    size = path.stat().st_size
    if given != needed or offset < 0 or offset + needed > size:
        raise ModelError(
            f"{what} of the shape {tuple(tensor.dims)} needs {needed:,} bytes at {offset:,}, but its entry says "
            f"{given:,} and the file {location!r} has {size:,}"
        )
    return np.fromfile(path, dtype.newbyteorder("<"), needed // dtype.itemsize, offset=offset).reshape(tensor.dims)


def _sizes(dims: Iterable[int]) -> list[int]:
    sizes = list(dims)
    if any(size < 0 for size in sizes):
        raise ValueError
    return sizes
