"""A suffix automaton over token ids: where did the longest ending of this text occur before? Grows token by token.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). A token costs amortised constant
time and at most two states, whatever repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_REFRESHED = 4  # shorter endings whose latest place is noted with every token


class SuffixAutomaton:
    """All substrings of a growing sequence, in linear space."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._recent = [-1]  # where the state's strings ended last (the state of the newest ending: before that)
        self._last = 0
        self.count = 0
        self.match_length = 0  # of the longest ending of the text that occurs in it before
        self.match_end = -1  # position of the last token of that occurrence

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        transitions, link, length = self._next, self._link, self._length
        position = self.count
        self.count += 1
        state = self._state(length[self._last] + 1, {}, 0, position)
        node = self._last
        while node >= 0 and token not in transitions[node]:
            transitions[node][token] = state
            node = link[node]
        if node >= 0:
            target = transitions[node][token]
            if length[target] != length[node] + 1:
                target = self._split(node, token, target)
            link[state] = target
        self._last = state
        self._note(link[state], position)

    def _split(self, node: int, token: int, target: int) -> int:
        """A state for the strings of `target` that are not longer than those of `node` and the token."""
        transitions, link = self._next, self._link
        clone = self._state(self._length[node] + 1, dict(transitions[target]), link[target], self._recent[target])
        while node >= 0 and transitions[node].get(token) == target:
            transitions[node][token] = clone
            node = link[node]
        link[target] = clone
        return clone

    def _state(self, length: int, transitions: dict[int, int], link: int, recent: int) -> int:
        self._length.append(length)
        self._next.append(transitions)
        self._link.append(link)
        self._recent.append(recent)
        return len(self._length) - 1

    def _note(self, state: int, position: int) -> None:
        """The longest ending that is not new, and that its state and a few shorter ones end here as well."""
        self.match_length, self.match_end = self._length[state], self._recent[state]
        for _ in range(_REFRESHED):
            if state <= 0:
                return
            self._recent[state] = position
            state = self._link[state]
