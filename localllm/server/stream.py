"""Server-sent events, and answers that stop when the client goes away."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from .errors import shutting_down

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from .service import Service

T = TypeVar("T")
PING_SECONDS = 10.0
DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


def encode_json(value: Any) -> bytes:
    """JSON; NaN and infinity cannot occur in it. Half characters (lone surrogates) of a request become `?`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace")


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(value) + b"\n\n"


class JSONAnswer(Response):
    """A JSON body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode it."""
        return encode_json(content)


class EventStream(Response):
    """Sends events as they come, with a comment now and then. `close` is called at the end, however that comes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; raises ClientGone."""
        try:
            await until_disconnect(receive, self._send(send))
        finally:
            self._close()
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        loop = asyncio.get_running_loop()
        last = loop.time()

        async def ping() -> None:
            while True:
                await asyncio.sleep(last + PING_SECONDS - loop.time())
                if loop.time() >= last + PING_SECONDS:
                    await put(b": working\n\n")

        async def put(data: bytes) -> None:
            nonlocal last
            last = loop.time()
            await send({"type": "http.response.body", "body": data, "more_body": True})

        pings = asyncio.create_task(ping())
        try:
            async for data in self._events:
                await put(data)
        finally:
            pings.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T], cut_off: asyncio.Event | None = None) -> T:
    """The result of `work`, which is cancelled when the client goes away (ClientGone) or all is cut (APIError 503)."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    cut = [] if cut_off is None else [asyncio.ensure_future(cut_off.wait())]
    try:
        await asyncio.wait({task, watch, *cut}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone if watch.done() else shutting_down()
    finally:
        # All before the first wait: work that ends meanwhile would give a stream that nobody closes.
        unfinished = [each for each in (task, watch, *cut) if not each.done()]
        for each in unfinished:
            each.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """`until_disconnect` for a handler whose body was read; a server that cuts its answers ends it too."""
    service: Service = request.app.state.service
    return await until_disconnect(request.receive, work, service.cut_off)
