"""The caller's end of a request: events from the engine's thread, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import RequestError
from localllm.events import Finished

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from localllm.events import Event


@dataclass(frozen=True, slots=True)
class ContextState:
    """Tokens of a sequence: room for `limit`, kept in the window (sinks included), sunk as sinks, evicted."""

    limit: int | None = None
    kept: int = 0
    sunk: int = 0
    evicted: int = 0


class Generation:
    """A submitted request. Iterate it for the events of a single answer, `merged()` for (answer, event) of several.

    Every answer ends with exactly one `Finished`. Events are kept until they are read, by one reader.
    """

    def __init__(self, count: int, wake_engine: Callable[[], None]) -> None:
        self._events: deque[tuple[int, Event]] = deque()
        self._changed = threading.Condition()
        self._unfinished = count
        self._count = count
        self._wake_engine = wake_engine
        self._listener: Callable[[], None] | None = None
        self._cancelled = False
        self._state = ContextState()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def done(self) -> bool:
        """Whether every answer is finished (its events may still be unread)."""
        return self._unfinished == 0

    def cancel(self) -> None:
        """Stop within one step; does nothing once it is done. May be called from any thread."""
        if not self._cancelled and not self.done:
            self._cancelled = True
            self._wake_engine()

    def context_state(self) -> ContextState:
        """The tokens of the (first) answer's sequence, as of its last step."""
        return self._state

    def __iter__(self) -> Iterator[Event]:
        if self._count != 1:
            raise RequestError("a request for several answers is read with merged()", parameter="n")
        for _, event in self.merged():
            yield event

    def merged(self) -> Iterator[tuple[int, Event]]:
        """(index of the answer, event) as they come, until all answers are finished."""
        while True:
            with self._changed:
                while not self._events:
                    if self.done:
                        return
                    self._changed.wait()
                item = self._events.popleft()
            yield item

    async def stream(self) -> AsyncIterator[tuple[int, Event]]:
        """`merged()` for asyncio; closing it, or cancelling the task, cancels the request."""
        loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        with self._changed:
            self._listener = lambda: _call(loop, wake.set)
        try:
            while True:
                with self._changed:
                    items = list(self._events)
                    self._events.clear()
                    done = self.done
                for item in items:
                    yield item
                if not items:
                    if done:
                        return
                    await wake.wait()
                wake.clear()
        finally:
            self._listener = None
            self.cancel()

    # ---- the engine's side

    def put(self, index: int, event: Event) -> None:
        """Hand over an event; nothing follows an answer's `Finished`."""
        with self._changed:
            self._events.append((index, event))
            if isinstance(event, Finished):
                self._unfinished -= 1
            self._changed.notify_all()
            if self._listener is not None:
                self._listener()

    def set_context_state(self, state: ContextState) -> None:
        """What `context_state` says from now on."""
        self._state = state


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
