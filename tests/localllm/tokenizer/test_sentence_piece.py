"""Our merging against the `sentencepiece` package, on vocabularies of every kind."""

from __future__ import annotations

import struct
from collections.abc import Callable

import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.tokenizer import Tokenizer
from localllm.tokenizer.sentence_piece import merged
from localllm.tokenizer.vocabulary import TokenKind

Make = Callable[..., Tokenizer]
Entry = tuple[str, int, float]


def _varint(value: int) -> bytes:
    head = value & 0x7F
    return bytes((head,)) if value < 0x80 else bytes((head | 0x80,)) + _varint(value >> 7)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _processor(entries: list[Entry]) -> sentencepiece.SentencePieceProcessor:
    """The package's own model of these entries, in the format of sentencepiece_model.proto."""
    pieces = b"".join(
        _block(1, _block(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind))
        for text, kind, score in entries
    )
    trainer = _number(3, 2) + _number(35, 1) + _number(40, 0) + _number(41, 1) + _number(42, 2)
    normalizer = _block(1, b"identity") + _number(3, 0) + _number(4, 0) + _number(5, 1)
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(pieces + _block(2, trainer) + _block(3, normalizer))
    return processor


FIXED: list[Entry] = [
    ("<unk>", TokenKind.UNKNOWN, 0.0),
    ("<s>", TokenKind.CONTROL, 0.0),
    ("</s>", TokenKind.CONTROL, 0.0),
]
BYTES: list[Entry] = [(f"<0x{byte:02X}>", TokenKind.BYTE, 0.0) for byte in range(256)]
LETTERS = "ab▁é"
TEXT = st.text(st.sampled_from("ab é\nc"), max_size=30)


@given(
    pieces=st.dictionaries(st.text(st.sampled_from(LETTERS), min_size=1, max_size=5), st.integers(-9, 0), max_size=30),
    texts=st.lists(TEXT, min_size=1, max_size=5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_same_ids_as_the_package(sentence_piece: Make, pieces: dict[str, int], texts: list[str]) -> None:
    """Pieces with spaces anywhere and equal scores included."""
    entries: list[Entry] = [(text, TokenKind.NORMAL, float(score)) for text, score in pieces.items()]
    tokenizer = sentence_piece(entries, add_space_prefix=False)
    processor = _processor([*FIXED, *BYTES, *entries])
    for text in texts:
        assert tokenizer.encode(text, add_bos=False) == processor.encode(text)


def test_the_leftmost_of_equal_pairs_merges_first() -> None:
    ids = {"aa": 0, "ab": 1}
    assert merged("aaa", ids, [0.0, 0.0]) == ["aa", "a"]
    assert merged("aab", ids, [0.0, 0.0]) == ["aa", "b"]
    assert merged("aab", ids, [-1.0, 0.0]) == ["a", "ab"]


def test_long_words_are_not_remembered_but_right(sentence_piece: Make) -> None:
    entries = [("a", TokenKind.NORMAL, -2.0), ("aa", TokenKind.NORMAL, -1.0), ("aaaa", TokenKind.NORMAL, 0.0)]
    tokenizer = sentence_piece(entries, add_space_prefix=False)
    assert tokenizer.encode("a" * 4003, False) == [261] * 1000 + [260, 259]
    for number in range(40000):  # more words than are remembered
        tokenizer.encode(f"{number}", False)
    assert tokenizer.decode(tokenizer.encode("12345", False)) == "12345"
