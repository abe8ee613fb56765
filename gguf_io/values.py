"""Metadata values in the file: their types, and how to step over one without decoding it.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .cursor import Cursor

_LONGEST_STRING_ARRAY = 1 << 22  # a vocabulary has a few hundred thousand strings; walking them takes time
_STRING_LENGTH = struct.Struct("<Q")


class ValueType(IntEnum):
    """The type of a metadata value, by its number in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def label(self) -> str:
        """The name in error texts, such as uint32."""
        return self.name.lower()


SCALAR_FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
"""The little-endian struct format of each scalar of fixed size."""

INTEGER_TYPES = frozenset(
    (
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    )
)
FLOAT_TYPES = frozenset((ValueType.FLOAT32, ValueType.FLOAT64))


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Where a value lies: its first byte (after type, element type and count) and the byte after it.

    `value_type` is the type of a scalar, or of the elements when `count` is not None (an array).
    """

    value_type: ValueType
    offset: int
    end: int
    count: int | None

    @property
    def label(self) -> str:
        """The type in words, such as uint32 or array of string."""
        return self.value_type.label if self.count is None else f"array of {self.value_type.label}"


def read_value(cursor: Cursor, field: str) -> StoredValue:
    """Check the value at the cursor (type, length, booleans) and step over it."""
    value_type = _read_type(cursor, f"type of {field}")
    count: int | None = None
    start = cursor.offset
    if value_type is ValueType.ARRAY:
        value_type = _read_type(cursor, f"element type of {field}")
        if value_type is ValueType.ARRAY:
            raise cursor.error(field, "an array of arrays, which no model needs and no reader supports", start)
        count_at = cursor.offset
        count = cursor.uint64(f"length of {field}")
        smallest = 8 if value_type is ValueType.STRING else struct.calcsize(SCALAR_FORMATS[value_type])
        if count * smallest > cursor.remaining:
            raise cursor.truncated(f"{field} (array of {count})", count_at, cursor.offset + count * smallest)
        start = cursor.offset
        if value_type is ValueType.STRING:
            _skip_strings(cursor, count, field)
        else:
            cursor.skip(count * smallest, field)
    elif value_type is ValueType.STRING:
        size = cursor.uint64(f"length of {field}")
        cursor.skip(size, f"{field} (string of {size} bytes)")
    else:
        start = cursor.skip(struct.calcsize(SCALAR_FORMATS[value_type]), field)
    if value_type is ValueType.BOOL:
        _check_booleans(cursor, start, field)
    return StoredValue(value_type, start, cursor.offset, count)


def _read_type(cursor: Cursor, field: str) -> ValueType:
    start = cursor.offset
    number = cursor.uint32(field)
    if number > max(ValueType):
        raise cursor.error(field, f"{number} is not a type of the format", start)
    return ValueType(number)


def _skip_strings(cursor: Cursor, count: int, field: str) -> None:
    if count > _LONGEST_STRING_ARRAY:
        raise cursor.error(field, f"{count} strings; at most {_LONGEST_STRING_ARRAY} are allowed")
    buffer, offset, last_length = cursor.buffer, cursor.offset, cursor.end - 8
    length_at, index = _STRING_LENGTH.unpack_from, 0
    start = offset
    while index < count and offset <= last_length:  # the hot loop of opening a file: one step per vocabulary entry
        start = offset
        offset += 8 + length_at(buffer, offset)[0]
        index += 1
    if index < count or offset > cursor.end:
        where, broken = (start, index - 1) if offset > cursor.end else (offset, index)
        raise cursor.truncated(f"{field}, string {broken} of {count}", where, max(offset, where + 8))
    cursor.offset = offset


def _check_booleans(cursor: Cursor, start: int, field: str) -> None:
    values = np.frombuffer(cursor.buffer, np.uint8, cursor.offset - start, start)
    if values.size and values.max() > 1:
        first = int((values > 1).argmax())
        raise cursor.error(field, f"{values[first]} is not a boolean (0 or 1)", start + first)
