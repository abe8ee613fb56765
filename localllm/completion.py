"""A finished answer, and how events add up to one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localllm.errors import ExecutionError, LocalLLMError, OutOfMemoryError, RequestError

from .events import Finished, FinishReason, TextDelta, Timings, TokenLogprobs, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .events import Event


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer: text, token ids, why it ended, counts, seconds, and log-probabilities when asked for."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop_text: str | None = None


def failed(finished: Finished) -> LocalLLMError:
    """What went wrong, for the user: OutOfMemoryError, RequestError or ExecutionError."""
    text = finished.error or "the generation failed"
    if finished.error_kind == "memory":
        return OutOfMemoryError(text)
    return RequestError(text) if finished.error_kind == "request" else ExecutionError(text)


def collect(events: Iterable[Event]) -> Completion:
    """Run a generation to its end; raises `failed` when it failed."""
    texts: list[str] = []
    ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    finished = Finished("cancelled")
    for event in events:
        if isinstance(event, TextDelta):
            texts.append(event.text)
            ids += event.ids
            logprobs += event.logprobs
        elif isinstance(event, Finished):
            finished = event
    if finished.reason == "error":
        raise failed(finished)
    return Completion(
        "".join(texts),
        tuple(ids),
        finished.reason,
        finished.usage,
        finished.timings,
        tuple(logprobs),
        finished.stop_text,
    )
