from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localllm.errors import RequestError
from localllm.gguf_io import open_gguf
from localllm.tokenizer import Segment, Tokenizer
from localllm.tokenizer.vocabulary import TokenKind

Make = Callable[..., Tokenizer]

MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "r l", "Ġwo rl", "Ġworl d", "Ġ Ġ", "< |", "| >")
CHAT = (("<|start|>", TokenKind.CONTROL), ("<|im_end|>", TokenKind.CONTROL), ("<think>", TokenKind.USER_DEFINED))
START, END, THINK = (256 + len(MERGES) + place for place in range(3))
NORMAL = TokenKind.NORMAL
PIECES = (("▁", NORMAL, -9.0), ("h", NORMAL, -8.0), ("i", NORMAL, -7.0), ("▁h", NORMAL, -2.0), ("▁hi", NORMAL, -1.0))
SPACE, HI = 259, 263
SPACE_RUNS = tuple((" " * length, TokenKind.USER_DEFINED, -1000.0) for length in range(2, 9))


def test_bytes_merge_by_rank(byte_level: Make) -> None:
    tokenizer = byte_level(MERGES)
    ids = tokenizer.encode("hello world")
    assert tokenizer.pieces(ids) == [b"hello", b" world"]
    assert tokenizer.decode(ids) == "hello world"
    assert tokenizer.vocabulary_size == 256 + len(MERGES)


def test_control_tokens_count_only_where_asked_for(byte_level: Make) -> None:
    tokenizer = byte_level(MERGES, CHAT)
    text = "<|start|>hello<|im_end|>"
    assert tokenizer.encode(text, parse_special=True) == [START, *tokenizer.encode("hello"), END]
    plain = tokenizer.encode(text)
    assert not any(map(tokenizer.is_control, plain))
    assert tokenizer.decode(plain) == text
    assert tokenizer.special_tokens == {"<|start|>": START, "<|im_end|>": END}


def test_user_defined_tokens_count_everywhere(byte_level: Make) -> None:
    tokenizer = byte_level(MERGES, CHAT)
    for parse_special in (False, True):
        assert tokenizer.encode("<think>hello", parse_special=parse_special) == [THINK, *tokenizer.encode("hello")]
    assert not tokenizer.is_control(THINK)


def test_the_longest_special_token_wins(byte_level: Make) -> None:
    extra = [("<|a|>", TokenKind.CONTROL), ("<|a|>b", TokenKind.CONTROL), ("<", TokenKind.CONTROL)]
    tokenizer = byte_level(MERGES, extra)
    first = 256 + len(MERGES)
    ids = tokenizer.encode("<|a|>b<|a|>c<", parse_special=True)
    assert ids == [first + 1, first, *tokenizer.encode("c"), first + 2]


def test_segments_are_merged_as_one_text(byte_level: Make) -> None:
    tokenizer = byte_level(MERGES, CHAT)
    segments = [Segment("<|start|>he", True), Segment("llo wor", False), Segment("ld<|im_end|>", True)]
    assert tokenizer.encode_segments(segments) == tokenizer.encode("<|start|>hello world<|im_end|>", None, True)


def test_a_control_token_must_be_trusted_to_its_last_letter(byte_level: Make) -> None:
    tokenizer = byte_level(MERGES, CHAT)
    half = [Segment("<|im_", True), Segment("end|>", False)]
    other_half = [Segment("<|im_", False), Segment("end|>", True)]
    split = [Segment("<|im_", True), Segment("end|>", True)]
    assert END not in tokenizer.encode_segments(half)
    assert END not in tokenizer.encode_segments(other_half)
    assert tokenizer.encode_segments(split) == [END]


ALPHABET = st.text(st.sampled_from("<|start>im_end think▁\n é😀")) | st.sampled_from([text for text, _ in CHAT])


@given(parts=st.lists(st.tuples(ALPHABET, st.booleans()), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_untrusted_text_never_becomes_a_control_token(byte_level: Make, parts: list[tuple[str, bool]]) -> None:
    tokenizer = byte_level(MERGES, CHAT)
    segments = [Segment(text, trusted) for text, trusted in parts]
    ids = tokenizer.encode_segments(segments)
    assert tokenizer.decode(ids) == "".join(text for text, _ in parts)
    runs, run = [], ""  # what stands between untrusted texts
    for text, trusted in parts:
        if trusted:
            run += text
        elif text:
            runs.append(run)
            run = ""
    expected = sum(text.count(name) for text in (*runs, run) for name in ("<|start|>", "<|im_end|>"))
    assert sum(map(tokenizer.is_control, ids)) == expected


@given(text=st.text())
@example("\x00\x00 x")
@example("a\ud83db")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_string_comes_back(byte_level: Make, sentence_piece: Make, text: str) -> None:
    readable = "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    byte_level_tokenizer = byte_level(MERGES, CHAT)
    assert byte_level_tokenizer.decode(byte_level_tokenizer.encode(text)) == readable
    pieces = sentence_piece(PIECES + SPACE_RUNS)
    assert pieces.decode(pieces.encode(text, add_bos=False)) == readable.replace("▁", " ")


def test_surrogates_that_form_a_pair_are_one_character(byte_level: Make) -> None:
    tokenizer = byte_level()
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"


def test_beginning_token(byte_level: Make) -> None:
    extra = (("<s>", TokenKind.CONTROL),)
    hello = byte_level(MERGES, extra).encode("hello")
    bos = 256 + len(MERGES)
    wants = byte_level(MERGES, extra, bos_token_id=bos, add_bos_token=True)
    assert wants.adds_bos
    assert wants.encode("hello") == [bos, *hello]
    assert wants.encode("hello", add_bos=False) == hello
    wants_none = byte_level(MERGES, extra, bos_token_id=bos, add_bos_token=False)
    assert wants_none.encode("hello") == hello
    assert wants_none.encode("hello", add_bos=True) == [bos, *hello]
    has_none = byte_level(MERGES, extra, add_bos_token=True)
    assert has_none.bos_id is None
    assert not has_none.adds_bos
    assert has_none.encode("hello", add_bos=True) == hello


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_prompt_has_one_beginning_token(byte_level: Make, written: int) -> None:
    extra = (("<s>", TokenKind.CONTROL),)
    bos = 256 + len(MERGES)
    text = "<s>" * written + "hello"
    wants = byte_level(MERGES, extra, bos_token_id=bos, add_bos_token=True)
    assert wants.encode_prompt(text) == [bos, *wants.encode("hello", False)]
    assert wants.encode_prompt("<s>hello", parse_special=False).count(bos) == 1
    wants_none = byte_level(MERGES, extra, bos_token_id=bos, add_bos_token=False)
    assert wants_none.encode_prompt(text) == ([bos] if written else []) + wants_none.encode("hello")


def test_llama3_wants_a_beginning_token_unless_the_file_says_no(byte_level: Make) -> None:
    extra = (("<|begin_of_text|>", TokenKind.CONTROL),)
    bos = 256 + len(MERGES)
    assert byte_level(MERGES, extra, pre="llama-bpe", bos_token_id=bos).adds_bos
    assert not byte_level(MERGES, extra, pre="llama-bpe", bos_token_id=bos, add_bos_token=False).adds_bos
    assert not byte_level(MERGES, extra, pre="qwen2", bos_token_id=bos).adds_bos


def test_every_end_of_generation_id(byte_level: Make) -> None:
    extra = [
        ("<|endoftext|>", TokenKind.CONTROL),
        ("<|eot_id|>", TokenKind.CONTROL),
        ("</s>", TokenKind.USER_DEFINED),
        ("<end_of_turn>", NORMAL),
        ("<mine>", TokenKind.CONTROL),
        ("<other>", TokenKind.CONTROL),
    ]
    first = 256 + len(MERGES)
    tokenizer = byte_level(MERGES, extra, eos_token_id=first + 4)
    assert tokenizer.end_ids == {first, first + 1, first + 2, first + 3, first + 4}
    assert tokenizer.eos_id == first + 4
    assert all(map(tokenizer.is_control, tokenizer.end_ids))
    assert tokenizer.encode("</s>", parse_special=True) == [first + 2]
    assert first + 2 not in tokenizer.encode("</s>")
    with_turns = byte_level(MERGES, extra, eos_token_id=first + 4, eot_token_id=first + 5)
    assert first + 5 in with_turns.end_ids


def test_the_end_of_one_message_is_not_the_end_of_a_harmony_answer(byte_level: Make) -> None:
    names = ("<|return|>", "<|call|>", "<|end|>")
    tokenizer = byte_level(MERGES, [(name, TokenKind.CONTROL) for name in names])
    first = 256 + len(MERGES)
    assert tokenizer.end_ids == {first, first + 1}
    phi = byte_level(MERGES, [("<|end|>", TokenKind.CONTROL)])
    assert phi.end_ids == {first}


def test_first_text_gets_one_space(sentence_piece: Make) -> None:
    tokenizer = sentence_piece(PIECES)
    assert tokenizer.encode("hi") == [1, HI]
    assert tokenizer.encode("<s>hi", parse_special=True) == [1, 1, HI]
    assert tokenizer.encode("hi</s>hi", False, parse_special=True) == [HI, 2, *tokenizer.encode("xhi", False)[2:]]
    assert tokenizer.encode(" hi", False) == [SPACE, HI]
    assert tokenizer.encode("", False) == []
    without = sentence_piece(PIECES, add_space_prefix=False)
    assert without.encode(" hi", False) == [HI]
    assert without.encode("hi", False) == [SPACE + 1, SPACE + 2]


def test_the_space_of_the_first_text_is_taken_off_again(sentence_piece: Make) -> None:
    tokenizer = sentence_piece(PIECES)
    assert tokenizer.decode([HI, HI]) == "hi hi"
    assert tokenizer.decode([1, HI]) == "<s>hi"
    assert tokenizer.decode([1, HI], skip_special=True) == "hi"
    assert tokenizer.decode([HI], continues=True) == " hi"
    assert sentence_piece(PIECES, add_space_prefix=False).decode([HI]) == " hi"


def test_runs_of_spaces_are_user_defined_tokens(sentence_piece: Make) -> None:
    tokenizer = sentence_piece(PIECES + SPACE_RUNS, add_space_prefix=False)
    run_of = {length: 262 + length for length in range(2, 9)}
    assert tokenizer.encode("  ", False) == [run_of[2]]
    assert tokenizer.encode("hi    hi", False) == [SPACE + 1, SPACE + 2, run_of[4], SPACE + 1, SPACE + 2]
    assert tokenizer.encode(" " * 12, False) == [run_of[8], run_of[4]]
    assert tokenizer.decode([run_of[3]]) == "   "


def test_unknown_characters_become_bytes(sentence_piece: Make) -> None:
    tokenizer = sentence_piece(PIECES, add_space_prefix=False)
    assert tokenizer.encode("é\n", False) == [3 + 0xC3, 3 + 0xA9, 3 + 0x0A]
    assert tokenizer.pieces([3 + 0xC3]) == [b"\xc3"]
    assert tokenizer.encode("<0x41>", False) != [3 + 0x41]


def test_phi3_swallows_the_space_after_its_tokens(sentence_piece: Make, tmp_path: Path) -> None:
    from localllm.gguf_io import write_gguf

    plain = sentence_piece([*PIECES, ("<|end|>", TokenKind.CONTROL, 0.0)], add_space_prefix=False)
    end = len(PIECES) + 259
    assert plain.encode("<|end|>\n hi", False, parse_special=True) == [end, 13, HI]
    metadata = open_gguf(tmp_path / "vocabulary.gguf", metadata_only=True).metadata
    keys = {key: metadata.get_raw(key) for key in metadata.keys()}  # noqa: SIM118
    write_gguf(tmp_path / "phi.gguf", {**keys, "general.name": "Phi-3 mini"}, {})
    phi = Tokenizer.from_gguf(tmp_path / "phi.gguf")
    assert phi.encode("<|end|>\n hi", False, parse_special=True) == [end, SPACE + 1, SPACE + 2]


def test_an_open_file_will_do(byte_level: Make, tmp_path: Path) -> None:
    from_path = byte_level(MERGES)
    with open_gguf(tmp_path / "vocabulary.gguf") as file:
        from_file = Tokenizer.from_gguf(file)
    assert from_file.encode("hello") == from_path.encode("hello")


@pytest.mark.parametrize("token", [-1, 1000])
def test_unknown_ids_are_refused(byte_level: Make, token: int) -> None:
    tokenizer = byte_level(MERGES)
    with pytest.raises(RequestError, match=str(token)):
        tokenizer.decode([token])


@pytest.mark.real_model
def test_text_of_control_tokens_in_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    smollm2 = Tokenizer.from_gguf(smollm2_path)
    expected = [19556, 216, 33, 34, 35, 2067, 108, 306, 79, 3738, 108, 46, 104]
    assert smollm2.encode("Hello 123 <|im_start|>x") == expected
    gemma3 = Tokenizer.from_gguf(gemma3_path)
    assert gemma3.encode("<start_of_turn>user", False) == [236820, 3041, 236779, 1340, 236779, 887, 236813, 2364]


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("   Hello\n   Hello", [139, 9259, 107, 139, 9259]),
        ("def f(x):\n        return x", [2063, 517, 236769, 236781, 1473, 107, 144, 2060, 1123]),
        (" " * 12 + "x", [148, 236781]),
        (" " * 40 + "x", [167, 145, 236781]),
        ("a  b", [236746, 138, 236763]),
        ("\n\n   \n", [108, 139, 107]),
    ],
)
def test_spaces_in_gemma(gemma3_path: Path, text: str, ids: list[int]) -> None:
    assert Tokenizer.from_gguf(gemma3_path).encode(text, False) == ids


def test_importing_the_tokenizer_is_cheap() -> None:
    heavy = ("tokenizers", "sentencepiece", "jinja2", "numba", "torch")
    code = f"import sys, localllm.tokenizer; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
