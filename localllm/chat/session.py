"""One conversation with one model: every turn is on disk before anything else happens; part of an answer is a turn.

A session is driven from one thread at a time; `stop` may be called from any.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localllm.errors import LocalLLMError, RequestError
from localllm.events import Finished, PromptProgress, TextDelta, Timings, Usage

from .reasoning import Kind, ReasoningSplitter
from .sampling import effective

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from localllm.conversations import Conversation, ConversationStore, Message
    from localllm.events import Event

    from .backend import ChatBackend

SAVE_INTERVAL = 0.5  # seconds of answer that a crash may lose at most, where the disk is quick
SAVE_SHARE = 0.05  # of the time may go into saving
TITLE_LENGTH = 60  # characters


@dataclass(frozen=True, slots=True)
class PromptRead:
    """How far the prompt is read."""

    total: int
    cached: int
    processed: int


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """New text of an answer or of the thinking before it, and how many tokens made it."""

    message: int
    kind: Kind
    text: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """The answer is whole, or was cut: `reason` as in `Finished`; `error` and `note` are for the user."""

    message: int
    reason: str
    usage: Usage
    tokens_per_second: float
    prompt_tokens_per_second: float
    first_token_seconds: float
    error: str | None = None
    note: str | None = None


SessionEvent = PromptRead | AnswerDelta | AnswerFinished


class ChatSession:
    """A conversation of the store, talking to a backend."""

    def __init__(self, store: ConversationStore, backend: ChatBackend, conversation: int) -> None:
        self.store = store
        self.backend = backend
        self.conversation = conversation
        self._stop = threading.Event()

    def messages(self) -> list[Message]:
        """The current line of turns."""
        return self.store.path_to(self.store.conversation(self.conversation).leaf)

    def send(self, text: str) -> Generator[SessionEvent, None, None]:
        """Append a question and stream the answer."""
        chat = self.store.conversation(self.conversation)
        if not chat.title:
            self.store.set_field(self.conversation, "title", title_of(text))
        question = self.store.add(self.conversation, chat.leaf, "user", text)
        return self._answer(question)

    def edit(self, message: int, text: str) -> Generator[SessionEvent, None, None]:
        """Ask again with another text in place of a question: a new branch; the old one stays."""
        old = self.store.message(message)
        if old.role != "user":
            raise RequestError("only a question can be edited; ask again for another answer")
        return self._answer(self.store.add(self.conversation, old.parent, "user", text))

    def regenerate(self) -> Generator[SessionEvent, None, None]:
        """Another answer to the last question: a branch beside the present one."""
        line = self.messages()
        while line and line[-1].role != "user":
            line.pop()
        if not line:
            raise RequestError("there is no question yet")
        return self._answer(line[-1].id)

    def resume(self) -> Generator[SessionEvent, None, None]:
        """Go on with an answer that was stopped."""
        line = self.messages()
        if not line or line[-1].role != "assistant" or line[-1].parent is None:
            raise RequestError("there is no answer to continue")
        return self._answer(line[-1].parent, begun=line[-1])

    def stop(self) -> None:
        """End the answer that is being written; what is there stays as a turn."""
        self._stop.set()
        self.backend.cancel()

    def _answer(self, question: int, begun: Message | None = None) -> Generator[SessionEvent, None, None]:
        """The question is kept, and the place of the answer made, before the first event is asked for."""
        self._stop.clear()
        chat = self.store.conversation(self.conversation)
        messages = messages_for_model(chat, self.store.path_to(question))
        sampling = effective(self.backend.sampling, chat.sampling)
        if begun is None:
            identifier = self.store.add(self.conversation, question, "assistant", "", state="partial")
            return self._stream(identifier, messages, sampling, "", "")
        messages.append({"role": "assistant", "content": begun.content, "reasoning": begun.reasoning})
        return self._stream(begun.id, messages, sampling, begun.content, begun.reasoning)

    def _stream(
        self, message: int, messages: list[dict[str, Any]], sampling: dict[str, Any], content: str, reasoning: str
    ) -> Generator[SessionEvent, None, None]:
        splitter = ReasoningSplitter(begun="answer" if content else "reasoning" if reasoning else None)
        texts: dict[Kind, str] = {"answer": content, "reasoning": reasoning}
        finished: Finished | None = None
        error: str | None = None
        timer = _SaveTimer()
        count = _Count()
        tokens = 0
        try:
            for event in self._events(messages, sampling):
                if isinstance(event, PromptProgress):
                    count.prompt = event
                    yield PromptRead(event.total, event.cached, event.processed)
                elif isinstance(event, TextDelta):
                    count.add(len(event.ids))
                    tokens += len(event.ids)
                    for kind, text in splitter.push(event.text):
                        texts[kind] += text
                        yield AnswerDelta(message, kind, text, tokens)
                        tokens = 0
                    if timer.due():
                        with timer:
                            self.store.write(message, texts["answer"], reasoning=texts["reasoning"])
                else:
                    finished = event
            for kind, text in splitter.flush():
                texts[kind] += text
                yield AnswerDelta(message, kind, text, tokens)
        except LocalLLMError as failure:
            error = str(failure)
        finally:
            finished = finished or count.finished(error)
            result = _figures(message, finished)
            self.store.write(
                message,
                texts["answer"],
                reasoning=texts["reasoning"],
                state="complete" if finished.reason in ("stop", "length") else "partial",
                figures={
                    "reason": result.reason,
                    "error": result.error,
                    "note": result.note,
                    "model": self.backend.name,
                    "tokens": result.usage.completion_tokens,
                    "prompt_tokens": result.usage.prompt_tokens,
                    "evicted_tokens": result.usage.evicted_tokens,
                    "tokens_per_second": result.tokens_per_second,
                    "prompt_tokens_per_second": result.prompt_tokens_per_second,
                    "first_token_seconds": result.first_token_seconds,
                },
            )
        yield result

    def _events(self, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
        stream = self.backend.stream(messages, sampling)
        try:
            for event in stream:
                if self._stop.is_set() and not isinstance(event, Finished):
                    self.backend.cancel()  # again: the first time it may not have begun yet
                else:
                    yield event
        finally:
            stream.close()


class _Count:
    """Counts an answer from outside, for the figures of one that was cut."""

    def __init__(self) -> None:
        self.prompt = PromptProgress(0, 0, 0)
        self._started = self._first = self._last = time.monotonic()
        self._tokens = 0

    def add(self, tokens: int) -> None:
        self._last = time.monotonic()
        if not self._tokens:
            self._first = self._last
        self._tokens += tokens

    def finished(self, error: str | None) -> Finished:
        usage = Usage(self.prompt.total, self._tokens, self.prompt.cached)
        wait = self._first - self._started
        timings = Timings(0.0, wait, wait, self._last - self._first)
        return Finished("cancelled" if error is None else "error", usage, timings, error=error)


class _SaveTimer:
    """When a growing answer is to be saved again: often, but never for more than a small share of the time."""

    def __init__(self) -> None:
        self._next = time.monotonic() + SAVE_INTERVAL
        self._started = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        now = time.monotonic()
        self._next = now + max(SAVE_INTERVAL, (now - self._started) / SAVE_SHARE)


def messages_for_model(chat: Conversation, line: Sequence[Message]) -> list[dict[str, Any]]:
    """A line of turns as a backend wants it, the system prompt first; without answers that failed before a word."""
    system = [{"role": "system", "content": chat.system}] if chat.system else []
    turns = [{"role": turn.role, "content": turn.content} for turn in line if not turn.is_blank]
    return [*system, *turns]


def title_of(text: str) -> str:
    """The first words of a question, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


def _figures(message: int, finished: Finished) -> AnswerFinished:
    usage, timings = finished.usage, finished.timings
    written = max(0, usage.completion_tokens - 1)
    read = usage.prompt_tokens - usage.cached_tokens
    return AnswerFinished(
        message=message,
        reason=finished.reason,
        usage=usage,
        tokens_per_second=written / timings.decode_seconds if timings.decode_seconds else 0.0,
        prompt_tokens_per_second=read / timings.prompt_seconds if timings.prompt_seconds else 0.0,
        first_token_seconds=timings.first_token_seconds,
        error=finished.error,
        note=finished.note,
    )
