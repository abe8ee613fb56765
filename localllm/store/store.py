"""The models on this computer: blobs named by their hash, one manifest a model, partial downloads, locks.

models/blobs/<sha256>.gguf            the bytes
models/splits/<hash>/<name>-0000i-of-0000n.gguf   hard links: a split model under the names its parts need
models/manifests/<name>.json          which blobs a name stands for
models/partial/<key>/                 what an unfinished pull has fetched
models/locks/                         one pull a blob, one change of the manifests at a time
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from localllm.errors import StoreError

from .disk import make_folder, size_on_disk, storage_error, sync, write_atomically
from .manifest import Manifest, StoredFile, manifest_file_name, read_manifest
from .text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from localllm.paths import Paths

LOCK_POLL = 0.1  # seconds
USE_RESOLUTION = 60.0  # seconds; a model's last use is not written more often


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A verified file that is not yet a blob."""

    path: Path
    file: StoredFile


@dataclass(frozen=True, slots=True)
class PartialDownload:
    """What an unfinished pull left. `bytes_on_disk` is what it occupies."""

    key: str
    name: str
    bytes_on_disk: int
    path: Path


class Store:
    """The model store below `paths`. It holds no state but the paths; every call looks at the disk."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        root = paths.models
        self.root = root
        self.blobs = root / "blobs"
        self.splits = root / "splits"
        self.manifests = root / "manifests"
        self.partial = root / "partial"
        self.locks = root / "locks"

    def models(self) -> list[Manifest]:
        """All models, by name; damaged manifests are left out (`verify` reports them)."""
        found = []
        for path in sorted(self.manifests.glob("*.json")) if self.manifests.is_dir() else []:
            with contextlib.suppress(StoreError):
                found.append(read_manifest(path))
        return sorted(found, key=lambda manifest: manifest.name.lower())

    def find(self, name: str) -> Manifest | None:
        """The model of this name (case does not matter), or None."""
        path = self.manifests / manifest_file_name(name)
        return read_manifest(path) if path.is_file() else None

    def blob(self, sha256: str) -> Path:
        """Where the bytes with this hash are, or would be."""
        return self.blobs / f"{sha256}.gguf"

    def has_blob(self, file: StoredFile) -> bool:
        """Whether the blob is there with its full length."""
        try:
            return self.blob(file.sha256).stat().st_size == file.size_bytes
        except OSError:
            return False

    def path_of(self, manifest: Manifest) -> Path:
        """The file to open: the blob, or the first part of a split model. StoreError when one is missing."""
        for file in manifest.files:
            if not self.has_blob(file):
                raise StoreError(
                    f"{manifest.name}: the file {file.name} is missing from the store or has a wrong length",
                    hint=f"fetch it again: localllm pull {manifest.name}",
                )
        if len(manifest.files) == 1:
            return self.blob(manifest.files[0].sha256)
        return self._split_folder(manifest.files) / manifest.files[0].name

    def last_used(self, manifest: Manifest) -> datetime:
        """When the model was last resolved, in UTC."""
        seconds = (self.manifests / manifest_file_name(manifest.name)).stat().st_mtime
        return datetime.fromtimestamp(seconds, UTC)

    def mark_used(self, manifest: Manifest) -> None:
        """Remember that the model is used now; a read-only store simply does not."""
        path = self.manifests / manifest_file_name(manifest.name)
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > USE_RESOLUTION:
                os.utime(path)

    def commit(self, manifest: Manifest, staged: list[StagedFile]) -> None:
        """Move finished files into the store and name them. Others see all of it or nothing."""
        with self.exclusive():
            make_folder(self.blobs)
            for item in staged:
                blob = self.blob(item.file.sha256)
                try:
                    if item.path != blob:
                        sync(item.path)
                        item.path.replace(blob)
                except OSError as error:
                    raise storage_error(error, blob) from error
            if len(manifest.files) > 1:
                self._link_split(manifest.files)
            write_atomically(self.manifests / manifest_file_name(manifest.name), manifest.to_json())

    def remove(self, name: str) -> int:
        """Delete a model's manifest and the blobs no other model uses; bytes that became free."""
        with self.exclusive():
            manifest = self.find(name)
            if manifest is None:
                raise StoreError(f"{printable(name, 80)} is not in the store")
            self._unlink(self.manifests / manifest_file_name(name))
            return self._remove_unused({file.sha256 for file in manifest.files})

    def remove_unused(self) -> int:
        """Delete blobs that no manifest names; bytes that became free."""
        with self.exclusive():
            return self._remove_unused({path.stem for path in self.blobs.glob("*.gguf")})

    def partials(self) -> list[PartialDownload]:
        """What unfinished pulls left."""
        found = []
        for folder in sorted(self.partial.iterdir()) if self.partial.is_dir() else []:
            try:
                name = printable((folder / "name").read_text(encoding="utf-8"), 200)
            except (OSError, UnicodeDecodeError):
                name = "?"
            found.append(PartialDownload(folder.name, name, size_on_disk(folder), folder))
        return found

    def remove_partial(self, partial: PartialDownload) -> None:
        """Delete an unfinished download. StoreError while another process works on it."""
        lock = self.lock_of(partial.key)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise StoreError(f"{partial.name} is being pulled by another process right now") from error
        try:
            shutil.rmtree(partial.path)
        except OSError as error:
            raise storage_error(error, partial.path) from error
        finally:
            lock.release()

    def lock_of(self, key: str) -> FileLock:
        """The lock of one blob's download."""
        make_folder(self.locks)
        return FileLock(self.locks / f"{key}.lock")

    @contextlib.contextmanager
    def locked(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of `key`; `waiting` is called once if another process has it."""
        lock = self.lock_of(key)
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                waiting()
                lock.acquire(poll_interval=LOCK_POLL)
        except OSError as error:
            raise storage_error(error, self.locks) from error
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the manifests and blobs; held for moments only."""
        with self.locked("store", lambda: None):
            yield

    def _split_folder(self, files: tuple[StoredFile, ...]) -> Path:
        joined = "\n".join(f"{file.name} {file.sha256}" for file in files)
        return self.splits / hashlib.sha256(joined.encode()).hexdigest()

    def _link_split(self, files: tuple[StoredFile, ...]) -> None:
        folder = self._split_folder(files)
        make_folder(folder)
        for file in files:
            link, blob = folder / file.name, self.blob(file.sha256)
            try:
                link.unlink(missing_ok=True)
                try:
                    link.hardlink_to(blob)
                except OSError:  # a file system without hard links
                    link.symlink_to(blob)
            except OSError as error:
                raise storage_error(error, link) from error

    def _remove_unused(self, candidates: set[str]) -> int:
        models = self.models()
        used = {file.sha256 for manifest in models for file in manifest.files}
        folders = {self._split_folder(manifest.files) for manifest in models if len(manifest.files) > 1}
        for folder in self.splits.iterdir() if self.splits.is_dir() else []:
            if folder not in folders:
                shutil.rmtree(folder, ignore_errors=True)
        freed = 0
        for sha256 in candidates - used:
            blob = self.blob(sha256)
            with contextlib.suppress(FileNotFoundError):
                freed += blob.stat().st_size
                self._unlink(blob)
        return freed

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"cannot delete {path}: {error.strerror}", hint="is it in use by another program, or read-only?"
            ) from error
