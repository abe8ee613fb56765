"""Which blocks of a half-fetched file are on disk: an append-only journal that survives a kill at any byte.

File: one JSON line with the identity of the content, then records of 12 bytes: block index, CRC-32 of the block,
CRC-32 of those 8 bytes (little-endian uint32 each). A torn last record is cut off; a block whose CRC does not match
the data (a power cut before the data reached the disk) counts as missing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
BLOCK_BYTES = 1 << 20
_RECORD = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one content from another. `etag` is the server's validator, with its quotes.

    The URL is kept as its SHA-256: it may hold secrets.
    """

    url_sha256: str
    size_bytes: int
    sha256: str | None
    etag: str | None
    last_modified: str | None

    def same_content(self, other: Identity) -> bool:
        """Whether blocks of one can be used for the other. Without hash and validator nothing can vouch for that."""
        if self.size_bytes != other.size_bytes:
            return False
        if self.sha256 is not None and other.sha256 is not None:
            return self.sha256 == other.sha256
        if self.url_sha256 != other.url_sha256:
            return False
        if self.etag is not None or other.etag is not None:
            return self.etag == other.etag
        return self.last_modified is not None and self.last_modified == other.last_modified


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file; `start` is on a block boundary."""

    start: int
    stop: int


class Journal:
    """The journal of one partial file. Not thread-safe: the engine holds its lock around `record`."""

    def __init__(self, path: Path, identity: Identity, blocks: dict[int, int], block_bytes: int = BLOCK_BYTES) -> None:
        self._path = path
        self.identity = identity
        self.blocks = blocks  # block index -> CRC-32
        self.block_bytes = block_bytes
        self.done_bytes = self._count(blocks)  # of all recorded blocks
        self._descriptor: int | None = None

    @classmethod
    def open(cls, path: Path, identity: Identity, block_bytes: int = BLOCK_BYTES) -> Journal:
        """Read the journal at `path`; start an empty one if there is none or it belongs to other content."""
        stored, blocks = _read(path, block_bytes)
        if stored is None or not stored.same_content(identity):
            blocks = {}
        journal = cls(path, identity, blocks, block_bytes)
        journal._replace(identity, blocks)  # without a torn last record, so that new ones align
        return journal

    @property
    def block_count(self) -> int:
        """Blocks of the whole file."""
        return -(-self.identity.size_bytes // self.block_bytes)

    @property
    def complete(self) -> bool:
        """Whether every block is recorded."""
        return len(self.blocks) == self.block_count

    def span_of(self, index: int) -> Span:
        """The bytes of block `index`."""
        start = index * self.block_bytes
        return Span(start, min(start + self.block_bytes, self.identity.size_bytes))

    def record(self, index: int, checksum: int) -> None:
        """Append that block `index` is written. Raises OSError (a full disk)."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        head = struct.pack("<II", index, checksum)
        record = head + struct.pack("<I", zlib.crc32(head))
        written = os.write(self._descriptor, record)
        if written != len(record):  # a full disk in mid-record: take the torn bytes back, so later records align
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise OSError(28, "No space left on device", str(self._path))
        if index not in self.blocks:
            span = self.span_of(index)
            self.done_bytes += span.stop - span.start
        self.blocks[index] = checksum

    def forget(self, indices: list[int]) -> None:
        """Take blocks back that turned out wrong."""
        kept = {index: checksum for index, checksum in self.blocks.items() if index not in set(indices)}
        self._replace(self.identity, kept)

    def reset(self, identity: Identity) -> None:
        """Forget everything and start for `identity`."""
        self._replace(identity, {})

    def missing(self, longest: int) -> list[Span]:
        """What is still to be fetched, in order, in spans of at most `longest` bytes."""
        spans: list[Span] = []
        for index in range(self.block_count):
            if index in self.blocks:
                continue
            span = self.span_of(index)
            if spans and spans[-1].stop == span.start and span.stop - spans[-1].start <= longest:
                spans[-1] = Span(spans[-1].start, span.stop)
            else:
                spans.append(span)
        return spans

    def damaged(self, data: Path) -> list[int]:
        """Indices of recorded blocks whose bytes in `data` differ from their checksum."""
        wrong = []
        with data.open("rb") as file:
            for index, checksum in sorted(self.blocks.items()):
                span = self.span_of(index)
                file.seek(span.start)
                if zlib.crc32(file.read(span.stop - span.start)) != checksum:
                    wrong.append(index)
        return wrong

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _replace(self, identity: Identity, blocks: dict[int, int]) -> None:
        self.close()
        content = bytearray(
            json.dumps({"schema": SCHEMA, "block_bytes": self.block_bytes, **asdict(identity)}).encode()
        )
        content += b"\n"
        for index, checksum in blocks.items():
            head = struct.pack("<II", index, checksum)
            content += head + struct.pack("<I", zlib.crc32(head))
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(content)
        temporary.replace(self._path)
        self.identity = identity
        self.blocks = dict(blocks)
        self.done_bytes = self._count(blocks)

    def _count(self, blocks: dict[int, int]) -> int:
        spans = (self.span_of(index) for index in blocks)
        return sum(span.stop - span.start for span in spans)


def _read(path: Path, block_bytes: int) -> tuple[Identity | None, dict[int, int]]:
    """Identity and blocks; no identity when the file is missing or unreadable."""
    try:
        line, separator, records = path.read_bytes().partition(b"\n")
        fields = json.loads(line)
        if not separator or fields.pop("schema") != SCHEMA or fields.pop("block_bytes") != block_bytes:
            return None, {}
        identity = Identity(**fields)
        count = -(-identity.size_bytes // block_bytes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None, {}
    blocks: dict[int, int] = {}
    for offset in range(0, len(records) - _RECORD.size + 1, _RECORD.size):
        index, checksum, check = _RECORD.unpack_from(records, offset)
        if zlib.crc32(records[offset : offset + 8]) != check or index >= count:
            break
        blocks[index] = checksum
    return identity, blocks
