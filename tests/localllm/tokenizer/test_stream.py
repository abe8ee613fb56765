from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.tokenizer import Tokenizer
from localllm.tokenizer.vocabulary import TokenKind

Make = Callable[..., Tokenizer]

# Tokens of several bytes that cut characters anywhere, so that every split of a character over tokens occurs.
CUTS = ["ð Ł", "ðŁ ĺ", "Ĭ ï", "æ Ń", "ï ¿", "Ĳ ð", "ª a"]


def _streamed(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    decoder = tokenizer.stream_decoder(**options)
    return [*map(decoder.push, ids), decoder.flush()]


def test_a_character_is_shown_when_it_is_whole(byte_level: Callable[..., Tokenizer]) -> None:
    tokenizer = byte_level()
    assert _streamed(tokenizer, [0xF0, 0x9F, 0x98, 0x80]) == ["", "", "", "😀", ""]
    assert _streamed(tokenizer, [0xE6, 0xAD, 0xAA]) == ["", "", "歪", ""]


def test_a_real_replacement_character_is_not_held_back(byte_level: Make) -> None:
    tokenizer = byte_level()
    assert _streamed(tokenizer, list("a\ufffd".encode())) == ["a", "", "", "\ufffd", ""]


def test_a_character_that_was_cut_shows_as_one_mark_at_the_end(byte_level: Make) -> None:
    tokenizer = byte_level()
    cut = list("a😀".encode())[:-1]
    assert _streamed(tokenizer, cut) == ["a", "", "", "", "\ufffd"]
    assert tokenizer.decode(cut) == "a\ufffd"


@given(ids=st.lists(st.integers(0, 255 + len(CUTS)), max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_stream_equals_whole_for_any_bytes(byte_level: Make, ids: list[int]) -> None:
    tokenizer = byte_level(CUTS)
    assert "".join(_streamed(tokenizer, ids)) == tokenizer.decode(ids)


@given(text=st.text(st.sampled_from("a 😀歪👨‍👩‍👧नमस्ते\ufffd")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_chunk_shows_a_mark_that_the_text_lacks(byte_level: Make, text: str) -> None:
    tokenizer = byte_level(CUTS)
    ids = tokenizer.encode(text)
    marks = sum(chunk.count("\ufffd") for chunk in _streamed(tokenizer, ids))
    assert marks == text.count("\ufffd")


@pytest.mark.parametrize("skip_special", [False, True])
@pytest.mark.parametrize("continues", [False, True])
def test_leading_space_and_control_tokens_as_in_the_whole(
    sentence_piece: Make, skip_special: bool, continues: bool
) -> None:
    tokenizer = sentence_piece([("▁hi", TokenKind.NORMAL, -1.0), ("▁", TokenKind.NORMAL, -2.0)])
    for ids in ([259, 259], [1, 259, 2], [260, 260, 259], [], [1, 2]):
        whole = tokenizer.decode(ids, skip_special=skip_special, continues=continues)
        assert "".join(_streamed(tokenizer, ids, skip_special=skip_special, continues=continues)) == whole
