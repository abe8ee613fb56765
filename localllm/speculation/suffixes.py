"""A suffix automaton over a text that grows: which longest ending of it occurred before, and where.

A token costs about two microseconds, however long the text is, and 105 bytes (keys and values of a small model take two
hundred times that). Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985.
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
        self._suffix, self._length, self._end = array("i", [_NONE]), array("i", [0]), array("i", [_NONE])
        # From most states a single token leads on: the first one of each, and where it leads.
        self._first, self._to = array("i", [_NONE]), array("i", [_NONE])
        # More of them are in a dictionary, and in a list of links: where it begins, for each the token and the next.
        self._following: dict[int, int] = {}  # state and token -> state
        self._link, self._token, self._more = array("i", [_NONE]), array("i"), array("i")
        self._last = 0
        self.start = self.count = start  # positions: of the first token, and behind the last one
        self.match_length, self.match_end = 0, _NONE

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        following, first = self._following, self._first
        suffixes, lengths, ends = self._suffix, self._length, self._end
        for token in tokens:
            state = self._last
            new = self._add(lengths[state] + 1, self.count)
            while state != _NONE and first[state] != token and state << _BITS | token not in following:
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
        self._to.append(_NONE)
        self._link.append(_NONE)
        return len(self._length) - 1

    def _lead(self, state: int, token: int, target: int) -> None:
        """A token that led nowhere leads to `target`."""
        if self._first[state] == _NONE:
            self._first[state], self._to[state] = token, target
            return
        self._following[state << _BITS | token] = target
        self._token.append(token)
        self._more.append(self._link[state])
        self._link[state] = len(self._token) - 1

    def _behind(self, state: int, token: int) -> int:
        """Where a token leads to."""
        if self._first[state] == token:
            return self._to[state]
        return self._following.get(state << _BITS | token, _NONE)

    def _shared(self, state: int, token: int) -> int:
        """The state of what `state` stands for, and `token`; longer substrings that occur in fewer places leave it."""
        suffixes, lengths = self._suffix, self._length
        found = self._behind(state, token)
        if lengths[found] == lengths[state] + 1:
            return found
        part = self._add(lengths[state] + 1, self._end[found])
        self._first[part], self._to[part] = self._first[found], self._to[found]
        link = self._link[found]
        while link != _NONE:
            self._lead(part, self._token[link], self._following[found << _BITS | self._token[link]])
            link = self._more[link]
        suffixes[part], suffixes[found] = suffixes[found], part
        while state != _NONE and self._behind(state, token) == found:
            if self._first[state] == token:
                self._to[state] = part
            else:
                self._following[state << _BITS | token] = part
            state = suffixes[state]
        return part
