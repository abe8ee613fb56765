"""A suffix automaton over a text that grows: which longest ending of it occurred before, and where.

A token costs about two microseconds, however long the text is, and a quarter of a kilobyte (keys and values of a small
model take eighty times that). Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NONE, _BITS = -1, 32
_UPDATED = 32  # endings of a token that are told where they occur last: in a text of one token there are thousands


class SuffixAutomaton:
    """The `match_length` last tokens occur before, too, and end there at position `match_end` (mostly the latest).

    A state stands for all substrings that occur at the same places: the length of the longest of them, the state of its
    longest suffix that occurs in more places, where it occurred, and the states that tokens lead to. State 0 is the
    empty text. All of it are numbers in a few large containers: many small ones would keep the garbage collector busy.
    """

    def __init__(self, start: int = 0) -> None:
        """`start`: the position of the first token."""
        self._following: dict[int, int] = {}  # state and token -> state
        self._suffix, self._length, self._end = array("i", [_NONE]), array("i", [0]), array("i", [_NONE])
        # The tokens that lead on from a state, as a list of links: its first one, and for each the token and the next.
        self._first, self._token, self._more = array("i", [_NONE]), array("i"), array("i")
        self._last = 0
        self.start = self.count = start  # positions: of the first token, and behind the last one
        self.match_length, self.match_end = 0, _NONE

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        following, suffixes, lengths, ends = self._following, self._suffix, self._length, self._end
        for token in tokens:
            state = self._last
            new = self._add(lengths[state] + 1, self.count)
            while state != _NONE and state << _BITS | token not in following:
                self._lead(state, token, new)
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

    def _add(self, length: int, end: int) -> int:
        self._suffix.append(0)
        self._length.append(length)
        self._end.append(end)
        self._first.append(_NONE)
        return len(self._length) - 1

    def _lead(self, state: int, token: int, target: int) -> None:
        """A token that led nowhere leads to `target`."""
        self._following[state << _BITS | token] = target
        self._token.append(token)
        self._more.append(self._first[state])
        self._first[state] = len(self._token) - 1

    def _shared(self, state: int, token: int) -> int:
        """The state of what `state` stands for, and `token`; longer substrings that occur in fewer places leave it."""
        following, suffixes, lengths = self._following, self._suffix, self._length
        found = following[state << _BITS | token]
        if lengths[found] == lengths[state] + 1:
            return found
        part = self._add(lengths[state] + 1, self._end[found])
        link = self._first[found]
        while link != _NONE:
            self._lead(part, self._token[link], following[found << _BITS | self._token[link]])
            link = self._more[link]
        suffixes[part], suffixes[found] = suffixes[found], part
        while state != _NONE and following.get(state << _BITS | token) == found:
            following[state << _BITS | token] = part
            state = suffixes[state]
        return part
