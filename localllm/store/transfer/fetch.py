"""The two ways to fetch: ranges over several connections, and one stream from a server without ranges."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from localllm.errors import DownloadError

from ..events import FileProgress, Retrying
from ..text import format_bytes
from .blocks import BlockAssembler, Stopped
from .client import HttpStatusError
from .journal import Span
from .probe import parse_content_range
from .retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx2

    from ..events import Report
    from .blocks import BlockFile
    from .client import Client, RemoteFile
    from .limiter import RateLimiter
    from .probe import Probe

REPORT_INTERVAL = 0.1  # seconds between progress events


class ContentChanged(Exception):
    """The server now has another version of the file."""


class RangesIgnored(Exception):
    """The server answers 200 to a Range."""


class Fetch:
    """One pass over `spans` of a file. `run` returns when all are stored, or raises.

    Raises ContentChanged, RangesIgnored, DownloadError; KeyboardInterrupt passes through. `received_bytes` counts the
    bytes of bodies, stored or not. `idle` is called between progress events and may do a bit of work.
    """

    def __init__(
        self,
        client: Client,
        remote: RemoteFile,
        probe: Probe,
        file: BlockFile,
        limiter: RateLimiter,
        report: Report,
        idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._remote = remote
        self._probe = probe
        self._file = file
        self._limiter = limiter
        self._report = report
        self._idle = idle
        self._stop = threading.Event()
        self._events: deque[Retrying] = deque()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._resumed = file.journal.done_bytes
        self.received_bytes = 0

    def run(self, spans: Sequence[Span]) -> None:
        """Fetch `spans` by ranges over several connections."""
        queue = deque(spans)
        count = min(self._client.options.connections, len(queue))
        self._run_threads([threading.Thread(target=self._work, args=(queue,), daemon=True) for _ in range(count)])

    def run_whole(self) -> None:
        """Fetch the file from its first byte over one connection; blocks already stored are passed over."""
        self._run_threads([threading.Thread(target=self._work_whole, daemon=True)])

    def _run_threads(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                self._announce()
                until = time.monotonic() + REPORT_INTERVAL
                while self._idle() and time.monotonic() < until:
                    pass
                with self._file.changed:
                    alive = any(thread.is_alive() for thread in threads)
                    if alive and time.monotonic() < until:
                        self._file.changed.wait(min(REPORT_INTERVAL, 0.02))
            self._announce()
        finally:
            self._stop.set()
        if self._failure is not None:
            raise self._failure

    def _announce(self) -> None:
        while self._events:
            self._report(self._events.popleft())
        total = self._file.journal.identity.size_bytes
        done = min(total, self._file.journal.done_bytes)
        self._report(FileProgress(self._remote.name, done, total, self._resumed))

    def _work(self, queue: deque[Span]) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    if not queue:
                        return
                    span = queue.popleft()
                self._retry(BlockAssembler(self._file, span.start, span.stop), span)
        except BaseException as error:
            self._fail(error)

    def _work_whole(self) -> None:
        try:
            size = self._file.journal.identity.size_bytes
            best = failures = 0
            while True:
                assembler = BlockAssembler(self._file, 0, size)
                try:
                    self._receive(assembler, Span(0, size), ranged=False)
                    return
                except TransientError as error:
                    failures = 1 if assembler.position > best else failures + 1
                    best = max(best, assembler.position)
                    self._wait(failures, error)
        except BaseException as error:
            self._fail(error)

    def _retry(self, assembler: BlockAssembler, span: Span) -> None:
        """Fetch one span; after a cut, go on from the byte where it was cut."""
        failures = 0
        while assembler.position < span.stop:
            before = assembler.position
            try:
                self._receive(assembler, span, ranged=True)
            except TransientError as error:
                failures = 1 if assembler.position > before else failures + 1
                self._wait(failures, error)

    def _receive(self, assembler: BlockAssembler, span: Span, *, ranged: bool) -> None:
        before = assembler.position
        headers = {"Range": f"bytes={before}-{span.stop - 1}", **self._probe.if_range} if ranged else {}
        try:
            with self._client.stream(self._remote.url, headers, self._remote.credentials) as response:
                self._check(response, before, ranged=ranged)
                for piece in response.iter_raw():
                    if self._stop.is_set():
                        raise Stopped
                    wait = self._limiter.delay(len(piece))
                    if wait and self._stop.wait(wait):
                        raise Stopped
                    with self._lock:
                        self.received_bytes += len(piece)
                    if assembler.feed(piece) < len(piece) or assembler.position == span.stop:
                        break
        except HttpStatusError as error:
            if error.status == 416:  # the range was inside the file a moment ago
                raise ContentChanged from error
            raise
        if assembler.position == before or (not ranged and assembler.position < span.stop):
            raise TransientError(f"the answer ended after {format_bytes(assembler.position - before)}")

    def _check(self, response: httpx2.Response, position: int, *, ranged: bool) -> None:
        etag = response.headers.get("etag")
        if etag is not None and self._probe.etag is not None and etag != self._probe.etag:
            raise ContentChanged
        size = self._file.journal.identity.size_bytes
        if response.status_code != 206:
            if ranged:
                raise RangesIgnored
            length = response.headers.get("content-length")
            if length is not None and length != str(size):
                raise ContentChanged
            return
        found = parse_content_range(response.headers.get("content-range"))
        if found is None or not ranged:
            raise DownloadError(f"{self._remote.name}: the server answers with a range that was not asked for")
        if found[2] not in (None, size):
            raise ContentChanged
        if found[0] != position:
            raise TransientError(f"the server sent bytes from {found[0]} on instead of {position}")

    def _wait(self, failures: int, error: TransientError) -> None:
        seconds = self._client.delay_or_give_up(failures, error, self._remote.name)
        self._events.append(Retrying(self._remote.name, error.reason, seconds))
        if self._stop.wait(seconds):
            raise Stopped

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None and not isinstance(error, Stopped):
                self._failure = error
        self._stop.set()
