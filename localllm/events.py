"""What a generation reports while it runs; the same events reach the terminal, the server and the chat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ErrorKind = Literal["memory", "request", "execution"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability (natural log of the softmax of the raw logits) and its bytes."""

    token: int
    logprob: float
    bytes: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The chosen token and the best alternatives, sorted from the likeliest."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Prompt tokens: all, found in the cache, and processed so far (cached ones included)."""

    total: int
    cached: int
    processed: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text, complete characters only, and the ids that made it (text may lag behind ids)."""

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `evicted_tokens` left the window; drafted and accepted ones are speculation's."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    evicted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: waiting in the queue, prompt processing, from submission to the first token, and decoding."""

    queue_seconds: float = 0.0
    prompt_seconds: float = 0.0
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every generation. `error` is the text for the user when `reason` is "error".

    `error_kind`: too little memory or too few KV pages now, a request that can never work, or anything else. `note`:
    what a person who chats should know about the end, mostly nothing.
    """

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    stop_text: str | None = None  # the stop string that matched
    error: str | None = None
    error_kind: ErrorKind | None = None
    note: str | None = None


Event = PromptProgress | TextDelta | Finished
