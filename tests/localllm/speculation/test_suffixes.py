"""The suffix automaton against a search by hand."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from localllm.speculation.suffixes import SuffixAutomaton


def longest_repeat(text: list[int]) -> tuple[int, int]:
    """Tokens of the longest ending of `text` that occurs before, and where that ends last."""
    best = (0, -1)
    for end in range(len(text) - 1):
        length = 0
        while length <= end and text[end - length] == text[len(text) - 1 - length]:
            length += 1
        if length and length >= best[0]:
            best = (length, end)
    return best


@given(st.lists(st.integers(0, 3), min_size=1, max_size=120), st.integers(0, 1000))
def test_the_longest_ending_that_occurred_before(text: list[int], start: int) -> None:
    growing = SuffixAutomaton(start)
    for count in range(1, len(text) + 1):
        growing.extend(text[count - 1 : count])
        length, end = longest_repeat(text[:count])
        assert growing.count == start + count
        assert growing.match_length == length
        if not length:
            assert growing.match_end == -1
            continue
        place = growing.match_end - start + 1
        assert place < count
        assert text[place - length : place] == text[count - length : count]
        if count <= 32:
            assert place - 1 == end  # of many that are nested in each other not all learn their latest place
    at_once = SuffixAutomaton(start)
    at_once.extend(text)
    assert (at_once.match_length, at_once.match_end) == (growing.match_length, growing.match_end)


def test_texts_that_repeat_themselves_take_no_longer() -> None:
    """Their endings are nested in each other a hundred thousand deep."""
    automaton = SuffixAutomaton()
    automaton.extend([5] * 100_000)
    assert (automaton.match_length, automaton.match_end) == (99_999, 99_998)
    automaton.extend([6, *[5, 7] * 20_000])
    assert automaton.match_length == 39_998


def test_a_token_takes_little_memory() -> None:
    choice, count = random.Random(1), 20_000
    text = [int(choice.paretovariate(0.8)) % 5000 for _ in range(count)]  # like words: few are frequent
    tracemalloc.start()
    try:
        automaton = SuffixAutomaton()
        automaton.extend(text)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert automaton.count == count
    assert held < 180 * count  # bytes
