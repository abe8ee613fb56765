"""Prompt lookup: what followed the last time that the text ended like this. Free, and right where text is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .draft import NOTHING, Draft, chain
from .suffixes import SuffixAutomaton

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

MOST_TOKENS = 1 << 16  # of the text that are searched; then it is the newer half of them
_SHORTEST = 2  # tokens of a match


class LookupDrafter:
    """Searches the whole conversation, prompt and answer. The grade is the length of the match, in powers of two."""

    cheap, wants_hidden = True, False

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._automaton = SuffixAutomaton()
        self._start = 0  # the text's token that is the automaton's first

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None = None) -> Draft:
        """The tokens behind the latest occurrence of the longest ending that occurred before."""
        self._follow(tokens)
        length = self._automaton.match_length
        if length < _SHORTEST:
            return NOTHING
        at = self._start + self._automaton.match_end + 1
        found = list(tokens[at : at + most])
        period = len(tokens) - at
        while len(found) < most:  # the match overlaps the end: the text repeats itself
            found.append(found[-period])
        return chain(found, min(length, 64).bit_length())

    def _follow(self, tokens: Sequence[int]) -> None:
        if len(tokens) - self._start > self._most_tokens:
            self._automaton = SuffixAutomaton()
            self._start = len(tokens) - self._most_tokens // 2
        self._automaton.extend(tokens[self._start + self._automaton.count :])

    def close(self) -> None:
        """Forget the text."""
        self._automaton = SuffixAutomaton()
