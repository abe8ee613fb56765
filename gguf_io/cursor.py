"""A position in untrusted bytes: every read is checked against the end and every error names field and offset."""

from __future__ import annotations

import difflib
import struct
from itertools import islice
from typing import TYPE_CHECKING

from .errors import GGUFError, TruncatedGGUFError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable

    Buffer = bytes | mmap.mmap

INCOMPLETE = (
    "The download is not complete or the file is damaged: fetch it again. If this is one piece of a file that was cut "
    "in pieces, join the pieces in order first."
)
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian fields one after the other; `offset` is the next byte."""

    __slots__ = ("buffer", "end", "offset", "source")

    def __init__(self, buffer: Buffer, source: str) -> None:
        self.buffer = buffer
        self.source = source
        self.end = len(buffer)
        self.offset = 0

    @property
    def remaining(self) -> int:
        """Bytes from here to the end."""
        return self.end - self.offset

    def skip(self, size: int, field: str) -> int:
        """Pass over `size` bytes and return where they start."""
        start = self.offset
        if size > self.end - start:
            raise self.truncated(field, start, start + size)
        self.offset = start + size
        return start

    def uint32(self, field: str) -> int:
        """The next four bytes as an unsigned number."""
        value: int = _UINT32.unpack_from(self.buffer, self.skip(4, field))[0]
        return value

    def uint64(self, field: str) -> int:
        """The next eight bytes as an unsigned number."""
        value: int = _UINT64.unpack_from(self.buffer, self.skip(8, field))[0]
        return value

    def name(self, field: str, longest: int) -> str:
        """A length-prefixed UTF-8 name of at most `longest` bytes."""
        start = self.offset
        size = self.uint64(f"length of {field}")
        if size > longest:
            raise self.error(field, f"a name of {size} bytes; at most {longest} are allowed", start)
        begin = self.skip(size, field)
        try:
            return self.buffer[begin : begin + size].decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(field, "the name is not valid UTF-8", begin) from None

    def error(self, field: str, problem: str, offset: int | None = None, *, hint: str | None = None) -> GGUFError:
        """The error to raise for `field`, at `offset` (else here)."""
        where = self.offset if offset is None else offset
        return GGUFError(f"{self.source}: byte {where}: {field}: {problem}", hint=hint)

    def truncated(self, field: str, offset: int, needed: int) -> TruncatedGGUFError:
        """The error to raise when `field` would reach up to byte `needed`."""
        return TruncatedGGUFError(
            f"{self.source}: byte {offset}: {field}: needs the bytes up to {needed}, the file ends at {self.end}",
            needed_bytes=needed,
            hint=INCOMPLETE,
        )


def shown(text: str) -> str:
    """A name from the file, safe to print: escaped where it holds control characters, and cut."""
    text = text if len(text) <= 100 else f"{text[:97]}..."
    return text if text.isprintable() else ascii(text)


def similar(wanted: str, known: Iterable[str], what: str) -> str | None:
    """A hint with the names most like the wanted one, or None; `what` is the plural of what they name."""
    near = difflib.get_close_matches(wanted[:200], islice(known, 4096), n=3)  # comparing takes time: bounded
    return f"Similar {what} in the file: {', '.join(map(shown, near))}." if near else None
