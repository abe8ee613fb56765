"""The automaton against a search by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localllm.speculation.suffixes import SuffixAutomaton


def longest_repeat(text: list[int]) -> int:
    """Tokens of the longest ending of `text` that occurs in it before."""
    for length in range(len(text) - 1, 0, -1):
        ending = text[len(text) - length :]
        if any(text[start : start + length] == ending for start in range(len(text) - length)):
            return length
    return 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_longest_ending_that_occurred_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, 1):
        automaton.extend([token])
        length, end = automaton.match_length, automaton.match_end
        assert automaton.count == count
        assert length == longest_repeat(text[:count])
        if length:
            assert end < count - 1
            assert text[end - length + 1 : end + 1] == text[count - length : count]


@given(st.lists(st.integers(0, 5), min_size=4, max_size=30), st.lists(st.integers(6, 9), max_size=5))
def test_the_latest_of_several_places(block: list[int], between: list[int]) -> None:
    automaton = SuffixAutomaton()
    text = [*block, 10, *block, 11, *between, *block]
    automaton.extend(text)
    if automaton.match_length == len(block):
        assert automaton.match_end == 2 * len(block)
