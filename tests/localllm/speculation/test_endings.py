"""The search for endings against one by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localllm.speculation.endings import LONGEST, Endings


def longest_repeat(text: list[int], most: int) -> tuple[int, int]:
    """Tokens of the longest ending of `text` that occurs in its last `most` tokens before, and where that ends last."""
    first = max(0, len(text) - most)
    best = (0, -1)
    for end in range(first, len(text) - 1):
        length = 0
        while length < LONGEST and end - length >= first and text[end - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= 2 and length >= best[0]:
            best = (length, end)
    return best


def found(endings: Endings) -> tuple[int, int]:
    """What a search said."""
    return endings.match_length, endings.match_end


@given(st.lists(st.integers(0, 3), min_size=1, max_size=120), st.sampled_from([5, 16, 64, 1000]))
def test_the_longest_ending_that_occurred_before(text: list[int], most: int) -> None:
    growing = Endings(most)
    for count in range(1, len(text) + 1):
        growing.extend(text[count - 1 : count])
        assert growing.count == count
        assert found(growing) == longest_repeat(text[:count], most)
    at_once = Endings(most)
    at_once.extend(text)
    assert found(at_once) == found(growing)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=12))
def test_pieces_of_any_length_in_a_bounded_text(pieces: list[int]) -> None:
    endings, text = Endings(500), []
    for piece in pieces:
        new = [(7 * index * index + piece) % 11 for index in range(piece)]
        text += new
        endings.extend(new)
        assert endings.count == len(text)
        assert found(endings) == longest_repeat(text, 500)


def test_a_text_of_one_token_is_its_own_repetition() -> None:
    endings = Endings(4096)
    endings.extend([5] * 5000)
    assert found(endings) == (LONGEST, 4998)


def test_of_very_many_places_those_that_repeat_the_most_are_looked_at() -> None:
    text = [9, 8, 7, 1, 2, 6, *([3, 1, 2, 4] * 1000), 9, 8, 7, 1, 2]
    endings = Endings(1 << 16)
    endings.extend(text)
    assert found(endings) == (5, 4)


def test_an_endless_text_takes_a_bounded_time_and_place() -> None:
    endings = Endings(64)
    for start in range(0, 100_000, 1000):
        endings.extend(list(range(start, start + 1000)))
    assert found(endings) == (0, -1)
    endings.extend([99_990, 99_991])
    assert found(endings) == (2, 99_991)
