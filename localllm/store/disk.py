"""Free space, atomic files and what the system's storage errors mean for the user."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from localllm.errors import DownloadError

from .text import format_bytes, printable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of `folder`, which need not exist yet."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise DownloadError with both numbers unless `needed_bytes` fit on the disk of `folder`."""
    free = free_bytes(folder)
    if needed_bytes > free:
        raise DownloadError(
            f"{what} needs {format_bytes(needed_bytes)} more, but only {format_bytes(free)} are free in {folder}",
            hint="free some space (localllm list, rm, prune), or set LOCALLLM_HOME to a folder on a larger disk",
        )


def storage_error(error: OSError, path: Path) -> DownloadError:
    """The error for the user: full disk, read-only store, or what the system said."""
    shown = printable(str(path))
    if error.errno in _FULL:
        free = format_bytes(free_bytes(path.parent))
        return DownloadError(
            f"the disk is full ({free} free) while writing {shown}",
            hint="what was fetched is kept; free some space and run the same command again, or: localllm rm --partial",
        )
    if error.errno in _READ_ONLY:
        return DownloadError(
            f"cannot write {shown}: {error.strerror}",
            hint="make the folder writable, or set LOCALLLM_HOME to one that is",
        )
    return DownloadError(f"cannot write {shown}: {printable(error.strerror or str(error))}")


def make_folder(folder: Path) -> None:
    """Create `folder` with its parents; DownloadError when that is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file so that others see the old one or the new one. Raises DownloadError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=path.name[:40], suffix=".new", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise storage_error(error, path) from error


def sync(path: Path) -> None:
    """Make the bytes of a finished file survive a power cut."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_on_disk(path: Path) -> int:
    """Bytes that a file or folder really occupies (a sparse partial file counts what is written)."""
    total = 0
    for entry in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())]:
        with contextlib.suppress(OSError):
            status = entry.lstat()
            if not entry.is_dir():
                total += getattr(status, "st_blocks", -(-status.st_size // 512)) * 512
    return total
