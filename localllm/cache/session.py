"""A sequence's keys and values as bytes: what a file of a saved session holds, and back into a cache.

Layout: magic, length of the header (uint32, little-endian), header (JSON), token ids (int32), pages group after group
in table order, BLAKE2b-256 of all before. Files are untrusted: nothing is used before checksum and numbers fit.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from localllm.errors import SessionError

from .restore import SavedTables, restore
from .session_words import differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.kernels.executor import Executor

    from .cache import KVCache

MAGIC = b"localllm KV 2\n"
DIGEST = 32
MOST_HEADER = 1 << 16


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What saved pages belong to; they mean nothing to another model, device or setting."""

    model: str
    device: str
    kv_type: str
    window: int | None
    groups: tuple[int | None, ...]
    seal_tokens: int
    selective: str | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    dropped: int
    letters: str  # one letter a page: "s" in the staging pool, "m" in the main one
    page_bytes: tuple[int, ...]


def dump(
    cache: KVCache,
    executor: Executor,
    key: SessionKey,
    ids: Sequence[int],
    protected: int,
    *,
    most_bytes: int | None = None,
) -> tuple[list[bytes], int]:
    """The longest cached prefix of `ids` as pieces of a file, and its length in tokens.

    SessionError when nothing of it is cached, or its pages have more than `most_bytes`.
    """
    sequence = cache.open([*ids, 0], protected=protected)
    try:
        if not sequence.length:
            raise SessionError("nothing of this conversation is in the KV cache, so there is nothing to save")
        copies = {(move.group, move.destination): move.source for move in sequence.moves}
        tables, pages, total = [], [], 0
        for group, table in enumerate(sequence.tables):
            entries = [copies.get((group, entry), entry) for entry in table.entries.tolist()]
            data = []
            for entry in entries:
                data.append(executor.read_page(group, entry))
                total += len(data[-1])
                if most_bytes is not None and total > most_bytes:
                    raise SessionError(f"the saved session would take more than the {most_bytes} bytes that it may")
            letters = "".join("s" if entry < 0 else "m" for entry in entries)
            tables.append(_Table(table.dropped, letters, tuple(len(page) for page in data)))
            pages += data
        header = {
            "key": asdict(key),
            "length": sequence.length,
            "sink_pages": sequence.sink_pages,
            "sealed": sequence.sealed,
            "evicted_at": sequence.evicted_at,
            "tables": [asdict(table) for table in tables],
        }
        tokens = np.asarray(sequence.tokens[: sequence.length], "<i4").tobytes()
        text = json.dumps(header, separators=(",", ":")).encode()
        pieces = [MAGIC, struct.pack("<I", len(text)), text, tokens, *pages]
        digest = hashlib.blake2b(digest_size=DIGEST)
        for piece in pieces:
            digest.update(piece)
        return [*pieces, digest.digest()], sequence.length
    finally:
        cache.release(sequence, publish=True)


def load(cache: KVCache, executor: Executor, key: SessionKey, data: bytes, *, bound_name: str = "window") -> list[int]:
    """Put saved pages into the cache, where the next request finds them; returns their token ids.

    `bound_name`: what the user calls `key.window`, for the error: a window, or the whole context that slides.
    Raises SessionError for damaged bytes, another key, or too few free pages; the cache is then as before.
    """
    header, at = _read_header(data)
    wanted = json.loads(json.dumps(asdict(key)))
    if header.get("key") != wanted:
        found = header.get("key")
        told = differences(found if isinstance(found, dict) else {}, wanted, bound_name)
        raise SessionError(f"the saved session was made with {' and '.join(told)}, so it cannot be continued here")
    try:
        length = _whole(header["length"], 1)
        tables = [_table(table) for table in header["tables"]]
        sink_pages, sealed, evicted_at = (_whole(header[name]) for name in ("sink_pages", "sealed", "evicted_at"))
    except (KeyError, TypeError, ValueError) as error:
        raise SessionError("the saved session is damaged: its header makes no sense") from error
    if at + 4 * length + sum(sum(table.page_bytes) for table in tables) != len(data) - DIGEST:
        raise SessionError("the saved session is damaged: its parts do not add up")
    tokens: list[int] = np.frombuffer(data, "<i4", length, at).tolist()
    layout = tuple((table.dropped, table.letters) for table in tables)
    saved = SavedTables(sink_pages, sealed, evicted_at, layout)
    sequence = restore(cache, tokens, saved)
    at += 4 * length
    try:
        for group, (table, stored) in enumerate(zip(sequence.tables, tables, strict=True)):
            for entry, size in zip(table.entries.tolist(), stored.page_bytes, strict=True):
                executor.write_page(group, entry, data[at : at + size])
                at += size
    except BaseException:
        cache.release(sequence, publish=False)
        raise
    cache.release(sequence, publish=True)
    return tokens


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    start = len(MAGIC) + 4
    if not data.startswith(MAGIC):
        raise SessionError("this file is not a saved session of this version")
    if len(data) < start + DIGEST or _digest(data) != data[-DIGEST:]:
        raise SessionError("the saved session is damaged: its checksum is wrong")
    (size,) = struct.unpack_from("<I", data, len(MAGIC))
    if size > min(MOST_HEADER, len(data) - start - DIGEST):
        raise SessionError("the saved session is damaged: its header is too long")
    try:
        header = json.loads(data[start : start + size])
    except ValueError as error:
        raise SessionError("the saved session is damaged: its header cannot be read") from error
    if not isinstance(header, dict):
        raise SessionError("the saved session is damaged: its header cannot be read")
    return header, start + size


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(memoryview(data)[:-DIGEST], digest_size=DIGEST).digest()


def _table(saved: Any) -> _Table:
    table = _Table(_whole(saved["dropped"]), str(saved["letters"]), tuple(_whole(n) for n in saved["page_bytes"]))
    if len(table.letters) != len(table.page_bytes) or set(table.letters) - set("sm"):
        raise ValueError(table)
    return table


def _whole(value: Any, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**40:
        raise ValueError(value)
    return value
