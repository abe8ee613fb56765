"""What all handlers of one server share."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

from localllm.spare_memory import give_back, trim

from .errors import unavailable
from .metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

    from .options import ServerOptions
    from .pool import ModelPool

log = logging.getLogger("localllm.server")
TIDY_SECONDS = 2.0  # without a request
TRIM_SECONDS = 1.0  # of requests one after the other
CUT_SECONDS = 5.0  # for answers that are cut: a step of the model, and the client's last bytes
PATHS = frozenset(
    (
        "/",
        "/health",
        "/metrics",
        "/openapi.json",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
    )
)


class Service:
    """The models, the options, the counters, and whether the server is about to end."""

    def __init__(self, pool: ModelPool, options: ServerOptions) -> None:
        self.pool = pool
        self.options = options
        self.metrics = Metrics()
        self.draining = False
        self.cut_off = asyncio.Event()  # set: no answer may go on
        self._on_cut: set[Callable[[], None]] = set()
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tidying: asyncio.TimerHandle | None = None
        self._trimmed = time.monotonic()

    @property
    def active(self) -> int:
        """Requests that models work for."""
        return self._active

    def begin(self) -> None:
        """A request for a model comes; APIError 503 when there are too many."""
        if self._active >= self.options.most_waiting:
            raise unavailable(f"{self._active} requests are waiting already", "overloaded", 2)
        self._active += 1
        self._idle.clear()
        if self._tidying is not None:
            self._tidying.cancel()

    def end(self) -> None:
        """It is answered, or its client is gone."""
        self._active -= 1
        if time.monotonic() - self._trimmed > TRIM_SECONDS:
            self._trimmed = time.monotonic()
            asyncio.get_running_loop().run_in_executor(None, trim)
        if self._active == 0:
            self._idle.set()
            self._tidying = asyncio.get_running_loop().call_later(TIDY_SECONDS, self._tidy)

    @staticmethod
    def _tidy() -> None:
        asyncio.get_running_loop().run_in_executor(None, give_back)

    def call_on_cut(self, callback: Callable[[], None]) -> None:
        """Call it when running answers are cut; at once when that has happened."""
        self._on_cut.add(callback)
        if self.cut_off.is_set():
            callback()

    def forget_on_cut(self, callback: Callable[[], None]) -> None:
        """It is not called any more."""
        self._on_cut.discard(callback)

    def cut(self) -> None:
        """End all running answers now; their clients are told so."""
        if self.cut_off.is_set():
            return
        if self._active:
            log.warning("%d answers were not finished in time and are cut", self._active)
        self.cut_off.set()
        for callback in tuple(self._on_cut):
            callback()

    async def drain(self) -> None:
        """Take no more requests; returns once the running ones are answered, or cut because their time is over."""
        self.draining = True
        waits = [asyncio.create_task(event.wait()) for event in (self._idle, self.cut_off)]
        await asyncio.wait(waits, timeout=self.options.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        self.cut()
        await asyncio.wait(waits[:1], timeout=CUT_SECONDS)
        for wait in waits:
            wait.cancel()

    def log_prompt(self, scope: Scope, body: dict[str, Any]) -> None:
        """Log a request's content, where the person who runs the server wants that."""
        if self.options.log_prompts:
            log.info("%s %s", scope.get("request_id"), json.dumps(body, ensure_ascii=True))

    def finished(self, scope: Scope, identity: str, status: int, seconds: float) -> None:
        """Log and count a request; its content is not logged."""
        path = scope["path"] if scope["path"] in PATHS else "other"
        self.metrics.requests.labels(path, str(status)).inc()
        level = logging.DEBUG if path in ("/health", "/metrics") else logging.INFO
        shown = scope["path"][:200].encode("unicode_escape").decode()
        log.log(level, "%s %s %s %d %.3fs", identity, scope["method"], shown, status, seconds)
