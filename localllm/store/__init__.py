"""The model store: find models by name, fetch them whole and verified, keep and remove them.

`resolve_model` and `pull` work on the store of this user; `Store(paths)` with `resolve_in` and `pull_into` on any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.paths import Paths
from localllm.settings import Settings

from .catalogue import Catalogue, load_catalogue
from .entry import CatalogueEntry
from .events import (
    FileProgress,
    FitEstimated,
    Note,
    Phase,
    PullEvent,
    PullFinished,
    PullPlanned,
    Report,
    Retrying,
    ignore,
)
from .manifest import Manifest, StoredFile
from .network import network_options
from .pulling import check_pull, pull_into
from .resolve import ResolvedModel, resolve_in
from .store import PartialDownload, Store
from .transfer import NetworkOptions

if TYPE_CHECKING:
    import os

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "FileProgress",
    "FitEstimated",
    "Manifest",
    "NetworkOptions",
    "Note",
    "PartialDownload",
    "Phase",
    "PullEvent",
    "PullFinished",
    "PullPlanned",
    "Report",
    "ResolvedModel",
    "Retrying",
    "Store",
    "StoredFile",
    "check_pull",
    "load_catalogue",
    "pull",
    "pull_into",
    "resolve_in",
    "resolve_model",
]


def resolve_model(
    name_or_path: str | os.PathLike[str], *, pull: bool = False, progress: Report | None = None
) -> ResolvedModel:
    """Find a model of this user by name or path; with `pull` it is fetched first when it is not here yet.

    Raises ModelNotFoundError (nearest names, how to pull), DownloadError, StoreError, ConfigurationError.
    """
    paths = Paths.from_environment()
    network = network_options(Settings.load(paths=paths))
    return resolve_in(Store(paths), name_or_path, pull=pull, network=network, report=progress or ignore)


def pull(name: str, progress: Report | None = None) -> Manifest:
    """Fetch a model (catalogue name, hf:…, pypi:…, URL) into this user's store; a pulled one is not fetched again."""
    paths = Paths.from_environment()
    network = network_options(Settings.load(paths=paths))
    return pull_into(Store(paths), name, network=network, report=progress or ignore)
