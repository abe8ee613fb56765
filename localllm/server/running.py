"""Runs the application under uvicorn: SIGTERM lets running answers finish, a second one cuts them, a third ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import uvicorn

from .app import create_app
from .protocol import Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from .options import ServerOptions
    from .pool import ModelPool
    from .service import Service

log = logging.getLogger("localllm.server")
MOST_HEADER_BYTES = 64 * 1024
KEEP_ALIVE_SECONDS = 30


class Server(uvicorn.Server):
    """`started_at` is called with the address once the server listens."""

    def __init__(
        self,
        make_pool: Callable[[], ModelPool],
        options: ServerOptions,
        started_at: Callable[[str, int], None] | None = None,
    ) -> None:
        app = create_app(make_pool, options)
        super().__init__(
            uvicorn.Config(
                app,
                host=options.host,
                port=options.port,
                http=Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MOST_HEADER_BYTES,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=5,
            )
        )
        self.service: Service = app.state.service
        self._started_at = started_at
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started and self._started_at is not None:
            self._started_at(*self.address())

    def address(self) -> tuple[str, int]:
        """Host and port that are listened on."""
        name = self.servers[0].sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first one drains, the next one cuts what runs (clients are told), the third does not wait."""
        self._signals += 1
        if self._signals > 2 or self._loop is None:
            self.should_exit = self.force_exit = True
        elif self._signals == 2:
            self._loop.call_soon_threadsafe(self.service.cut)
        else:
            self._loop.call_soon_threadsafe(self.begin_to_end)

    def begin_to_end(self) -> None:
        """Drain, then end."""
        if self._ending is None:
            log.info("ending: %d answers are still running", self.service.active)
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        await self.service.drain()
        self.should_exit = True
