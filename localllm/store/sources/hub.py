"""The Hugging Face hub: files of a repository with their hashes, licences, search, and what its refusals mean.

API: https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from localllm.errors import DownloadError

from ..names import safe_file_name
from ..plan import Piece, PlannedFile, PullPlan
from ..text import printable
from ..transfer.client import Credentials, HttpStatusError, RemoteFile, origin_of
from .quants import ListedFile, Variant, choose, variants_of

if TYPE_CHECKING:
    from ..entry import CatalogueEntry
    from ..reference import HubReference
    from ..transfer import Client

MAX_LISTING_BYTES = 64 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit."""

    files: tuple[ListedFile, ...]
    commit: str
    licence: str | None
    gated: bool


@dataclass(frozen=True, slots=True)
class FoundRepository:
    """A search result."""

    name: str
    downloads: int
    licence: str | None
    gated: bool


def plan_hub(
    client: Client, reference: HubReference, name: str | None, entry: CatalogueEntry | None = None
) -> PullPlan:
    """Choose the files of a repository. Raises DownloadError (no such repository, gated, nothing fits)."""
    if entry is not None and entry.sha256 is not None and entry.size_bytes is not None and reference.file is not None:
        listed = ListedFile(reference.file, entry.size_bytes, entry.sha256)  # the catalogue knows all: ask nothing
        repository = Repository((listed,), reference.revision, entry.licence, entry.gated)
        variant, left_out = Variant(reference.file, entry.quant, (listed,)), list[str]()
    else:
        repository = list_repository(client, reference)
        variants, left_out = variants_of(list(repository.files))
        variant = choose(variants, reference.quant, reference.file, _shown(reference))
    licence = (entry.licence if entry is not None else None) or repository.licence
    planned = tuple(_planned(client, reference, repository.commit, file) for file in variant.files)
    notes = (
        [f"left out: {printable(', '.join(left_out[:5]), 200)} (not a language model of its own)"] if left_out else []
    )
    if any(file.sha256 is None for file in planned):
        notes.append("the hub lists no hash for this file; its structure is checked and its hash recorded")
    tail = f":{variant.quant}" if reference.file is None and variant.quant is not None else f"/{variant.path}"
    revision = "" if reference.revision == "main" else f"@{reference.revision}"
    own_name = f"hf:{reference.owner}/{reference.repository}{revision}{tail}"
    return PullPlan(
        name or own_name,
        own_name,
        planned,
        licence,
        (entry.licence_url if entry is not None else None) or page_of(client, reference),
        tuple(notes),
        hash_origin="catalogue" if entry is not None and entry.sha256 is not None else "hub",
        hub=reference,
    )


def list_repository(client: Client, reference: HubReference) -> Repository:
    """All files of a repository with sizes and hashes, from one API page."""
    path = f"{quote(reference.owner)}/{quote(reference.repository)}/revision/{quote(reference.revision)}"
    page = _get_json(client, f"/api/models/{path}?blobs=true", reference)
    try:
        files = tuple(_listed(sibling) for sibling in page["siblings"])
        commit = str(page.get("sha", ""))
        card = page.get("cardData") or {}
        licence = card.get("license") or _licence_tag(page.get("tags") or [])
        gated = bool(page.get("gated"))
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadError(f"the hub sent a page about {_shown(reference)} that cannot be read") from error
    revision = commit if _COMMIT.fullmatch(commit) else reference.revision
    return Repository(files, revision, printable(licence, 80) if isinstance(licence, str) else None, gated)


def search_hub(client: Client, text: str, limit: int = 20) -> list[FoundRepository]:
    """Repositories with GGUF files that match `text`, the most downloaded first."""
    query = urlencode({"search": text, "filter": "gguf", "sort": "downloads", "direction": "-1", "limit": limit})
    page = _get_json(client, f"/api/models?{query}", None)
    if not isinstance(page, list):
        raise DownloadError("the hub sent a search result that cannot be read")
    found = []
    for item in page[:limit]:
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            tags = item.get("tags")
            licence = _licence_tag(tags if isinstance(tags, list) else [])
            downloads = item.get("downloads")
            count = downloads if type(downloads) is int else 0
            found.append(FoundRepository(printable(item["id"], 200), count, licence, bool(item.get("gated"))))
    return found


def explain_refusal(client: Client, reference: HubReference | None, error: HttpStatusError) -> DownloadError:
    """What a 401, 403 or 404 of the hub means, and what to do."""
    where = _shown(reference) if reference is not None else "the hub"
    has_token = client.options.hub_token is not None
    gated = error.code == "GatedRepo"
    page = page_of(client, reference) if reference is not None else client.options.hub_endpoint
    if error.status == 404 or (error.code in ("RepoNotFound", "RevisionNotFound", "EntryNotFound") and not has_token):
        missing = {"RevisionNotFound": "revision", "EntryNotFound": "file"}.get(error.code or "", "repository")
        private = "" if has_token else "; if it is private, set HF_TOKEN"
        return DownloadError(f"{where}: there is no such {missing} on the hub", hint=f"check the spelling{private}")
    if gated and has_token:
        return DownloadError(
            f"{where} is gated and your account has no access yet", hint=f"accept its licence at {page}"
        )
    if error.status == 401 and has_token:
        return DownloadError(f"{where}: the hub does not accept your token", hint="make a new one and set HF_TOKEN")
    if error.status == 401:
        return DownloadError(
            f"{where} needs a login", hint=f"accept its licence at {page}, make a token there and set HF_TOKEN"
        )
    if error.status == 403:
        return DownloadError(f"{where}: your account has no access", hint=f"accept its licence at {page}")
    return DownloadError(error.message, hint=error.hint)


def page_of(client: Client, reference: HubReference) -> str:
    """The page of a repository for people."""
    return f"{client.options.hub_endpoint}/{reference.owner}/{reference.repository}"


def _get_json(client: Client, path: str, reference: HubReference | None) -> Any:
    endpoint = client.options.hub_endpoint
    try:
        body, _ = client.get(endpoint + path, limit=MAX_LISTING_BYTES, credentials=_credentials(client))
    except HttpStatusError as error:
        raise explain_refusal(client, reference, error) from error
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DownloadError(f"{endpoint} sent a page that cannot be read; is it a hub?") from error


def _credentials(client: Client) -> Credentials | None:
    token = client.options.hub_token
    return None if token is None else Credentials(origin_of(client.options.hub_endpoint), f"Bearer {token}")


def _planned(client: Client, reference: HubReference, commit: str, file: ListedFile) -> PlannedFile:
    path = f"{quote(reference.owner)}/{quote(reference.repository)}/resolve/{quote(commit)}/{quote(file.path)}"
    url = f"{client.options.hub_endpoint}/{path}"
    name = safe_file_name(file.path)
    remote = RemoteFile(url, name, file.size_bytes, file.sha256, _credentials(client))
    return PlannedFile(name, (Piece(remote),), file.size_bytes, file.sha256)


def _listed(sibling: dict[str, Any]) -> ListedFile:
    stored = sibling.get("lfs") or {}
    sha256 = str(stored.get("sha256") or stored.get("oid") or "").lower().removeprefix("sha256:")
    size = stored.get("size") or sibling.get("size")
    known = sha256 if _SHA256.fullmatch(sha256) else None
    return ListedFile(str(sibling["rfilename"]), size if type(size) is int and size > 0 else None, known)


def _licence_tag(tags: list[Any]) -> str | None:
    found = [tag.removeprefix("license:") for tag in tags if isinstance(tag, str) and tag.startswith("license:")]
    return printable(found[0], 80) if found else None


def _shown(reference: HubReference) -> str:
    return f"hf:{reference.owner}/{reference.repository}"
