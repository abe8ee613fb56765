"""A suffix automaton over a text that grows: which longest ending of it occurred before, and where.

A token costs about a microsecond, however long the text is, and half a kilobyte (keys and values of a small model take
forty times that). Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NONE = -1
_UPDATED = 32  # endings of a token that are told where they occur last: in a text of one token there are thousands


class SuffixAutomaton:
    """The `match_length` last tokens occur before, too, and end there at position `match_end` (mostly the latest).

    A state stands for all substrings that occur at the same places: the length of the longest of them, the state of its
    longest suffix that occurs in more places, where it occurred, and the states that tokens lead to. State 0 is the
    empty text.
    """

    def __init__(self, start: int = 0) -> None:
        """`start`: the position of the first token."""
        self._following: list[dict[int, int]] = [{}]
        self._suffix, self._length, self._end = [_NONE], [0], [_NONE]
        self._last = 0
        self.start = self.count = start  # positions: of the first token, and behind the last one
        self.match_length, self.match_end = 0, _NONE

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        following, suffixes, lengths, ends = self._following, self._suffix, self._length, self._end
        for token in tokens:
            state, new = self._last, len(lengths)
            following.append({})
            suffixes.append(0)
            lengths.append(lengths[state] + 1)
            ends.append(self.count)
            while state != _NONE and token not in following[state]:
                following[state][token] = new
                state = suffixes[state]
            if state != _NONE:
                suffixes[new] = self._shared(state, token)
            self._last, state = new, suffixes[new]
            self.match_length, self.match_end = lengths[state], ends[state]
            for _ in range(_UPDATED):
                if state <= 0:
                    break
                ends[state] = self.count
                state = suffixes[state]
            self.count += 1

    def _shared(self, state: int, token: int) -> int:
        """The state of what `state` stands for, and `token`; longer substrings that occur in fewer places leave it."""
        following, suffixes, lengths = self._following, self._suffix, self._length
        found = following[state][token]
        if lengths[found] == lengths[state] + 1:
            return found
        part = len(lengths)
        following.append(following[found].copy())
        suffixes.append(suffixes[found])
        lengths.append(lengths[state] + 1)
        self._end.append(self._end[found])
        suffixes[found] = part
        while state != _NONE and following[state].get(token) == found:
            following[state][token] = part
            state = suffixes[state]
        return part
