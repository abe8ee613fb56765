"""`verify`: read every blob again and compare it with its hash; and what `prune` may delete."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import GGUFError, StoreError

from .disk import size_on_disk
from .gguf_check import check_complete
from .manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .manifest import Manifest, StoredFile
    from .store import Store

CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one file of a model; `problem` is None when it is whole."""

    model: str
    file: str
    problem: str | None


def verify(store: Store, manifests: list[Manifest], progress: Callable[[str, int, int], None]) -> Iterator[Verdict]:
    """Check the files of `manifests`; `progress` gets (file, bytes read, bytes of it)."""
    for manifest in manifests:
        for file in manifest.files:
            yield Verdict(manifest.name, file.name, _problem(store, file, progress))


def damaged_manifests(store: Store) -> list[Verdict]:
    """Manifests that cannot be read: models that `list` leaves out."""
    found = []
    for path in sorted(store.manifests.glob("*.json")) if store.manifests.is_dir() else []:
        try:
            read_manifest(path)
        except StoreError as error:
            found.append(Verdict(path.stem, path.name, error.message))
    return found


def _problem(store: Store, file: StoredFile, progress: Callable[[str, int, int], None]) -> str | None:
    blob = store.blob(file.sha256)
    try:
        size = blob.stat().st_size
        if size != file.size_bytes:
            return f"{size} bytes long, {file.size_bytes} expected"
        digest = hashlib.sha256()
        with blob.open("rb") as opened:
            done = 0
            while piece := opened.read(CHUNK_BYTES):
                digest.update(piece)
                done += len(piece)
                progress(file.name, done, size)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if digest.hexdigest() != file.sha256:
        return f"damaged: its sha256 is {digest.hexdigest()}, {file.sha256} expected"
    try:
        check_complete(blob, file.name)
    except GGUFError as error:
        return error.message
    return None


@dataclass(frozen=True, slots=True)
class Pruned:
    """Bytes that `prune` freed, by what they were."""

    unused_blobs: int
    partial_downloads: int
    repacked_weights: int


def prune(store: Store, *, partial: bool, repacked: bool) -> Pruned:
    """Delete blobs no model uses, and if asked unfinished downloads and the cache of repacked weights.

    Downloads that another process works on are left alone.
    """
    blobs = store.remove_unused() if store.root.is_dir() else 0
    partial_bytes = 0
    for item in store.partials() if partial else []:
        try:
            store.remove_partial(item)
            partial_bytes += item.bytes_on_disk
        except StoreError:
            continue
    cache_bytes = remove_repacked(store.paths.repacked) if repacked else 0
    return Pruned(blobs, partial_bytes, cache_bytes)


def remove_repacked(folder: Path) -> int:
    """Delete the cache of repacked weights; the bytes it took."""
    size = size_on_disk(folder) if folder.is_dir() else 0
    shutil.rmtree(folder, ignore_errors=True)
    return size
