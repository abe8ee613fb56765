"""The head of a GGUF file: magic, version, metadata and the table of tensors, without touching tensor data.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cursor import Cursor, shown
from .metadata import Metadata
from .quant_types import QuantType
from .recognise import check_magic
from .values import StoredValue, read_value

if TYPE_CHECKING:
    from .cursor import Buffer

_MOST_KEYS = 1 << 14  # real files: below 100
_MOST_TENSORS = 1 << 16  # real files: below 3,000, with one tensor per expert below 30,000
_LONGEST_KEY = (1 << 16) - 1
_LONGEST_TENSOR_NAME = 1024  # the specification says 64
_MOST_DIMENSIONS = 4
_LARGEST_ALIGNMENT = 1 << 20
_SMALLEST_KEY_RECORD = 8 + 4 + 1
_SMALLEST_TENSOR_RECORD = 8 + 4 + 4 + 8

_RETIRED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
_POWERINFER_TYPES = {16: QuantType.I8, 17: QuantType.I16, 18: QuantType.I32}
"""PowerInfer branched off before the IQ types took these numbers (its ggml.h), and its gpu_idx tensors are I32."""
_KNOWN_TYPES = {int(quant_type): quant_type for quant_type in QuantType}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A line of the tensor table; `offset` counts from the start of the data section, `shape` is in numpy order."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int

    @property
    def quant_type(self) -> QuantType | None:
        """The storage type, or None where it is unknown to us."""
        return _KNOWN_TYPES.get(self.type_number)

    @property
    def type_label(self) -> str:
        """The type's name, as far as it is known, else its number."""
        quant_type = self.quant_type
        return quant_type.name if quant_type is not None else _RETIRED_TYPES.get(self.type_number, "unknown")

    @property
    def row_bytes(self) -> int | None:
        """Bytes of a row of values; None for an unknown type."""
        quant_type = self.quant_type
        return None if quant_type is None else self.shape[-1] // quant_type.block_size * quant_type.type_size

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor in the file; None for an unknown type."""
        row_bytes = self.row_bytes
        return None if row_bytes is None else math.prod(self.shape[:-1]) * row_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data; `data_start` is the byte where the data section begins."""

    magic: str
    version: int
    alignment: int
    metadata: Metadata
    entries: tuple[TensorEntry, ...]
    data_start: int


def parse_header(buffer: Buffer, source: str) -> Header:
    """Read the head of a GGUF file from its first bytes (a whole mapped file, or what a ranged download fetched).

    `source` is the name for error texts. Strings and arrays stay undecoded until asked for. Raises TruncatedGGUFError
    when more bytes are needed, GGUFError when no number of further bytes would help.
    """
    cursor = Cursor(buffer, source)
    magic, version = check_magic(cursor)
    tensor_count = _read_count(cursor, "tensor count", _MOST_TENSORS)
    key_count = _read_count(cursor, "metadata count", _MOST_KEYS)
    _check_room(cursor, "metadata count", key_count, _SMALLEST_KEY_RECORD)
    metadata = Metadata(buffer, source, _read_metadata(cursor, key_count))
    alignment = _read_alignment(cursor, metadata)
    _check_room(cursor, "tensor count", tensor_count, _SMALLEST_TENSOR_RECORD)
    entries = _read_entries(cursor, tensor_count, alignment, _POWERINFER_TYPES if magic == "PWRI" else {})
    return Header(magic, version, alignment, metadata, entries, -(-cursor.offset // alignment) * alignment)


def _read_count(cursor: Cursor, field: str, most: int) -> int:
    start = cursor.offset
    count = cursor.uint64(field)
    if count > most:
        raise cursor.error(field, f"{count} is more than any model has (limit {most})", start)
    return count


def _check_room(cursor: Cursor, field: str, count: int, smallest: int) -> None:
    if count * smallest > cursor.remaining:
        raise cursor.truncated(f"{field} of {count}", cursor.offset, cursor.offset + count * smallest)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, StoredValue]:
    values: dict[str, StoredValue] = {}
    for index in range(count):
        start = cursor.offset
        key = cursor.name(f"metadata key {index + 1} of {count}", _LONGEST_KEY)
        if key in values:
            raise cursor.error(f"metadata key {shown(key)}", "appears twice", start)
        values[key] = read_value(cursor, f"metadata {shown(key)}")
    return values


def _read_alignment(cursor: Cursor, metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return 32
    alignment = metadata.integer(key)
    if not 0 < alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
        problem = f"{alignment} is not a power of two up to {_LARGEST_ALIGNMENT}"
        raise cursor.error(f"metadata {key}", problem, metadata.offset(key))
    return alignment


def _read_entries(
    cursor: Cursor, count: int, alignment: int, renumbered: dict[int, QuantType]
) -> tuple[TensorEntry, ...]:
    entries: dict[str, TensorEntry] = {}
    for index in range(count):
        start = cursor.offset
        name = cursor.name(f"name of tensor {index + 1} of {count}", _LONGEST_TENSOR_NAME)
        if name in entries:
            raise cursor.error(f"tensor {shown(name)}", "appears twice", start)
        entries[name] = _read_entry(cursor, name, alignment, renumbered)
    return tuple(entries.values())


def _read_entry(cursor: Cursor, name: str, alignment: int, renumbered: dict[int, QuantType]) -> TensorEntry:
    label = f"tensor {shown(name)}"
    start = cursor.offset
    dimensions = cursor.uint32(f"{label}, number of dimensions")
    if dimensions > _MOST_DIMENSIONS:
        raise cursor.error(f"{label}, number of dimensions", f"{dimensions} (at most {_MOST_DIMENSIONS})", start)
    start = cursor.offset
    sizes = [cursor.uint64(f"{label}, dimension {axis}") for axis in range(dimensions)]
    if 0 in sizes:
        raise cursor.error(f"{label}, dimensions", f"{sizes} has a zero", start)
    type_at = cursor.offset
    stored = cursor.uint32(f"{label}, type")
    number = renumbered.get(stored, stored)
    offset_at = cursor.offset
    offset = cursor.uint64(f"{label}, data offset")
    if offset % alignment:
        raise cursor.error(f"{label}, data offset", f"{offset} is not a multiple of {alignment}", offset_at)
    entry = TensorEntry(name, tuple(reversed(sizes)) or (1,), number, offset)
    quant_type = entry.quant_type
    if quant_type is not None and entry.shape[-1] % quant_type.block_size:
        problem = f"a row of {entry.shape[-1]} values is no whole number of {quant_type.name} blocks"
        raise cursor.error(f"{label}, dimensions", f"{problem} ({quant_type.block_size} values)", type_at)
    return entry
