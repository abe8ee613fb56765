"""One project's page of a package index, JSON or HTML, on a server or in a folder.

https://packaging.python.org/en/latest/specifications/simple-repository-api/
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import url2pathname

from localllm.errors import DownloadError
from localllm.paths import expand_user

from ..text import shown_url
from ..transfer.client import Credentials, HttpStatusError, RemoteFile, origin_of

if TYPE_CHECKING:
    from ..transfer import Client

MAX_PAGE_BYTES = 32 << 20
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_WHEEL = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-[^-]+-[^-]+-(?P<platform>[^-]+)\.whl")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that an index offers. `origin` is a path for a local one."""

    file_name: str
    version: str
    origin: RemoteFile | Path
    sha256: str | None
    yanked: bool

    @property
    def order(self) -> tuple[bool, tuple[int, ...]]:
        """Sorts versions: final releases after pre-releases, then by number."""
        numbers = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)(.*)", self.version)
        final = numbers is not None and not re.match(r"[._-]?(a|b|c|rc|alpha|beta|pre|preview|dev)", numbers[2], re.I)
        return final, tuple(int(part) for part in numbers[1].split(".")) if numbers is not None else ()


def normalized(name: str) -> str:
    """A project's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels_of_index(client: Client, index: str, project: str) -> list[Wheel]:
    """The wheels of `project` at an index; none when the index does not have it. Raises DownloadError."""
    page = urljoin(index if index.endswith("/") else f"{index}/", f"{normalized(project)}/")
    return _wheels_of_page(client, page, project)


def wheels_of_links(client: Client, link: str, project: str) -> list[Wheel]:
    """The wheels of `project` in a folder or on a page of links (pip's --find-links)."""
    path = _local_path(link) if link.lower().startswith("file:") else expand_user(link)
    if "://" not in link or link.lower().startswith("file:"):
        if path.is_dir():
            found = [_wheel(file.name, file, None, False) for file in sorted(path.glob("*.whl"))]
            return [wheel for wheel in found if wheel is not None and _belongs(wheel, project)]
        return _wheels_of_page(client, path.absolute().as_uri(), project)
    return _wheels_of_page(client, link, project)


def _wheels_of_page(client: Client, page: str, project: str) -> list[Wheel]:
    if page.lower().startswith("file:"):
        path = _local_path(page)
        path = path / "index.html" if path.is_dir() else path
        try:
            body, base = path.read_bytes(), path.absolute().as_uri()
        except OSError:
            return []
        found = _parse_html(body.decode("utf-8", "replace"), base, None)
    else:
        url, credentials = split_credentials(page)
        try:
            body, headers = client.get(url, limit=MAX_PAGE_BYTES, headers={"Accept": _ACCEPT}, credentials=credentials)
        except HttpStatusError as error:
            if error.status in (404, 410):
                return []
            raise
        if "json" in headers.get("content-type", ""):
            found = _parse_json(body, url, credentials)
        else:
            found = _parse_html(body.decode("utf-8", "replace"), url, credentials)
    return [wheel for wheel in found if _belongs(wheel, project)]


def _belongs(wheel: Wheel, project: str) -> bool:
    match = _WHEEL.fullmatch(wheel.file_name)
    return match is not None and normalized(match["name"]) == normalized(project)


def _wheel(file_name: str, origin: RemoteFile | Path, sha256: str | None, yanked: bool) -> Wheel | None:
    match = _WHEEL.fullmatch(file_name)
    return None if match is None else Wheel(file_name, match["version"], origin, sha256, yanked)


def _remote(
    url: str, name: str, sha256: str | None, size: int | None, credentials: Credentials | None
) -> RemoteFile | Path:
    if url.lower().startswith("file:"):
        return _local_path(url)
    clean, own = split_credentials(url)
    return RemoteFile(clean, name, size, sha256, own or credentials)


def _parse_json(body: bytes, base: str, credentials: Credentials | None) -> list[Wheel]:
    try:
        files = json.loads(body)["files"]
        found = [_json_wheel(file, base, credentials) for file in files]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError(f"{shown_url(base)}: the index sent a page that cannot be read") from error
    return [wheel for wheel in found if wheel is not None]


def _json_wheel(file: dict[str, Any], base: str, credentials: Credentials | None) -> Wheel | None:
    name, size = str(file["filename"]), file.get("size")
    sha256 = str(file.get("hashes", {}).get("sha256", "")).lower()
    known = sha256 if _SHA256.fullmatch(sha256) else None
    size_bytes = size if type(size) is int and size > 0 else None
    origin = _remote(urljoin(base, str(file["url"])), name, known, size_bytes, credentials)
    return _wheel(name, origin, known, bool(file.get("yanked")))


class _Links(HTMLParser):
    """Collects the links of a page: address and whether the file was yanked."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href"):
            self.links.append((values["href"] or "", "data-yanked" in values))
        elif tag == "base" and values.get("href"):
            self.base = values["href"]


def _parse_html(text: str, base: str, credentials: Credentials | None) -> list[Wheel]:
    parser = _Links()
    parser.feed(text)
    base = urljoin(base, parser.base) if parser.base else base
    found = []
    for link, yanked in parser.links:
        url, fragment = urldefrag(urljoin(base, link))
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        hashes = dict(part.split("=", 1) for part in fragment.split("&") if "=" in part)
        sha256 = hashes.get("sha256", "").lower()
        known = sha256 if _SHA256.fullmatch(sha256) else None
        found.append(_wheel(name, _remote(url, name, known, None, credentials), known, yanked))
    return [wheel for wheel in found if wheel is not None]


def split_credentials(url: str) -> tuple[str, Credentials | None]:
    """The URL without user and password, and those as a header for its origin alone."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    user, _, host = parts.netloc.rpartition("@")
    clean = urlunsplit(parts._replace(netloc=host))
    name, _, password = user.partition(":")
    basic = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return clean, Credentials(origin_of(clean), f"Basic {basic}")


def _local_path(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))
