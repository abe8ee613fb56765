"""From a stream of bytes to whole blocks on disk, each one recorded in the journal after its bytes are written."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from typing import TYPE_CHECKING

from ..disk import storage_error

if TYPE_CHECKING:
    from pathlib import Path

    from .journal import Journal


class Stopped(Exception):
    """Another connection failed, or the user interrupted: this one ends without a word."""


class BlockFile:
    """The partial file with its journal; several connections write to it.

    `replace` False: a block that is already recorded is left alone. True (repair): it is compared by checksum and
    overwritten when it differs; `replaced` lists those.
    """

    def __init__(self, path: Path, journal: Journal, *, replace: bool = False) -> None:
        self.path = path
        self.journal = journal
        self.replaced: list[int] = []
        self.changed = threading.Condition()
        self._replace = replace
        self._stopped = False
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        try:
            self._descriptor = os.open(path, flags, 0o644)
            if os.fstat(self._descriptor).st_size != journal.identity.size_bytes:
                os.ftruncate(self._descriptor, journal.identity.size_bytes)
        except OSError as error:
            raise storage_error(error, path) from error

    def store(self, index: int, block: memoryview) -> None:
        """Write block `index`, then record it. Raises Stopped, DownloadError (disk full, read-only)."""
        checksum = zlib.crc32(block)
        with self.changed:
            if self._stopped:
                raise Stopped
            recorded = self.journal.blocks.get(index)
            if recorded == checksum or (recorded is not None and not self._replace):
                return
            start = self.journal.span_of(index).start
            try:
                _write_at(self._descriptor, block, start)
                self.journal.record(index, checksum)
            except OSError as error:
                raise storage_error(error, self.path) from error
            if recorded is not None:
                self.replaced.append(index)
            self.changed.notify_all()

    def close(self) -> None:
        """Refuse further writes and close the file; the journal stays open for reading."""
        with self.changed:
            if not self._stopped:
                self._stopped = True
                os.close(self._descriptor)
                self.journal.close()


class BlockAssembler:
    """Collects the bytes of [start, stop) of a file and stores each block when it is whole.

    `start` is on a block boundary. `position` is the next byte that is expected.
    """

    def __init__(self, file: BlockFile, start: int, stop: int) -> None:
        self.position = start
        self._file = file
        self._stop = stop
        self._buffer = memoryview(bytearray(file.journal.block_bytes))
        self._filled = 0

    def feed(self, piece: bytes) -> int:
        """Take what belongs to this span from `piece`; the number of bytes taken."""
        view = memoryview(piece)[: self._stop - self.position]
        taken = len(view)
        while len(view):
            index = self.position // self._file.journal.block_bytes
            span = self._file.journal.span_of(index)
            part = min(len(view), span.stop - self.position)
            self._buffer[self._filled : self._filled + part] = view[:part]
            self._filled += part
            self.position += part
            view = view[part:]
            if self.position == span.stop:
                self._file.store(index, self._buffer[: self._filled])
                self._filled = 0
        return taken


def _write_at(descriptor: int, block: memoryview, offset: int) -> None:
    os.lseek(descriptor, offset, os.SEEK_SET)  # the caller holds the lock; Windows has no pwrite
    while len(block):
        written = os.write(descriptor, block)
        if written == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        block = block[written:]
