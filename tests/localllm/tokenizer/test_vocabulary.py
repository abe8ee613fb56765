"""Metadata is untrusted: what is wrong with it is said by key, and nothing else is raised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from localllm.errors import GGUFError, LocalLLMError, UnsupportedModelError
from localllm.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]
PIECES = (("▁", 1, -9.0), ("h", 1, -8.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", [1, 2]),
        ("tokens", "text"),
        ("token_type", [1, 2]),
        ("token_type", "text"),
        ("merges", None),
        ("merges", ["nospace"]),
        ("merges", ["a b c"]),
        ("merges", ["a "]),
        ("merges", ["zz yy"]),
        ("bos_token_id", 257),
        ("eos_token_id", -1),
        ("eot_token_id", 2**32 - 1),
        ("eos_token_id", 1.0),
        ("add_bos_token", 1),
    ],
)
def test_byte_level_metadata(byte_level: Make, key: str, value: object) -> None:
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{key}"):
        byte_level(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scores", None),
        ("scores", [1.0]),
        ("scores", [math.nan] * 261),
        ("token_type", [1] * 260),
        ("eos_token_id", 261),
    ],
)
def test_sentence_piece_metadata(sentence_piece: Make, key: str, value: object) -> None:
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{key}"):
        sentence_piece(PIECES, **{key: value})


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "none", "my-own"])
def test_unsupported_tokenizers_are_named(byte_level: Make, model: str) -> None:
    with pytest.raises(UnsupportedModelError, match=model):
        byte_level(model=model)


def test_unknown_pre_tokenizer_is_named_with_its_neighbours(byte_level: Make) -> None:
    with pytest.raises(UnsupportedModelError, match=r"qwen-2.*not supported") as raised:
        byte_level(pre="qwen-2")
    assert "qwen2" in str(raised.value)


def test_missing_pre_tokenizer_is_a_warning(byte_level: Make) -> None:
    tokenizer = byte_level(pre=None)
    assert "tokenizer.ggml.pre" in tokenizer.warnings[0]
    assert tokenizer.decode(tokenizer.encode("one 2345")) == "one 2345"
    assert byte_level().warnings == ()


def test_kinds_without_a_meaning_are_plain_tokens(byte_level: Make) -> None:
    tokenizer = byte_level(token_type=[77] * 257)
    assert tokenizer.decode(tokenizer.encode("text")) == "text"


@pytest.mark.parametrize("texts", [["same", "same"], ["", ""], ["\x00", "a b"], ["▁", "<0x41>"], ["\udc80", "\udc9fa"]])
def test_odd_tokens_do_no_harm(byte_level: Make, sentence_piece: Make, texts: Sequence[str]) -> None:
    for kind in (1, 2, 3, 4, 5, 6):
        tokenizer = byte_level(extra=[(text, kind) for text in texts])
        assert tokenizer.decode(tokenizer.encode("a same b ")) == "a same b "
        pieces = sentence_piece([*PIECES, *((text, kind, -1.0) for text in texts)])
        assert pieces.decode(pieces.encode("a same b ", False)) == "a same b "


def test_tokens_that_are_not_utf8_keep_their_bytes(byte_level: Make, sentence_piece: Make) -> None:
    tokens = [*(bytes((byte,)) for byte in range(0x80, 0x8F)), b"ok"]
    tokenizer = sentence_piece([], tokens=tokens, token_type=[1] * 16, scores=[0.0] * 16, bos_token_id=None)
    assert tokenizer.pieces([0, 15]) == [b"\x80", b"ok"]


def test_a_vocabulary_without_byte_tokens_falls_back_to_its_unknown_token(sentence_piece: Make) -> None:
    keys = {"tokens": ["<unk>", "<s>", "</s>", "a"], "token_type": [2, 3, 3, 1], "scores": [0.0] * 4}
    tokenizer = sentence_piece([], **keys, add_space_prefix=False)
    assert tokenizer.encode("aé") == [1, 3, 0, 0]


def test_errors_are_of_the_one_tree() -> None:
    assert issubclass(GGUFError, LocalLLMError)
    assert issubclass(UnsupportedModelError, LocalLLMError)
