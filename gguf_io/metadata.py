"""Typed, lazy, read-only view of a file's metadata: a wrong or missing key is an error that names it."""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from .cursor import shown, similar
from .errors import GGUFError
from .values import FLOAT_TYPES, INTEGER_TYPES, SCALAR_FORMATS, StoredValue, ValueType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from .cursor import Buffer

    Array = npt.NDArray[np.generic]
    RawValue = bool | int | float | str | list[str] | Array


class _Default(Enum):
    REQUIRED = 0


_REQUIRED = _Default.REQUIRED
_T = TypeVar("_T")
_STRING_LENGTH = struct.Struct("<Q")


class Metadata:
    """Keys in the file's order; a value is decoded when it is asked for, every time anew.

    A read with a default gives the default only when the key is missing: a key of the wrong type is always an error.
    """

    def __init__(self, buffer: Buffer, source: str, values: dict[str, StoredValue]) -> None:
        self._buffer: Buffer | None = buffer
        self._source = source
        self._values = values

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> Sequence[str]:
        """All keys, in the file's order."""
        return tuple(self._values)

    def type_label(self, key: str) -> str:
        """The stored type in words, such as "uint32" or "array of string"."""
        return self._stored(key).label

    def offset(self, key: str) -> int:
        """The byte of the file where the value starts."""
        return self._stored(key).offset

    def is_array(self, key: str) -> bool:
        """Whether the key is present and holds an array."""
        stored = self._values.get(key)
        return stored is not None and stored.count is not None

    def array_length(self, key: str) -> int:
        """The number of elements of an array, without decoding it."""
        stored = self._stored(key)
        if stored.count is None:
            raise self._mistyped(key, stored, "an array")
        return stored.count

    @overload
    def string(self, key: str) -> str: ...
    @overload
    def string(self, key: str, default: _T) -> str | _T: ...
    def string(self, key: str, default: _T | _Default = _REQUIRED) -> str | _T:
        """A string; bytes that are not UTF-8 become U+FFFD (names and templates are for reading)."""
        stored = self._scalar(key, default, frozenset((ValueType.STRING,)), "a string")
        if not isinstance(stored, StoredValue):
            return stored
        return self._bytes(stored.offset + 8, stored.end).decode("utf-8", "replace")

    @overload
    def integer(self, key: str, *, minimum: int | None = None, maximum: int | None = None) -> int: ...
    @overload
    def integer(self, key: str, default: _T, *, minimum: int | None = None, maximum: int | None = None) -> int | _T: ...
    def integer(
        self, key: str, default: _T | _Default = _REQUIRED, *, minimum: int | None = None, maximum: int | None = None
    ) -> int | _T:
        """An integer of any stored width, within the limits where given; floats and booleans are refused."""
        stored = self._scalar(key, default, INTEGER_TYPES, "an integer")
        if not isinstance(stored, StoredValue):
            return stored
        return self._within(key, int(self._number(stored)), minimum, maximum)

    @overload
    def floating(self, key: str) -> float: ...
    @overload
    def floating(self, key: str, default: _T) -> float | _T: ...
    def floating(self, key: str, default: _T | _Default = _REQUIRED) -> float | _T:
        """A float of any stored width; integers are accepted, since some converters write 10000 for 10000.0."""
        stored = self._scalar(key, default, FLOAT_TYPES | INTEGER_TYPES, "a float")
        return float(self._number(stored)) if isinstance(stored, StoredValue) else stored

    @overload
    def boolean(self, key: str) -> bool: ...
    @overload
    def boolean(self, key: str, default: _T) -> bool | _T: ...
    def boolean(self, key: str, default: _T | _Default = _REQUIRED) -> bool | _T:
        """A boolean; numbers are refused."""
        stored = self._scalar(key, default, frozenset((ValueType.BOOL,)), "a boolean")
        return bool(self._number(stored)) if isinstance(stored, StoredValue) else stored

    def string_bytes(self, key: str) -> list[bytes]:
        """An array of strings as the bytes of each."""
        return [text[start:end] for text, start, end in self._string_spans(key)]

    def strings(self, key: str) -> list[str]:
        """An array of strings; a byte that is not UTF-8 becomes a surrogate escape, so nothing is lost."""
        return [text[start:end].decode("utf-8", "surrogateescape") for text, start, end in self._string_spans(key)]

    def integers(self, key: str) -> npt.NDArray[np.integer]:
        """An array of integers in its stored dtype, read-only; a view of the file where it lies aligned."""
        return self._array(key, INTEGER_TYPES, "an array of integers")  # type: ignore[return-value]

    def floats(self, key: str) -> npt.NDArray[np.floating]:
        """An array of floats in its stored dtype (integers become float32); a view of the file where aligned."""
        values = self._array(key, FLOAT_TYPES | INTEGER_TYPES, "an array of floats")
        return values.astype(np.float32) if values.dtype.kind in "iu" else values  # type: ignore[return-value]

    def booleans(self, key: str) -> npt.NDArray[np.bool_]:
        """An array of booleans."""
        return self._array(key, frozenset((ValueType.BOOL,)), "an array of booleans")  # type: ignore[return-value]

    def get_raw(self, key: str) -> RawValue:
        """Whatever is stored: bool, int, float, str, list of str, or a numpy array."""
        stored = self._stored(key)
        if stored.count is None:
            return self.string(key) if stored.value_type is ValueType.STRING else self._number(stored)
        return self.strings(key) if stored.value_type is ValueType.STRING else self._view(stored)

    def close(self) -> None:
        """Let go of the file; later reads are an error."""
        self._buffer = None

    def _stored(self, key: str) -> StoredValue:
        stored = self._values.get(key)
        if stored is None:
            hint = similar(key, self._values, "keys")
            raise GGUFError(f"{self._source}: the metadata key {shown(key)} is missing", hint=hint)
        return stored

    def _scalar(
        self, key: str, default: _T | _Default, wanted: frozenset[ValueType], in_words: str
    ) -> StoredValue | _T:
        if key not in self._values and not isinstance(default, _Default):
            return default
        stored = self._stored(key)
        if stored.count is not None or stored.value_type not in wanted:
            raise self._mistyped(key, stored, in_words)
        return stored

    def _within(self, key: str, value: int, minimum: int | None, maximum: int | None) -> int:
        if (minimum is None or value >= minimum) and (maximum is None or value <= maximum):
            return value
        limits = [f"at least {minimum}"] * (minimum is not None) + [f"at most {maximum}"] * (maximum is not None)
        what = f"the metadata key {shown(key)} is {value}, {' and '.join(limits)} was expected"
        raise GGUFError(f"{self._source}: byte {self.offset(key)}: {what}")

    def _mistyped(self, key: str, stored: StoredValue, wanted: str) -> GGUFError:
        what = f"the metadata key {shown(key)} is of type {stored.label}, {wanted} was expected"
        return GGUFError(f"{self._source}: byte {stored.offset}: {what}")

    def _bytes(self, start: int, end: int) -> bytes:
        if self._buffer is None:
            raise GGUFError(f"{self._source}: the file is closed")
        return self._buffer[start:end]

    def _number(self, stored: StoredValue) -> bool | int | float:
        data = self._bytes(stored.offset, stored.end)
        value: bool | int | float = struct.unpack(SCALAR_FORMATS[stored.value_type], data)[0]
        return value

    def _array(self, key: str, wanted: frozenset[ValueType], in_words: str) -> Array:
        stored = self._stored(key)
        if stored.count is None or stored.value_type not in wanted:
            raise self._mistyped(key, stored, in_words)
        return self._view(stored)

    def _view(self, stored: StoredValue) -> Array:
        if self._buffer is None:
            raise GGUFError(f"{self._source}: the file is closed")
        dtype = np.dtype(SCALAR_FORMATS[stored.value_type])
        view: Array = np.frombuffer(self._buffer, dtype, stored.count or 0, stored.offset)
        if view.flags.aligned:
            return view
        copy = view.copy()  # machine code reads these arrays as well, and metadata is not aligned
        copy.flags.writeable = False
        return copy

    def _string_spans(self, key: str) -> Iterator[tuple[bytes, int, int]]:
        stored = self._stored(key)
        if stored.count is None or stored.value_type is not ValueType.STRING:
            raise self._mistyped(key, stored, "an array of strings")
        data = self._bytes(stored.offset, stored.end)
        position, length_at = 0, _STRING_LENGTH.unpack_from
        for _ in range(stored.count):
            start = position + 8
            position = start + length_at(data, position)[0]
            yield data, start, position
