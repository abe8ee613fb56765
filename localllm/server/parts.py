"""What an answer is made of, and how its text is told apart while it streams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localllm.chat import ReasoningSplitter


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of the answer, or of the thinking before it."""

    kind: Literal["content", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call of a tool; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call whose arguments are still being written: `CallArguments` follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of the arguments of the call that was begun last."""

    text: str


CallEvent = CallBegun | CallArguments
Part = TextPart | CallPart | CallEvent
Found = list[str | CallPart | CallBegun | CallArguments]


class AnswerReader(Protocol):
    """Reads one answer's text as it comes."""

    def push(self, text: str) -> list[Part]:
        """What is certain now."""

    def flush(self, *, cut: bool = False) -> list[Part]:
        """The rest, at the end; `cut`: the answer was not over."""


class ToolReader(Protocol):
    """Finds calls in the answer proper (thinking is left out before)."""

    def push(self, text: str) -> Found:
        """What is certain now."""

    def flush(self, *, cut: bool = False) -> Found:
        """The rest, at the end."""


class NoTools:
    """All is text."""

    def push(self, text: str) -> Found:
        """The text."""
        return [text]

    def flush(self, *, cut: bool = False) -> Found:
        """Nothing is held back."""
        return []


class TaggedReader:
    """First thinking between tags, then text and calls. `hidden`: control tokens that are not for the reader."""

    def __init__(self, splitter: ReasoningSplitter, tools: ToolReader, hidden: re.Pattern[str] | None = None) -> None:
        self._splitter = splitter
        self._tools = tools
        self._hidden = hidden

    def push(self, text: str) -> list[Part]:
        """What is certain now."""
        return self._read(self._splitter.push(text))

    def flush(self, *, cut: bool = False) -> list[Part]:
        """The rest, at the end."""
        return [*self._read(self._splitter.flush()), *self._parts(self._tools.flush(cut=cut))]

    def _read(self, split: Iterable[tuple[str, str]]) -> list[Part]:
        parts: list[Part] = []
        for kind, text in split:
            if kind == "reasoning":
                parts.append(TextPart("reasoning", text))
            else:
                parts += self._parts(self._tools.push(text))
        return parts

    def _parts(self, found: Found) -> list[Part]:
        parts: list[Part] = []
        for item in found:
            if not isinstance(item, str):
                parts.append(item)
                continue
            text = item if self._hidden is None else self._hidden.sub("", item)
            if text:
                parts.append(TextPart("content", text))
        return parts


class PlainReader:
    """All is the answer, as it is written."""

    def push(self, text: str) -> list[Part]:
        """The text."""
        return [TextPart("content", text)] if text else []

    def flush(self, *, cut: bool = False) -> list[Part]:
        """Nothing is held back."""
        return []
