"""Writes GGUF files, whole or not at all. On purpose it shares no constant with the reader: each proves the other.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import GGUFError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from .quant_types import QuantType

    Data = bytes | npt.NDArray[np.generic]

MetadataValue: TypeAlias = (
    bool | int | float | str | bytes | np.generic
    | Sequence[str] | Sequence[bytes] | Sequence[int] | Sequence[float] | npt.NDArray[np.generic]
)  # fmt: skip
"""What `write_gguf` takes as a value."""

_NUMBERS = {  # kind and bytes of a numpy number: its number in the file
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}
_STRING = 8
_ARRAY = 9


def write_gguf(
    path: str | PathLike[str],
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, tuple[QuantType, tuple[int, ...], Data]],
    *,
    magic: str = "GGUF",
    version: int = 3,
) -> None:
    """Write a GGUF file under a temporary name and then rename it, so that `path` is whole or untouched.

    Metadata: bool, str, bytes and numpy numbers are stored as they are; int as uint32 (int32 when negative, 64 bits
    when needed), float as float32; a sequence of these as an array (of the first element's kind; int32 for int), a
    one-dimensional numpy array as one of its dtype. An alignment other than 32 is asked for by `general.alignment`.
    Tensors: type, shape in numpy order, and the bytes of the blocks (bytes, or an array whose bytes they are). Raises
    GGUFError when a value does not fit the format or the disk does not take the file.
    """
    target = Path(path)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int | np.integer) or alignment < 1 or alignment & (alignment - 1):
        raise GGUFError(f"metadata general.alignment: {alignment!r} is no power of two")
    data = {name: _tensor_bytes(name, *tensor) for name, tensor in tensors.items()}
    head = _head(metadata, tensors, magic, version, int(alignment))
    try:
        _write_whole(target, _chunks(head, data.values(), int(alignment)))
    except OSError as error:
        raise GGUFError(f"{target}: cannot be written: {error.strerror or error}") from None


def _write_whole(target: Path, chunks: Iterable[bytes | memoryview]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # a temporary file is private, a model is not
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _chunks(head: bytes, blocks: Iterable[memoryview], alignment: int) -> Iterable[bytes | memoryview]:
    yield head + bytes(-len(head) % alignment)
    for block in blocks:
        yield block
        yield bytes(-len(block) % alignment)


def _tensor_bytes(name: str, quant_type: QuantType, shape: tuple[int, ...], data: Data) -> memoryview:
    if not shape or min(shape) < 1 or shape[-1] % quant_type.block_size:
        raise GGUFError(f"tensor {name}: the shape {shape} is no whole number of {quant_type.name} blocks")
    flat = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1)
    block = flat.view(np.uint8).data
    wanted = math.prod(shape) // quant_type.block_size * quant_type.type_size
    if len(block) != wanted:
        raise GGUFError(f"tensor {name}: {len(block)} bytes of data, {quant_type.name} of {shape} has {wanted}")
    return block


def _head(
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, tuple[QuantType, tuple[int, ...], Data]],
    magic: str,
    version: int,
    alignment: int,
) -> bytes:
    parts = [magic.encode("ascii"), struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _value(key, value)]
    offset = 0
    for name, (quant_type, shape, _) in tensors.items():
        parts += [_string(name), struct.pack("<I", len(shape))]
        parts += [struct.pack("<Q", size) for size in reversed(shape)]
        old_number = magic == "PWRI" and quant_type.name in ("I8", "I16", "I32")  # 16 to 18 in PowerInfer's ggml.h
        parts.append(struct.pack("<IQ", int(quant_type) - 8 * old_number, offset))
        size = math.prod(shape) // quant_type.block_size * quant_type.type_size
        offset += size + -size % alignment
    return b"".join(parts)


def _string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: MetadataValue) -> bytes:
    if isinstance(value, str | bytes):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, bool | int | float | np.generic):
        number = _number(key, value)
        return struct.pack("<I", _number_type(key, number.dtype)) + number.tobytes()
    if not isinstance(value, np.ndarray) and value and isinstance(value[0], str | bytes):
        strings = [_string(element) for element in value if isinstance(element, str | bytes)]
        if len(strings) == len(value):
            return struct.pack("<IIQ", _ARRAY, _STRING, len(strings)) + b"".join(strings)
        raise GGUFError(f"metadata {key}: strings and numbers are mixed in one array")
    array = value if isinstance(value, np.ndarray) else _numbers(key, value)
    if array.ndim != 1:
        raise GGUFError(f"metadata {key}: an array has one dimension, not {array.ndim}")
    array = array.astype(array.dtype.newbyteorder("<"))
    return struct.pack("<IIQ", _ARRAY, _number_type(key, array.dtype), array.size) + array.tobytes()


def _number(key: str, value: bool | int | float | np.generic) -> npt.NDArray[np.generic]:
    if isinstance(value, np.generic):
        return np.asarray(value).astype(value.dtype.newbyteorder("<"))
    if isinstance(value, bool):
        return np.asarray(value)
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > float(np.finfo("<f4").max):
            raise GGUFError(f"metadata {key}: {value} does not fit into float32: give a numpy float64")
        return np.asarray(value, "<f4")
    for dtype in ("<u4", "<i4", "<u8", "<i8"):
        limits = np.iinfo(dtype)
        if limits.min <= value <= limits.max:
            return np.asarray(value, dtype)
    raise GGUFError(f"metadata {key}: {value} does not fit into 64 bits")


def _numbers(key: str, values: Sequence[object]) -> npt.NDArray[np.generic]:
    if not values:
        raise GGUFError(f"metadata {key}: the type of an empty list is unknown: give an empty numpy array")
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise GGUFError(f"metadata {key}: a list of {type(values[0]).__name__} is no array of the format")
    if array.dtype.kind == "f":
        return array.astype("<f4")
    if array.dtype.kind in "iu" and np.iinfo("<i4").min <= array.min() and array.max() <= np.iinfo("<i4").max:
        return array.astype("<i4")
    return array


def _number_type(key: str, dtype: np.dtype[np.generic]) -> int:
    number = _NUMBERS.get(f"{dtype.kind}{dtype.itemsize}")
    if number is None:
        raise GGUFError(f"metadata {key}: {dtype} is no number of the format")
    return number
