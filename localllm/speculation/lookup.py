"""Prompt lookup: what followed the last time that the text ended like this. Free, and right where text is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .draft import NOTHING, Draft, chain
from .suffixes import SuffixAutomaton

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

MOST_TOKENS = 1 << 16  # the latest ones of the text, which are searched; up to twice as many before older ones go
_SHORTEST = 2  # tokens of a match


class LookupDrafter:
    """Searches the whole conversation, prompt and answer. The grade is the length of the match, in powers of two."""

    cheap, wants_hidden = True, False

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._suffixes = SuffixAutomaton()

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None = None) -> Draft:
        """The tokens behind the latest occurrence of the longest ending that occurred before."""
        suffixes = self._suffixes
        if len(tokens) - suffixes.start > 2 * self._most_tokens:
            suffixes = self._suffixes = SuffixAutomaton(len(tokens) - self._most_tokens)
        suffixes.extend(tokens[suffixes.count :])
        length = suffixes.match_length
        if length < _SHORTEST:
            return NOTHING
        at = suffixes.match_end + 1
        found = list(tokens[at : at + most])
        period = len(tokens) - at
        while len(found) < most:  # the match overlaps the end: the text repeats itself
            found.append(found[-period])
        grades = ((length + place).bit_length() for place in range(most))  # those before it were right: a longer match
        return chain(found, grades)

    def close(self) -> None:
        """Forget the text."""
        self._suffixes = SuffixAutomaton()
