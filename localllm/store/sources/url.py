"""Plain web addresses: one file, with its hash if somebody gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ..names import check_name, safe_file_name
from ..plan import Piece, PlannedFile, PullPlan
from ..transfer import RemoteFile
from .simple_index import split_credentials

if TYPE_CHECKING:
    from ..entry import CatalogueEntry
    from ..reference import UrlReference


def plan_url(reference: UrlReference, name: str | None, entry: CatalogueEntry | None = None) -> PullPlan:
    """One file to fetch; its name without `.gguf` names the model unless `name` does."""
    url, credentials = split_credentials(reference.url)
    file_name = safe_file_name(unquote(urlsplit(url).path))
    size, pinned = entry.pinned if entry is not None else (None, None)
    sha256 = reference.sha256 or pinned
    remote = RemoteFile(url, file_name, size, sha256, credentials)
    planned = PlannedFile(file_name, (Piece(remote),), size, sha256)
    stem = file_name.removesuffix(".gguf").removesuffix(".GGUF").strip("._-@+") or "model"
    notes = () if sha256 else ("nobody published a hash for this file; its structure is checked and its hash recorded",)
    return PullPlan(
        name or check_name(stem),
        str(reference),
        (planned,),
        entry.licence if entry else None,
        entry.licence_url if entry else None,
        notes,
        hash_origin="catalogue" if entry else "url",
    )
