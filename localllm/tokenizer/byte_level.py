"""Byte-level BPE: text becomes UTF-8 bytes, each written as a printable letter, and letters merge by rank.

The alphabet is GPT-2's (https://github.com/openai/gpt-2/blob/master/src/encoder.py): the printable Latin-1 characters
stand for themselves, the other 68 bytes follow from U+0100 on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from localllm.errors import GGUFError

from .pre_tokenizers import PreTokenizer
from .vocabulary import PREFIX, TokenKind, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tokenizers

MERGES = PREFIX + "merges"
# The package would keep the words of every tokenizer in every thread that used it, for as long as the thread lives,
# whatever becomes of the tokenizer: up to 100 KB for each change of a model. Merging anew takes a tenth longer.
_REMEMBERED_WORDS = 0


def _alphabet() -> dict[str, int]:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in frozenset(shown)]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_BYTE_OF_LETTER = _alphabet()
_NO_TEXT = re.compile("[\ud800-\udfff]")


def letters_to_bytes(text: str) -> bytes:
    """The bytes that an ordinary token stands for; letters outside the alphabet stand for themselves."""
    try:
        return bytes(map(_BYTE_OF_LETTER.__getitem__, text))
    except KeyError:
        return b"".join(map(_letter_bytes, text))


def _letter_bytes(letter: str) -> bytes:
    byte = _BYTE_OF_LETTER.get(letter)
    return letter.encode("utf-8", "surrogateescape") if byte is None else bytes((byte,))


class ByteLevelEncoder:
    """Turns text without special tokens into ids; built from the file's tokens and merges."""

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[str], cuts: PreTokenizer) -> None:
        self._tokenizer = _build(vocabulary, merges, cuts)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which must not hold surrogates."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _build(vocabulary: Vocabulary, merges: Sequence[str], cuts: PreTokenizer) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    # No text can become a control token by merging: they are not in the merger's vocabulary at all.
    by_text = {text: token for token, text in enumerate(vocabulary.texts)}
    left_out = {vocabulary.texts[token] for token in vocabulary.ids_of(TokenKind.CONTROL, TokenKind.UNKNOWN)}
    left_out = {text for text in left_out if len(text) > 1}
    for text in left_out:
        del by_text[text]
    pairs = _pairs(vocabulary.source, merges)
    try:
        model = models.BPE(by_text, pairs, cache_capacity=_REMEMBERED_WORDS, ignore_merges=cuts.whole_words)
    except Exception:  # the package raises nothing more specific when a merge names a text that is no token
        for text in [text for text in by_text if _NO_TEXT.search(text)]:  # bytes that are not UTF-8: never in a text
            left_out.add(text)
            del by_text[text]
        known = _known(vocabulary.source, pairs, by_text, left_out)
        model = models.BPE(by_text, known, cache_capacity=_REMEMBERED_WORDS, ignore_merges=cuts.whole_words)
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cuts.patterns]
    as_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, as_letters])
    return tokenizer


def _pairs(source: str, merges: Sequence[str]) -> list[tuple[str, str]]:
    """The merges as pairs of tokens; one is written as two tokens with a space between, and its rank is its place."""
    pairs = []
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise _broken(source, rank, merge, "is not two tokens with a space between")
        pairs.append((left, right))
    return pairs


def _known(
    source: str, pairs: Sequence[tuple[str, str]], by_text: dict[str, int], left_out: set[str]
) -> list[tuple[str, str]]:
    """The pairs without those that concern a control token; a pair of other unknown texts is an error."""
    kept = []
    for rank, (left, right) in enumerate(pairs):
        unknown = [text for text in (left, right, left + right) if text not in by_text]
        if not unknown:
            kept.append((left, right))
        elif not left_out.issuperset(unknown):
            raise _broken(source, rank, f"{left} {right}", f"needs {unknown[0][:40]!r}, which is no token")
    return kept


def _broken(source: str, rank: int, merge: str, what: str) -> GGUFError:
    return GGUFError(f"{source}: entry {rank} of the metadata key {MERGES}, {merge[:80]!r}, {what}")
