"""Where each family cuts text, by small examples from its published pattern."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localllm.tokenizer import Tokenizer
from localllm.tokenizer.pre_tokenizers import PRE_TOKENIZERS

Make = Callable[..., Tokenizer]


def _cuts(tokenizer: Tokenizer, text: str) -> list[str]:
    """The pieces between which nothing merges, from the tokenizer's own pipeline."""
    encoder = tokenizer._encoder
    pieces = encoder._tokenizer.pre_tokenizer.pre_tokenize_str(text)  # type: ignore[attr-defined]
    return [text[start:end] for _, (start, end) in pieces]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pattern_compiles_and_loses_nothing(byte_level: Make, name: str) -> None:
    tokenizer = byte_level(pre=name)
    text = "I'LL pay 12345.67 € – Ωmega Größe 今天123天气 নমস্কার can't\r\n\n\t  foo_bar(x)  <b>!? \n"
    assert "".join(_cuts(tokenizer, text)) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "text", "cuts"),
    [
        ("gpt-2", "it's 1234  x", ["it", "'s", " 1234", " ", " x"]),
        ("smollm", "a 1234", ["a", " ", "1", "2", "3", "4"]),
        ("llama-bpe", "IT'S 12345\n\n x", ["IT", "'S", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "v12", ["v", "1", "2"]),
        ("qwen35", "नमस्ते", ["नमस्ते"]),
        ("gpt-4o", "helloWorld's HTTPServer", ["hello", "World's", " HTTPServer"]),
        ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
        ("deepseek-v3", "abc12345今天", ["abc", "123", "45", "今天"]),
        ("deepseek-llm", "Ὗ ab12 今天!", ["Ὗ", " ab", "12", " ", "今天", "!"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("starcoder", "x=10", ["x", "=", "1", "0"]),
        ("bloom", "one two, three", ["one", " two", ",", " three"]),
        ("kimi-k2", "abc今天abc123", ["abc", "今天", "abc", "123"]),
        ("default", "a<b 1234", ["a", "<", "b", " ", "123", "4"]),
    ],
)
def test_cuts(byte_level: Make, name: str, text: str, cuts: list[str]) -> None:
    assert _cuts(byte_level(pre=name), text) == cuts


def test_whole_words_skip_the_merges(byte_level: Make) -> None:
    """Llama 3 takes a piece that is a token as it is, though no merge leads to it."""
    extra = [("hello", 1)]
    assert len(byte_level(("l l",), extra, pre="llama-bpe").encode("hello", False)) == 1
    assert len(byte_level(("l l",), extra, pre="qwen2").encode("hello", False)) == 4
