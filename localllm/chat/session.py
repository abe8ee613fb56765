"""One conversation with one model: every turn is on disk before anything else happens; part of an answer is a turn.

A session is driven from one thread at a time; `stop` may be called from any.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localllm.errors import LocalLLMError, RequestError
from localllm.events import Finished, PromptProgress, TextDelta, Usage

from .reasoning import Kind, ReasoningSplitter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localllm.conversations import ConversationStore, Message
    from localllm.events import Event

    from .backend import ChatBackend

SAVE_INTERVAL = 0.5  # seconds of answer that a crash may lose at most
TITLE_LENGTH = 60  # characters


@dataclass(frozen=True, slots=True)
class PromptRead:
    """How far the prompt is read."""

    total: int
    cached: int
    processed: int


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """New text of an answer or of the thinking before it."""

    message: int
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """The answer is whole, or was cut: `reason` as in `Finished`; `error` is for the user."""

    message: int
    reason: str
    usage: Usage
    tokens_per_second: float
    prompt_tokens_per_second: float
    first_token_seconds: float
    error: str | None = None


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

    def send(self, text: str) -> Iterator[SessionEvent]:
        """Append a question and stream the answer."""
        chat = self.store.conversation(self.conversation)
        if not chat.title:
            self.store.set_field(self.conversation, "title", title_of(text))
        question = self.store.add(self.conversation, chat.leaf, "user", text)
        return self._answer(question)

    def edit(self, message: int, text: str) -> Iterator[SessionEvent]:
        """Ask again with another text in place of a question: a new branch; the old one stays."""
        old = self.store.message(message)
        if old.role != "user":
            raise RequestError("only a question can be edited; ask again for another answer")
        return self._answer(self.store.add(self.conversation, old.parent, "user", text))

    def regenerate(self) -> Iterator[SessionEvent]:
        """Another answer to the last question: a branch beside the present one."""
        line = self.messages()
        while line and line[-1].role != "user":
            line.pop()
        if not line:
            raise RequestError("there is no question yet")
        return self._answer(line[-1].id)

    def resume(self) -> Iterator[SessionEvent]:
        """Go on with an answer that was stopped."""
        line = self.messages()
        if not line or line[-1].role != "assistant" or line[-1].parent is None:
            raise RequestError("there is no answer to continue")
        return self._answer(line[-1].parent, begun=line[-1])

    def stop(self) -> None:
        """End the answer that is being written; what is there stays as a turn."""
        self._stop.set()

    def _answer(self, question: int, begun: Message | None = None) -> Iterator[SessionEvent]:
        """The generator is created here, and starts at once, so that the question is kept even if nobody reads on."""
        chat = self.store.conversation(self.conversation)
        messages: list[dict[str, Any]] = [{"role": "system", "content": chat.system}] if chat.system else []
        messages += [{"role": m.role, "content": m.content} for m in self.store.path_to(question)]
        if begun is None:
            identifier = self.store.add(self.conversation, question, "assistant", "", state="partial")
            return self._stream(identifier, messages, chat.sampling, "", "")
        messages.append({"role": "assistant", "content": begun.content})
        return self._stream(begun.id, messages, chat.sampling, begun.content, begun.reasoning)

    def _stream(
        self, message: int, messages: list[dict[str, Any]], sampling: dict[str, Any], content: str, reasoning: str
    ) -> Iterator[SessionEvent]:
        self._stop.clear()
        splitter = ReasoningSplitter()
        texts: dict[Kind, str] = {"answer": content, "reasoning": reasoning}
        finished = Finished("cancelled")
        saved = time.monotonic()

        def keep(parts: list[tuple[Kind, str]]) -> Iterator[AnswerDelta]:
            for kind, text in parts:
                texts[kind] += text
                yield AnswerDelta(message, kind, text)

        try:
            for event in self._events(messages, sampling):
                if isinstance(event, PromptProgress):
                    yield PromptRead(event.total, event.cached, event.processed)
                elif isinstance(event, TextDelta):
                    yield from keep(splitter.push(event.text))
                    if time.monotonic() - saved > SAVE_INTERVAL:
                        self.store.write(message, texts["answer"], reasoning=texts["reasoning"])
                        saved = time.monotonic()
                else:
                    finished = event
            yield from keep(splitter.flush())
        except LocalLLMError as error:
            finished = Finished("error", error=str(error))
        finally:
            result = _figures(message, finished)
            self.store.write(
                message,
                texts["answer"],
                reasoning=texts["reasoning"],
                state="complete" if finished.reason in ("stop", "length") else "partial",
                figures={
                    "reason": result.reason,
                    "tokens": result.usage.completion_tokens,
                    "tokens_per_second": result.tokens_per_second,
                    "model": self.backend.name,
                },
            )
        yield result

    def _events(self, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> Iterator[Event]:
        stream = self.backend.stream(messages, sampling)
        for event in stream:
            yield event
            if self._stop.is_set() and not isinstance(event, Finished):
                close = getattr(stream, "close", None)
                if close is not None:
                    close()
                return


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
    )
