"""Tells the thinking of a model from its answer while text streams in.

Models put their thinking between tags (`<think>` of DeepSeek and Qwen, `<|channel|>analysis` of gpt-oss is split by its
own template's markers). A tag may arrive in pieces, so text that could begin one is held back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["reasoning", "answer"]


@dataclass(frozen=True, slots=True)
class Tags:
    """What opens and closes the thinking."""

    opening: str
    closing: str


KNOWN_TAGS = (
    Tags("<think>", "</think>"),
    Tags("<thinking>", "</thinking>"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<|channel|>analysis<|message|>", "<|end|>"),
)


class ReasoningSplitter:
    """Splits one answer. `begun`: the answer goes on from here (thinking may have begun in the prompt).

    Only thinking at the very start counts (white space before it is allowed): a tag inside an answer is text.
    """

    def __init__(self, tags: tuple[Tags, ...] = KNOWN_TAGS, *, begun: Kind | None = None) -> None:
        self._tags = tags
        self._closing = tuple(t.closing for t in tags) if begun == "reasoning" else ()
        self._state: Literal["start", "reasoning", "answer"] = begun or "start"
        self._held = ""
        self._trim = False  # blank lines right after a tag are layout, not text

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Take the next piece; returns what is certain now, as (kind, text) in order."""
        self._held += text
        parts: list[tuple[Kind, str]] = []
        if self._state == "start":
            self._begin()
        if self._state == "reasoning":
            self._think(parts)
        if self._state == "answer" and self._trimmed():
            parts.append(("answer", self._held))
            self._held = ""
        return parts

    def flush(self) -> list[tuple[Kind, str]]:
        """The rest, at the end of the answer."""
        rest, self._held = self._held, ""
        return [("reasoning" if self._state == "reasoning" else "answer", rest)] if rest else []

    def _begin(self) -> None:
        text = self._held.lstrip()
        for tags in self._tags:
            if text.startswith(tags.opening):
                self._state, self._closing = "reasoning", (tags.closing,)
                self._held, self._trim = text[len(tags.opening) :], True
                return
        if text and not any(tags.opening.startswith(text) for tags in self._tags):
            self._state = "answer"

    def _trimmed(self) -> bool:
        """Drop blank lines after a tag; returns whether text is left."""
        if self._trim:
            self._held = self._held.lstrip("\n")
            self._trim = not self._held
        return bool(self._held)

    def _think(self, parts: list[tuple[Kind, str]]) -> None:
        if not self._trimmed():
            return
        ends = [(self._held.find(tag), tag) for tag in self._closing if tag in self._held]
        if ends:
            index, tag = min(ends)
            thought, self._held = self._held[:index], self._held[index + len(tag) :]
            self._state, self._trim = "answer", True
        else:
            keep = max((_overlap(self._held, tag) for tag in self._closing), default=0)
            thought = self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
        if thought:
            parts.append(("reasoning", thought))


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
