"""One request's generations, from the engine's events to the parts of each answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from localllm.events import Finished, TextDelta, Usage

from .errors import APIError, bad_request, shutting_down, unavailable
from .parts import CallArguments, CallBegun, CallPart, TextPart

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from localllm.engine import Generation
    from localllm.events import Event, TokenLogprobs

    from .parts import AnswerReader, Part
    from .service import Service

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to one answer. `finished` is set once, at its end."""

    index: int
    parts: tuple[Part, ...] = ()
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finished: Finished | None = None
    reason: FinishReason | None = None

    @property
    def text(self) -> str:
        """The answer's text in it."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart) and part.kind == "content")


@dataclass(slots=True)
class Answer:
    """A whole answer, as its pieces add up."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    reasoning_tokens: int = 0
    reason: FinishReason = "stop"
    finished: Finished | None = None

    def add(self, piece: Piece) -> None:
        """The next piece."""
        for part in piece.parts:
            if isinstance(part, CallPart):
                self.calls.append(part)
            elif isinstance(part, CallBegun):
                self.calls.append(CallPart(part.name, ""))
            elif isinstance(part, CallArguments):
                self.calls[-1] = replace(self.calls[-1], arguments=self.calls[-1].arguments + part.text)
            elif part.kind == "reasoning":
                self.reasoning += part.text
            else:
                self.content += part.text
        if piece.parts and isinstance(piece.parts[0], TextPart) and piece.parts[0].kind == "reasoning":
            self.reasoning_tokens += len(piece.ids)
        self.logprobs += piece.logprobs
        if piece.finished is not None:
            self.finished = piece.finished
            self.usage = piece.finished.usage
            self.reason = piece.reason or "stop"


def _failed(event: Finished) -> APIError:
    text = event.error or "the generation failed"
    if event.error_kind == "memory":
        return unavailable(text, "out_of_memory", 5)
    if event.error_kind == "request":
        return bad_request(text, code="invalid_value")
    return APIError(500, text, kind="server_error", code="generation_failed")


class _Choice:
    """Reads one answer's events."""

    def __init__(self, index: int, reader: AnswerReader, most_calls: int | None) -> None:
        self._index = index
        self._reader = reader
        self._most_calls = most_calls
        self._calls = 0

    def read(self, event: TextDelta | Finished) -> Piece:
        """The piece that an event makes; APIError when the generation failed."""
        if isinstance(event, TextDelta):
            return Piece(self._index, self._limited(self._reader.push(event.text)), event.ids, event.logprobs)
        if event.reason == "error":
            raise _failed(event)
        if event.reason == "cancelled" and event.error is None:
            raise APIError(503, "the answer was cut: the model was closed", kind="server_error", code="cancelled")
        reason: FinishReason = "stop" if event.reason == "stop" else "length"
        parts = self._limited(self._reader.flush(cut=reason == "length"))
        if self._calls and reason == "stop":
            reason = "tool_calls"
        return Piece(self._index, parts, finished=event, reason=reason)

    def _limited(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        kept = []
        for part in parts:
            if isinstance(part, CallPart | CallBegun):
                self._calls += 1
            if not isinstance(part, TextPart) and self._most_calls is not None and self._calls > self._most_calls:
                continue
            kept.append(part)
        return tuple(kept)


async def pieces(
    service: Service,
    generations: Sequence[Generation],
    per_generation: int,
    reader: Callable[[], AnswerReader],
    most_calls: int | None = None,
) -> AsyncGenerator[Piece, None]:
    """All answers' pieces as they come; closing it cancels what is unfinished. APIError when a generation fails."""
    choices = [_Choice(index, reader(), most_calls) for index in range(len(generations) * per_generation)]
    async with aclosing(_events(generations, per_generation)) as events:
        async for index, event in events:
            if isinstance(event, Finished):
                service.metrics.observe(event)
                if event.reason == "cancelled" and service.cut_off.is_set():
                    raise shutting_down()
            if isinstance(event, TextDelta | Finished):
                piece = choices[index].read(event)
                if piece.parts or piece.ids or piece.finished:
                    yield piece


async def _events(generations: Sequence[Generation], per_generation: int) -> AsyncGenerator[tuple[int, Event], None]:
    if len(generations) == 1:
        async with aclosing(_stream(generations[0])) as stream:
            async for item in stream:
                yield item
        return
    queue: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue()

    async def pump(base: int, generation: Generation) -> None:
        try:
            async with aclosing(_stream(generation)) as stream:
                async for index, event in stream:
                    queue.put_nowait((base + index, event))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    pumps = [asyncio.create_task(pump(i * per_generation, g)) for i, g in enumerate(generations)]
    left = len(pumps)
    try:
        while left:
            got = await queue.get()
            if isinstance(got, BaseException):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _stream(generation: Generation) -> AsyncGenerator[tuple[int, Event], None]:
    try:
        async for item in generation.stream():
            yield item
    finally:
        generation.cancel()


async def collect(stream: AsyncGenerator[Piece, None], count: int) -> list[Answer]:
    """All answers, whole."""
    answers = [Answer() for _ in range(count)]
    async with aclosing(stream):
        async for piece in stream:
            answers[piece.index].add(piece)
    return answers


def usage_object(answers: Sequence[Answer], per_prompt: int) -> dict[str, Any]:
    """Counts over all answers; a prompt counts once for all of its answers."""
    prompts = [answer.usage for answer in answers[::per_prompt]]
    prompt = sum(usage.prompt_tokens for usage in prompts)
    completion = sum(answer.usage.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)},
        "evicted_tokens": sum(answer.usage.evicted_tokens for answer in answers),
        "drafted_tokens": sum(answer.usage.drafted_tokens for answer in answers),
        "accepted_tokens": sum(answer.usage.accepted_tokens for answer in answers),
    }


def timings_object(answers: Sequence[Answer]) -> dict[str, float]:
    """Seconds of the first answer."""
    finished = answers[0].finished
    if finished is None:
        return {}
    timings = finished.timings
    return {
        "queue_seconds": round(timings.queue_seconds, 6),
        "prompt_seconds": round(timings.prompt_seconds, 6),
        "first_token_seconds": round(timings.first_token_seconds, 6),
        "decode_seconds": round(timings.decode_seconds, 6),
    }


def new_id(prefix: str) -> str:
    """An id that nothing else has."""
    return f"{prefix}{uuid.uuid4().hex}"


def now() -> int:
    """Unix time."""
    return int(time.time())
