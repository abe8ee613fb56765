"""`import`: put a model file of this computer into the store, linked where the disk allows it, else copied."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from localllm.errors import StoreError
from localllm.gguf_io import open_gguf

from .disk import make_folder, require_space, storage_error, write_atomically
from .gguf_check import check_complete
from .manifest import Manifest, StoredFile
from .names import check_name, safe_file_name
from .store import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .store import Store

CHUNK_BYTES = 8 << 20


def import_file(
    store: Store, path: Path, name: str | None, *, link: bool, progress: Callable[[str, int, int], None]
) -> Manifest:
    """Store the model at `path` (all parts of a split one) as `name` (default: its file name).

    With `link` the store shares the bytes with the file (a hard link), so the file must not be changed afterwards.
    Raises GGUFError, StoreError, DownloadError (disk full).
    """
    with open_gguf(path, metadata_only=True) as file:
        paths = file.paths
    chosen = check_name(name or safe_file_name(paths[0].name).removesuffix(".gguf").strip("._-@+") or "model")
    key = f"import-{os.getpid()}"
    folder = store.partial / key
    with store.locked(key, lambda: None):  # so that nobody takes it for the rest of a dead one
        make_folder(folder)
        write_atomically(folder / "name", f"import of {paths[0].name}".encode())
        try:
            staged = []
            for part in paths:
                check_complete(part, part.name)
                staged.append(_stage(folder, part, link=link, progress=progress))
            manifest = Manifest(
                name=chosen,
                source=f"file:{path.absolute()}",
                files=tuple(item.file for item in staged),
                pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            store.commit(manifest, staged)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _stage(folder: Path, path: Path, *, link: bool, progress: Callable[[str, int, int], None]) -> StagedFile:
    try:
        before = path.stat()
        temporary = folder / safe_file_name(path.name)
        if link:
            _link(path, temporary)
        else:
            require_space(folder, before.st_size, path.name)
        sha256 = _copy_and_hash(path, None if link else temporary, before.st_size, progress)
        if path.stat().st_mtime_ns != before.st_mtime_ns or temporary.stat().st_size != before.st_size:
            raise StoreError(f"{path} changed while it was read", hint="import it again")
    except OSError as error:
        raise storage_error(error, folder) from error
    return StagedFile(temporary, StoredFile(safe_file_name(path.name), sha256, before.st_size, "import"))


def _link(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path.resolve())
    except OSError as error:
        raise StoreError(
            f"{path} cannot be linked into the store: {error.strerror}", hint="import it without --link to copy it"
        ) from error


def _copy_and_hash(path: Path, target: Path | None, size: int, progress: Callable[[str, int, int], None]) -> str:
    digest = hashlib.sha256()
    done = 0
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(path.open("rb"))
        copy = stack.enter_context(target.open("wb")) if target is not None else None
        while piece := source.read(CHUNK_BYTES):
            digest.update(piece)
            if copy is not None:
                copy.write(piece)
            done += len(piece)
            progress(path.name, done, size)
    if target is not None:
        shutil.copystat(path, target)
    return digest.hexdigest()
