"""Repacked weights on disk: reading them is several times faster than repacking the model file again.

A file is a header, the block of memory as it is, and a CRC-32 of each part of it. It is written beside its place and
renamed, so that there is a whole file or none; what a power cut or a bad disk makes of it, the checksums tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import quants
from localllm.kernels.executor import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_log = logging.getLogger("localllm.kernels")

WORTH_BYTES = 64 << 20  # smaller models are repacked in a tenth of a second
_MAGIC = b"localllm tiles 1\n"
_HEADER_BYTES = 4096  # the data begins on a page
_PART_BYTES = 16 << 20
_KEPT_FREE_BYTES, _KEPT_FREE_SHARE = 10 << 30, 0.1  # of the disk, whichever is more
_ABANDONED_SECONDS = 3600  # after which an unfinished file is nobody's


def plan_key(plan: bytes) -> bytes:
    """The hash of a plan and of the code that reads the file's blocks: what a file in the cache is known by."""
    digest = hashlib.sha256(plan)
    for path in sorted(Path(quants.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


class TileCache:
    """The file of one model, next to those of others; the folder may be deleted at any time."""

    def __init__(self, path: Path, key: bytes, *, keep_free: int | None = None) -> None:
        """`key`: a hash of all that the bytes depend on. `keep_free`: bytes of the disk that are left to others."""
        self.path = path
        self._key = key
        self._keep_free = keep_free

    def read(self, memory: Bytes, threads: int, progress: Callable[[LoadProgress], None] | None) -> bool:
        """Fill the memory from the file. False, with anything in the memory, when no file fits and is whole."""
        if len(memory) < WORTH_BYTES:
            return False
        parts = -(-len(memory) // _PART_BYTES)
        try:
            with self.path.open("rb") as file:
                if file.read(_HEADER_BYTES) != self._header(len(memory)):
                    return False
                file.seek(_HEADER_BYTES + len(memory))
                sums = np.frombuffer(file.read(4 * parts), np.uint32)
            whole = self._read_parts(memory, sums, threads, progress)
            if whole:
                os.utime(self.path)  # the files that were not used for longest go first
            else:
                _log.warning("%s is damaged; the weights are repacked", self.path)
            return whole
        except (OSError, ValueError):  # not there, cut off, or somebody else's
            return False

    def _read_parts(
        self,
        memory: Bytes,
        sums: npt.NDArray[np.uint32],
        threads: int,
        progress: Callable[[LoadProgress], None] | None,
    ) -> bool:
        starts = range(0, len(memory), _PART_BYTES)
        if len(sums) != len(starts):
            return False

        def read_part(start: int) -> bool:
            part = memory[start : start + _PART_BYTES].data
            with self.path.open("rb", buffering=0) as file:
                file.seek(_HEADER_BYTES + start)
                count = file.readinto(part)
            return count == len(part) and zlib.crc32(part) == sums[start // _PART_BYTES]

        with ThreadPoolExecutor(threads) as pool:
            for number, right in enumerate(pool.map(read_part, starts), 1):
                if not right:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return False
                if progress is not None:
                    progress(LoadProgress("reading weights", number / len(starts)))
        return True

    def write(self, memory: Bytes, progress: Callable[[LoadProgress], None] | None) -> None:
        """Keep the memory for the next start, if it is worth it and the disk has room; errors are logged only."""
        if len(memory) < WORTH_BYTES:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._remove_abandoned()
            if self._make_room(len(memory)):
                self._write(memory, progress)
        except OSError as error:
            _log.warning("repacked weights cannot be kept in %s (%s)", self.path.parent, error.strerror or error)

    def _write(self, memory: Bytes, progress: Callable[[LoadProgress], None] | None) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._header(len(memory)))
                sums = []
                for start in range(0, len(memory), _PART_BYTES):
                    part = memory[start : start + _PART_BYTES].data
                    sums.append(zlib.crc32(part))
                    file.write(part)
                    if progress is not None:
                        progress(LoadProgress("keeping repacked weights (once)", start / len(memory)))
                file.write(np.array(sums, np.uint32).tobytes())
            Path(temporary).replace(self.path)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _header(self, size: int) -> bytes:
        return (_MAGIC + self._key + size.to_bytes(8, "little")).ljust(_HEADER_BYTES, b"\0")

    def _make_room(self, size: int) -> bool:
        """Whether `size` bytes leave enough of the disk free, if need be after deleting files used longest ago."""
        self.path.unlink(missing_ok=True)
        others = sorted(self.path.parent.glob("*.tiles"), key=lambda path: path.stat().st_mtime)
        while True:
            disk = shutil.disk_usage(self.path.parent)
            left = max(_KEPT_FREE_BYTES, _KEPT_FREE_SHARE * disk.total) if self._keep_free is None else self._keep_free
            if disk.free - size >= left:
                return True
            if not others:
                return False
            others.pop(0).unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        for path in self.path.parent.glob(".*.tmp"):
            with contextlib.suppress(OSError):  # another process was faster
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
