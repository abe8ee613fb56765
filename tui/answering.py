"""Answers are made in a thread of their own; the screen collects what has come since it last looked."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.chat.session import AnswerDelta, AnswerFinished, PromptRead
from localllm.errors import LocalLLMError
from localllm.kernels.executor import LoadProgress

from .markdown import warm_up

if TYPE_CHECKING:
    from collections.abc import Generator

    from localllm.chat.desk import ChatDesk
    from localllm.chat.session import SessionEvent

    from .garbage import GarbageTimes


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for did not work; `text` is for the person."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The thread is done: something else may be started."""


@dataclass(frozen=True, slots=True)
class Noted:
    """All is well, but the person should know `text`."""

    text: str


class LoadStopped(LocalLLMError):
    """Nobody waits for the model any more."""


WorkEvent = PromptRead | AnswerDelta | AnswerFinished | LoadProgress | Loaded | Failed | Noted | Ended


class AnswerThread:
    """Loads the model when needed and runs one answer. `take` may be called from the screen's thread at any time.

    `loading`: whether the model is not known to be loaded.
    """

    def __init__(
        self,
        desk: ChatDesk,
        answer: Generator[SessionEvent, None, None] | None,
        garbage: GarbageTimes,
        *,
        loading: bool = True,
    ) -> None:
        self._desk = desk
        self._garbage = garbage
        self._answer = answer
        self._lock = threading.Lock()
        self._closed = answer is not None  # to another answer
        self.backend = desk.backend  # what is loaded, and answers
        self.loading = loading  # the model is on its way
        self._loads = False  # there was something to load
        self._inbox: deque[WorkEvent] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def add(self, answer: Generator[SessionEvent, None, None]) -> bool:
        """An answer to run when the model, which is only being loaded, is ready; False when it is too late for that."""
        with self._lock:
            if self._closed:
                return False
            self._answer, self._closed = answer, True
            return True

    @property
    def answers(self) -> bool:
        """Whether there is an answer to make, or was."""
        return self._answer is not None

    @property
    def only_loads(self) -> bool:
        """Whether `add` would take an answer now."""
        return not self._closed

    def stop(self) -> None:
        """End the answer and keep the part; a model that is still loading is given up at its next step."""
        self._stopped.set()
        self._desk.stop()

    def take(self) -> list[WorkEvent]:
        """What has come since the last call, in order."""
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def join(self, timeout: float) -> None:
        """Wait until it is over, for a while."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            warm_up()
            note = self._desk.load(self._progress)
            if self._loads:
                self._garbage.after_loading()
            self.loading = False
            self._note(note)
            self._inbox.append(Loaded())
            with self._lock:
                self._closed = True
            if self._answer is not None and not self._stopped.is_set():
                self._note(self._desk.restore())
                self._garbage.before_answer()
                for event in self._answer:
                    self._inbox.append(event)
        except LoadStopped:
            pass
        except LocalLLMError as error:
            self._inbox.append(Failed(str(error)))
        except Exception as error:  # the chat must stay, whatever a model or a library does
            self._inbox.append(Failed(f"unexpected: {type(error).__name__}: {error}"))
        finally:
            self.loading, self._closed = False, True
            self._inbox.append(Ended())
            if self.answers:
                self._garbage.after_answer()

    def _progress(self, event: LoadProgress) -> None:
        if self._stopped.is_set():
            raise LoadStopped("loading was stopped")
        if not self._loads:
            self.loading = self._loads = True
            self._garbage.before_loading()
        self._inbox.append(event)

    def _note(self, text: str) -> None:
        if text:
            self._inbox.append(Noted(text))
