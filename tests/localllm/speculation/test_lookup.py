"""Guesses from the conversation itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localllm.speculation import NOTHING, LookupDrafter

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]


def test_what_followed_the_last_time() -> None:
    draft = LookupDrafter().draft(TEXT, 4)
    assert draft.tokens == (5, 6, 7, 8)
    assert draft.is_chain


def test_a_text_that_repeats_itself_goes_on_so() -> None:
    assert LookupDrafter().draft([9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3], 7).tokens == (1, 2, 3, 1, 2, 3, 1)


def test_one_token_is_no_match() -> None:
    assert LookupDrafter().draft([1, 2, 3, 2], 4) == NOTHING
    assert LookupDrafter().draft([1], 4) == NOTHING


def test_a_longer_match_has_another_grade() -> None:
    text = list(range(20))
    assert len({LookupDrafter().draft([*text, 99, *text[:count]], 1).grades[0] for count in (2, 5, 12)}) == 3


@given(st.lists(st.integers(0, 3), min_size=1, max_size=80), st.integers(1, 9))
def test_token_by_token_is_as_all_at_once(text: list[int], most: int) -> None:
    growing = LookupDrafter()
    for end in range(1, len(text) + 1):
        draft = growing.draft(text[:end], most)
        assert len(draft) in (0, most)
    again = LookupDrafter()
    again.draft(text[: len(text) // 2 + 1], most)
    assert again.draft(text, most).tokens == LookupDrafter().draft(text, most).tokens or len(draft) == most


def test_an_endless_text_is_searched_in_its_latest_tokens() -> None:
    drafter, text = LookupDrafter(most_tokens=64), []
    for token in range(200):
        text.append(token)
        assert drafter.draft(text, 3) == NOTHING
    text += text[-20:-15]
    assert drafter.draft(text, 3).tokens == (185, 186, 187)
    text += [5, 6, 7]
    assert drafter.draft(text, 3) == NOTHING
