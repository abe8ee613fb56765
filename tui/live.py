"""The answer that is being written: from the thread's events to turns and meters, within a budget of time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from localllm.chat.session import AnswerDelta, AnswerFinished, PromptRead
from localllm.chat.visible import short_name, visible_line
from localllm.errors import LocalLLMError
from localllm.kernels.executor import LoadProgress

from .answering import AnswerThread, Ended, Failed, Loaded, Noted, WorkEvent
from .garbage import GarbageTimes
from .widgets.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from textual.timer import Timer

    from localllm.chat.backend import ChatBackend
    from localllm.chat.session import SessionEvent

    from .app import ChatApp

FLUSHES = 7.0  # a second, at most, while an answer streams
LONGEST_WAIT = 1.5  # seconds
BUDGET = 0.1  # of a core that the screen may use: the answer is computed on the same cores


class LiveAnswer:
    """Loads and answers, one at a time; `timer` calls `collect`, and is paused while there is nothing to collect."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.timer: Timer | None = None
        self._thread: AnswerThread | None = None
        self._garbage = GarbageTimes()
        self._loaded: ChatBackend | None = None  # the model that is ready
        self._turn: Turn | None = None  # the one that is being written
        self._first_delta = 0.0
        self._next_collection = 0.0
        self._cpu = 0.0

    @property
    def running(self) -> bool:
        """Whether a model is loading or answering."""
        return self._thread is not None

    def start(self, make: Callable[[], Generator[SessionEvent, None, None]] | None) -> None:
        """Load the model if needed, then stream what `make` begins (None: only load).

        The question is stored and shown at once, also while the model is still being loaded.
        """
        if self.answering:
            self._app.tell("an answer is being written; Esc stops it", "warning")
            return
        answer = None
        if make is not None:
            try:
                answer = make()
            except LocalLLMError as error:
                self._app.tell(str(error), "error")
                return
            self._begin()
        if self._thread is not None and answer is not None and self._thread.add(answer):
            return
        self._app.readings.phase = "starting"
        self._app.readings.fraction = None
        backend = self._app.desk.backend
        self._thread = AnswerThread(self._app.desk, answer, self._garbage, loading=backend is not self._loaded)
        self._cpu = time.thread_time()
        self._thread.start()
        if self.timer is not None:
            self.timer.resume()
        self._app.show_meters()

    @property
    def answering(self) -> bool:
        """Whether nothing else may be asked now; while a model is only loaded it may."""
        return self._thread is not None and self._thread.answers

    @property
    def loading(self) -> bool:
        """Whether a model is on its way, and can be given up."""
        return self._thread is not None and self._thread.loading

    def loads(self, backend: ChatBackend) -> bool:
        """Whether this model is being loaded, with what belongs to that."""
        return self._thread is not None and self._thread.only_loads and self._thread.backend is backend

    def abandon(self) -> None:
        """Nobody waits for the model any more: something else may begin at once, the thread ends when it can."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        if self._turn is not None:
            self._turn.finish()
            self._turn = None
        self._rest()
        self._app.reload()

    def stop(self) -> None:
        """End the present answer; its part stays."""
        if self._thread is not None:
            self._app.readings.phase = "stopping"
            self._app.show_meters()
            self._thread.stop()

    def collect(self) -> None:
        """Show what has come; less often when showing it takes long."""
        if self._thread is None or time.monotonic() < self._next_collection:
            return
        for event in joined(self._thread.take()):
            try:
                self._show(event)
            except LocalLLMError as error:  # the store's disk, for instance
                self._app.tell(str(error), "error")
        if self._turn is not None:
            self._turn.version += 1
            self._app.transcript.changed()
        self._app.show_meters()
        now, cpu = time.monotonic(), time.thread_time()
        self._next_collection = now + min(LONGEST_WAIT, (cpu - self._cpu) / BUDGET) - 1 / FLUSHES
        self._cpu = cpu
        if self._thread is None and self.timer is not None:
            self.timer.pause()

    def _show(self, event: WorkEvent) -> None:
        readings = self._app.readings
        if isinstance(event, LoadProgress):
            readings.phase, readings.fraction = visible_line(event.phase, 40), event.fraction
        elif isinstance(event, Loaded):
            readings.phase, readings.fraction = "starting", None
            self._loaded = self._app.desk.backend
            readings.state, readings.context = self._app.desk.backend.state(), self._app.desk.backend.context()
        elif isinstance(event, PromptRead):
            readings.phase, readings.prompt_total, readings.prompt_done = "reading", event.total, event.processed
        elif isinstance(event, AnswerDelta):
            self._grow(event)
        elif isinstance(event, AnswerFinished):
            self._finish(event)
        elif isinstance(event, Failed):
            self._app.tell(event.text, "error")
        elif isinstance(event, Noted):
            self._app.tell(event.text, "warning")
        elif isinstance(event, Ended):
            self._ended()

    def _begin(self) -> None:
        """The question is stored: show it, and the place of the answer."""
        self._app.reload()
        turns = self._app.transcript.turns
        if not turns or turns[-1].role != "assistant":
            return
        turn = turns[-1]
        live = Turn(turn.message, turn.role, short_name(self._app.desk.model), turn.branch, live=True)
        if turn.reasoning:
            live.append("reasoning", turn.reasoning)
        if turn.text:
            live.append("answer", turn.text)
        turns[-1] = self._turn = live
        self._first_delta = 0.0
        self._app.readings.tokens, self._app.readings.speed = 0, 0.0
        self._app.transcript.changed()

    def _grow(self, event: AnswerDelta) -> None:
        if self._turn is not None:
            self._turn.append(event.kind, event.text)
        readings = self._app.readings
        now = time.monotonic()
        if not self._first_delta:
            self._first_delta = now
        readings.context = self._app.desk.backend.context()
        readings.phase = "thinking" if event.kind == "reasoning" else "writing"
        readings.tokens += event.tokens
        elapsed = now - self._first_delta
        if elapsed > 0.3:
            readings.speed = readings.tokens / elapsed

    def _finish(self, event: AnswerFinished) -> None:
        if self._turn is not None:
            self._turn.figures = self._app.desk.store.message(event.message).figures
            self._turn.partial = event.reason not in ("stop", "length")
            self._turn.finish()
        self._turn = None
        if event.tokens_per_second:
            self._app.readings.speed = event.tokens_per_second
        if event.prompt_tokens_per_second:
            self._app.readings.prompt_speed = event.prompt_tokens_per_second
        self._app.readings.guesses = event.usage.drafted_tokens
        self._app.readings.right = event.usage.accepted_tokens
        self._app.transcript.changed()

    def _ended(self) -> None:
        if self._turn is not None:
            self._turn.finish()
            self._turn = None
        went_back = self._thread is not None and self._thread.backend is not self._app.desk.backend
        self._thread = None
        if went_back:
            self._loaded = None
        self._rest()
        self._app.readings.model = short_name(self._app.desk.model)
        self._app.readings.state, self._app.readings.context = (
            self._app.desk.backend.state(),
            self._app.desk.backend.context(),
        )
        self._app.reload()
        self._app.commands.next_waiting()
        if went_back:  # the model could not be loaded: the one before it is loaded again
            self._app.load_model()

    def _rest(self) -> None:
        ready = self._loaded is self._app.desk.backend
        self._app.readings.phase, self._app.readings.fraction = "ready" if ready else "no model is loaded", None

    def end(self, patience: float) -> None:
        """Stop, and wait for a while until the part is written."""
        if self._thread is not None:
            self._thread.stop()
            self._thread.join(patience)


def joined(events: Iterable[WorkEvent]) -> Iterator[WorkEvent]:
    """The same with neighbouring pieces of text made one: the open end of an answer is parsed once for each."""
    begun: AnswerDelta | None = None
    for event in events:
        if isinstance(event, AnswerDelta):
            if begun is not None and (begun.message, begun.kind) == (event.message, event.kind):
                begun = replace(begun, text=begun.text + event.text, tokens=begun.tokens + event.tokens)
                continue
            if begun is not None:
                yield begun
            begun = event
            continue
        if begun is not None:
            yield begun
            begun = None
        yield event
    if begun is not None:
        yield begun
