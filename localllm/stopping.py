"""Ends a text at a stop string, however the text is cut into chunks."""

from __future__ import annotations

from collections.abc import Iterable

from localllm.errors import RequestError


class StopMatcher:
    """Watches a text that comes in chunks for the first stop string that it completes.

    Nothing that belongs to the match or comes after it is ever returned, and no more is held back than could still
    become a match. Of stop strings that end at the same letter, the longest counts. What comes after a match is
    dropped. An empty stop string raises RequestError.
    """

    def __init__(self, stops: str | Iterable[str] | None) -> None:
        texts = [stops] if isinstance(stops, str) else list(stops or ())
        if "" in texts:
            raise RequestError("a stop string must not be empty", parameter="stop")
        self._candidates = [_Candidate(text) for text in dict.fromkeys(sorted(texts, key=len, reverse=True))]
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that can be shown now: this chunk and what was held back, up to a match or a possible one."""
        if self.matched is not None:
            return ""
        if not self._candidates:
            return text
        waiting = self._held + text
        for place, letter in enumerate(text, len(self._held) + 1):
            for candidate in self._candidates:
                if candidate.advance(letter):
                    self.matched, self._held = candidate.text, ""
                    return waiting[: place - len(candidate.text)]
        safe = len(waiting) - max(candidate.length for candidate in self._candidates)
        self._held = waiting[safe:]
        return waiting[:safe]

    def flush(self) -> str:
        """What is still held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class _Candidate:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt 1977)."""

    __slots__ = ("_borders", "length", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = 0
        self._borders = [0] * len(text)  # of each prefix, the longest shorter one that it ends with
        for place in range(1, len(text)):
            border = self._borders[place - 1]
            while border and text[place] != text[border]:
                border = self._borders[border - 1]
            self._borders[place] = border + (text[place] == text[border])

    def advance(self, letter: str) -> bool:
        """Take one letter; True when it completes the stop string, after which the candidate is spent."""
        while self.length and self.text[self.length] != letter:
            self.length = self._borders[self.length - 1]
        if self.text[self.length] == letter:
            self.length += 1
        return self.length == len(self.text)
