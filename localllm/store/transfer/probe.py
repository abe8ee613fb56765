"""The first look at a remote file: its size, whether ranges work, and what tells one version from another."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import DownloadError

from ..events import Retrying
from ..text import format_bytes, shown_url
from .client import HttpStatusError
from .retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

    from ..events import Report
    from .client import Client, RemoteFile

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')


@dataclass(frozen=True, slots=True)
class Probe:
    """What a server says about a file. `sha256` is the hub's header for large files, where there is one."""

    size_bytes: int | None
    ranges: bool
    etag: str | None
    last_modified: str | None
    sha256: str | None

    @property
    def if_range(self) -> dict[str, str]:
        """The header that makes a changed file come whole instead of mixed (only strong validators may be used)."""
        return {"If-Range": self.etag} if self.etag is not None and not self.etag.startswith("W/") else {}


def parse_content_range(value: str | None) -> tuple[int, int, int | None] | None:
    """(first, last, total or None) of a Content-Range header, or None if it is not one."""
    match = _CONTENT_RANGE.fullmatch(value.strip()) if value is not None else None
    if match is None:
        return None
    total = None if match[3] == "*" else int(match[3])
    return int(match[1]), int(match[2]), total


def probe(client: Client, remote: RemoteFile, report: Report) -> Probe:
    """Ask for one byte of `remote`; retries what may pass. Raises DownloadError, also when the size is a wrong one."""
    failures = 0
    while True:
        try:
            found = _probe_once(client, remote)
            break
        except TransientError as error:
            failures += 1
            wait = client.delay_or_give_up(failures, error, remote.name)
            report(Retrying(remote.name, error.reason, wait))
            time.sleep(wait)
    if found.size_bytes == 0:
        raise DownloadError(f"{remote.name}: the server offers an empty file: {shown_url(remote.url)}")
    if None not in (found.size_bytes, remote.size_bytes) and found.size_bytes != remote.size_bytes:
        raise DownloadError(
            f"{remote.name}: the server offers {found.size_bytes} bytes, but {remote.size_bytes} were expected"
            f" ({format_bytes(found.size_bytes or 0)} and {format_bytes(remote.size_bytes or 0)})",
            hint=f"the file at {shown_url(remote.url)} is not the one that was listed",
        )
    return found


def _probe_once(client: Client, remote: RemoteFile) -> Probe:
    try:
        with client.stream(remote.url, {"Range": "bytes=0-0"}, remote.credentials) as response:
            return _read_headers(response)
    except HttpStatusError as error:
        if error.status != 416:
            raise
    with client.stream(remote.url, {}, remote.credentials) as response:  # an empty file has no byte 0
        return _read_headers(response)


def _read_headers(response: httpx2.Response) -> Probe:
    headers = response.headers
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", ""):
        raise DownloadError(f"{shown_url(str(response.request.url))}: the server sends it compressed ({encoding})")
    content_range = parse_content_range(headers.get("content-range")) if response.status_code == 206 else None
    if content_range is not None and content_range[0] == 0 and content_range[2] is not None:
        size: int | None = content_range[2]
        ranges = True
    else:
        length = headers.get("content-length", "")
        whole = response.status_code == 200 and length.isascii() and length.isdigit()
        size, ranges = (int(length) if whole else None), False
    first: Mapping[str, str] = response.extensions["first_headers"]
    linked = _SHA256.fullmatch(first.get("x-linked-etag", ""))
    return Probe(size, ranges, headers.get("etag"), headers.get("last-modified"), linked[1] if linked else None)
