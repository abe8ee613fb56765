"""What the store hands out: conversations, messages and search hits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
State = Literal["complete", "partial"]  # partial: still being written, or stopped


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat. `leaf` is the message that the chat ends with now: its ancestors are what the model sees."""

    id: int
    title: str
    model: str
    system: str
    sampling: dict[str, Any]
    leaf: int | None
    created: float  # seconds since the epoch
    updated: float
    deleted: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A turn. `parent` is the turn before it; turns with the same parent are branches. `figures`: speeds and counts."""

    id: int
    conversation: int
    parent: int | None
    role: Role
    content: str
    reasoning: str = ""
    state: State = "complete"
    created: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def is_blank(self) -> bool:
        """Whether it is the place of an answer that never began: shown with its error, told to no model."""
        return self.role == "assistant" and not (self.content or self.reasoning)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that matches, with the words around the match; matches are between \\x02 and \\x03."""

    conversation: Conversation
    message: int
    excerpt: str
