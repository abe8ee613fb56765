"""From a model's name or path to the file to open."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.errors import ModelNotFoundError

from .catalogue import load_catalogue
from .events import ignore
from .foreign import find_foreign, find_in_hub_cache
from .planner import unknown_name
from .pulling import pull_into
from .reference import FileReference, HubReference, is_there, parse_reference
from .text import format_bytes, printable

if TYPE_CHECKING:
    from .entry import CatalogueEntry
    from .events import Report
    from .store import Store
    from .transfer import NetworkOptions


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file: its name, the path to open, and what the catalogue knows about it (None: nothing)."""

    name: str
    path: Path
    entry: CatalogueEntry | None = None


def resolve_in(
    store: Store,
    name_or_path: str | os.PathLike[str],
    *,
    pull: bool = False,
    network: NetworkOptions | None = None,
    report: Report = ignore,
) -> ResolvedModel:
    """Find a model: a path, a pulled model, or a catalogue name; with `pull` it is fetched when it is not here yet.

    Raises ModelNotFoundError with the nearest names and how to pull, and what `pull_into` raises.
    """
    text = os.fspath(name_or_path)
    reference = parse_reference(text)
    if isinstance(name_or_path, os.PathLike) or isinstance(reference, FileReference):
        path = reference.path if isinstance(reference, FileReference) else Path(text)
        if not is_there(path):
            raise ModelNotFoundError(f"there is no file {printable(text, 300)}", hint="see `localllm list` for models")
        return ResolvedModel(path.stem, path)
    foreign = find_in_hub_cache(reference) if isinstance(reference, HubReference) else find_foreign(text)
    catalogue = load_catalogue(store.paths)
    entry = catalogue.find(text) if reference is None else None
    manifest = store.find(text)
    if manifest is None and foreign is not None:
        return ResolvedModel(foreign.name, foreign.path)
    if manifest is None and entry is not None:
        manifest = store.find(entry.name)
    if manifest is None and reference is None and entry is None:
        if is_there(Path(text)) and Path(text).is_file():
            return ResolvedModel(Path(text).stem, Path(text))
        raise unknown_name(text, catalogue, tuple(model.name for model in store.models()))
    if manifest is None:
        if not pull:
            size = f" ({format_bytes(entry.size_bytes)})" if entry is not None and entry.size_bytes else ""
            raise ModelNotFoundError(
                f"{printable(text, 120)} is not on this computer yet",
                hint=f"fetch it{size}: localllm pull {text} (with --check: only say whether it fits)",
            )
        manifest = pull_into(store, text, network=network, report=report)
    path = store.path_of(manifest)
    store.mark_used(manifest)
    return ResolvedModel(manifest.name, path, entry)
