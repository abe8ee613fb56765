"""One file from a server to a verified file in a folder; a second run goes on where the first one was killed."""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import DownloadError

from ..disk import free_bytes, make_folder, require_space, storage_error
from ..events import FileProgress, Note, Phase, Retrying
from ..text import format_bytes, shown_url
from .blocks import BlockFile
from .fetch import ContentChanged, Fetch, RangesIgnored
from .journal import BLOCK_BYTES, Identity, Journal, Span
from .limiter import RateLimiter
from .probe import probe
from .retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ..events import Report
    from .client import Client, RemoteFile
    from .probe import Probe

DATA_NAME = "data"
JOURNAL_NAME = "journal"
SPAN_BYTES = 32 * BLOCK_BYTES  # what one request asks for
MAX_VERSIONS = 3
SPARE_BYTES = 256 << 20  # a stream of unknown length stops before it fills the disk


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A finished transfer. `expected` is the hash it was checked against, None when nobody knows it."""

    path: Path
    size_bytes: int
    sha256: str
    expected: str | None
    fetched_bytes: int


class PrefixHash:
    """SHA-256 of a file while it is being fetched: follows the blocks that are complete from the start on."""

    def __init__(self, path: Path, journal: Journal) -> None:
        self._path = path
        self._journal = journal
        self._hash = hashlib.sha256()
        self._next = 0

    def advance(self) -> bool:
        """Hash one more block if it is there; whether it was."""
        if self._next not in self._journal.blocks:
            return False
        span = self._journal.span_of(self._next)
        with self._path.open("rb") as file:
            file.seek(span.start)
            self._hash.update(file.read(span.stop - span.start))
        self._next += 1
        return True

    def finish(self) -> str:
        """The hash of the whole file, in hexadecimal."""
        while self.advance():
            pass
        return self._hash.hexdigest()


class Transfer:
    """Fetches `remote` into `folder` (its data and its journal). One process at a time: the caller holds a lock."""

    def __init__(
        self,
        client: Client,
        remote: RemoteFile,
        folder: Path,
        report: Report,
        *,
        block_bytes: int = BLOCK_BYTES,
        span_bytes: int = SPAN_BYTES,
    ) -> None:
        self._client = client
        self._remote = remote
        self._folder = folder
        self._report = report
        self._block_bytes = block_bytes
        self._span_bytes = span_bytes
        self._limiter = RateLimiter(client.options.bytes_per_second)
        self._data = folder / DATA_NAME
        self._fetched_bytes = 0

    def run(self) -> FetchedFile:
        """Fetch, verify, and return the file. Raises DownloadError; what was fetched stays for the next run."""
        make_folder(self._folder)
        for _ in range(MAX_VERSIONS):
            found = probe(self._client, self._remote, self._report)
            try:
                return self._run_version(found)
            except ContentChanged:
                self._report(Note(f"{self._remote.name} changed on the server; starting again"))
        raise DownloadError(
            f"{self._remote.name} changes on the server while it is fetched: {shown_url(self._remote.url)}",
            hint="try again later",
        )

    def _run_version(self, found: Probe) -> FetchedFile:
        size = found.size_bytes if found.size_bytes is not None else self._remote.size_bytes
        if size is None:
            return self._run_unknown_size()
        expected = self._remote.sha256 or found.sha256
        url_sha256 = hashlib.sha256(self._remote.url.encode()).hexdigest()
        identity = Identity(url_sha256, size, expected, found.etag, found.last_modified)
        try:
            journal = Journal.open(self._folder / JOURNAL_NAME, identity, self._block_bytes)
            if not self._data.exists():
                journal.reset(identity)
            elif damaged := journal.damaged(self._data):
                journal.forget(damaged)
        except OSError as error:
            raise storage_error(error, self._folder) from error
        require_space(self._folder, size - journal.done_bytes, self._remote.name)
        prefix = PrefixHash(self._data, journal)
        with contextlib.closing(BlockFile(self._data, journal)) as file:
            self._fetch_missing(found, file, prefix.advance)
        self._report(Phase(self._remote.name, "verifying"))
        actual = prefix.finish()
        if expected is not None and actual != expected:
            actual = self._repair(found, journal, expected, actual)
        return FetchedFile(self._data, size, actual, expected, self._fetched_bytes)

    def _fetch_missing(self, found: Probe, file: BlockFile, idle: Callable[[], bool]) -> None:
        """Fetch what the journal lacks; from a server that stops honouring ranges, the file from its start."""
        if found.ranges:
            try:
                self._fetch(found, file, file.journal.missing(self._span_bytes), idle)
                return
            except RangesIgnored:
                pass
        if not file.journal.complete:
            self._report(Note(f"{self._remote.name}: the server sends whole files only; a cut starts again"))
            self._fetch(found, file, None, idle)

    def _fetch(
        self, found: Probe, file: BlockFile, spans: list[Span] | None, idle: Callable[[], bool] = lambda: False
    ) -> None:
        """One pass over `spans`, or over the whole file in one stream."""
        fetch = Fetch(self._client, self._remote, found, file, self._limiter, self._report, idle)
        try:
            if spans is None:
                fetch.run_whole()
            else:
                fetch.run(spans)
        finally:
            self._fetched_bytes += fetch.received_bytes

    def _repair(self, found: Probe, journal: Journal, expected: str, actual: str) -> str:
        """The hash is wrong: fetch again, piece by piece, until the blocks that differ are found and replaced."""
        self._report(Phase(self._remote.name, "the hash is wrong: looking for the bad part"))
        if damaged := journal.damaged(self._data):
            journal.forget(damaged)
        for spans in self._repair_batches(journal, ranges=found.ranges):
            if self._refetch(found, journal, spans):
                actual = PrefixHash(self._data, journal).finish()
                if actual == expected and journal.complete:
                    return actual
        journal.reset(journal.identity)
        with contextlib.suppress(OSError):
            self._data.unlink()
        raise DownloadError(
            f"{self._remote.name}: the bytes from {shown_url(self._remote.url)} are not the expected file\n"
            f"  wanted sha256 {expected}\n  got    sha256 {actual}",
            hint="nothing of it was kept; the server's file may have been replaced, or a proxy alters it",
        )

    def _repair_batches(self, journal: Journal, *, ranges: bool) -> Iterator[list[Span]]:
        """What to fetch again, batch by batch: blocks damaged on disk first, then the file from its start."""
        size = journal.identity.size_bytes
        if not ranges:
            yield [Span(0, size)]
            return
        if not journal.complete:
            yield journal.missing(self._span_bytes)
        batch = self._span_bytes * self._client.options.connections
        for start in range(0, size, batch):
            stop = min(start + batch, size)
            yield [Span(a, min(a + self._span_bytes, stop)) for a in range(start, stop, self._span_bytes)]

    def _refetch(self, found: Probe, journal: Journal, spans: list[Span]) -> bool:
        """Fetch `spans` again; whether anything was replaced."""
        before = len(journal.blocks)
        with contextlib.closing(BlockFile(self._data, journal, replace=True)) as file:
            try:
                self._fetch(found, file, spans if found.ranges else None)
            except RangesIgnored:
                return False
            return bool(file.replaced) or len(journal.blocks) > before

    def _run_unknown_size(self) -> FetchedFile:
        """A server that tells no length: one stream to its end, which only the hash or the content can vouch for."""
        failures = 0
        while True:
            try:
                size, actual = self._stream_to_end()
                break
            except TransientError as error:
                failures += 1
                wait = self._client.delay_or_give_up(failures, error, self._remote.name)
                self._report(Retrying(self._remote.name, error.reason, wait))
                time.sleep(wait)
        if self._remote.sha256 is not None and actual != self._remote.sha256:
            raise DownloadError(
                f"{self._remote.name}: the bytes from {shown_url(self._remote.url)} are not the expected file\n"
                f"  wanted sha256 {self._remote.sha256}\n  got    sha256 {actual}"
            )
        return FetchedFile(self._data, size, actual, self._remote.sha256, self._fetched_bytes)

    def _stream_to_end(self) -> tuple[int, str]:
        digest = hashlib.sha256()
        size = 0
        with self._client.stream(self._remote.url, {}, self._remote.credentials) as response:
            try:
                with self._data.open("wb") as file:
                    for piece in response.iter_raw():
                        if size >> 26 != (size + len(piece)) >> 26 and free_bytes(self._folder) < SPARE_BYTES:
                            raise DownloadError(
                                f"{self._remote.name}: the server tells no length and the disk is nearly full"
                                f" after {format_bytes(size)}"
                            )
                        file.write(piece)
                        digest.update(piece)
                        size += len(piece)
                        self._fetched_bytes += len(piece)
                        self._report(FileProgress(self._remote.name, size, None))
            except OSError as error:
                raise storage_error(error, self._data) from error
        if size == 0:
            raise DownloadError(f"{self._remote.name}: the server offers an empty file")
        return size, digest.hexdigest()
