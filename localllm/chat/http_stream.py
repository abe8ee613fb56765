"""HTTP for a chat: one streamed answer in its own thread, so that it can be dropped at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any

import httpx2

from localllm.errors import ExecutionError, LocalLLMError

from .server_errors import broken_off, refused, unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT_SECONDS = 10.0
MAX_ERROR_BODY = 64 << 10


class HttpStream:
    """POSTs JSON and hands out the data of the answer's events. `close` ends it at once, even before the first byte."""

    def __init__(self, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self._url, self._body, self._headers = url, dict(body), dict(headers)
        self._found: queue.SimpleQueue[str | LocalLLMError | None] = queue.SimpleQueue()
        self._running = threading.Event()
        self._answering = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="chat-http", daemon=True)

    def start(self) -> None:
        """Send the request; does not wait for anything."""
        self._thread.start()

    def get(self, timeout: float) -> str | None:
        """The data of the next event, None at the end. Raises queue.Empty after `timeout`, or what went wrong."""
        found = self._found.get(timeout=timeout)
        if isinstance(found, LocalLLMError):
            raise found
        return found

    def close(self) -> None:
        """Drop the connection and wait until it is gone."""
        if not self._thread.is_alive():
            return
        self._running.wait()
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it may end by itself at this moment
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._found.put(None)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._read())
        self._running.set()
        try:
            await self._task
        except asyncio.CancelledError:
            pass
        except httpx2.HTTPError as error:
            self._found.put(broken_off(self._url, error) if self._answering else unreachable(self._url, error))

    async def _read(self) -> None:
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        async with (
            httpx2.AsyncClient(timeout=timeout) as client,
            client.stream("POST", self._url, json=self._body, headers=self._headers) as response,
        ):
            if response.status_code != 200:
                self._found.put(refused(response.status_code, await _start_of(response)))
                return
            self._answering = True
            async for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                self._found.put(event.data)


def get_json(url: str, headers: Mapping[str, str]) -> Any:
    """GET a small JSON document. Raises LocalLLMError for everything that may go wrong."""
    try:
        response = httpx2.get(url, headers=dict(headers), timeout=CONNECT_SECONDS)
    except httpx2.HTTPError as error:
        raise unreachable(url, error) from error
    if response.status_code != 200:
        raise refused(response.status_code, response.content[:MAX_ERROR_BODY])
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise ExecutionError(f"{url} sent something that is not JSON", hint="does the address end in /v1?") from None


async def _start_of(response: httpx2.Response) -> bytes:
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_ERROR_BODY:
            break
    return body
