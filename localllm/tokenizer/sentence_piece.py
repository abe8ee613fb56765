"""SentencePiece BPE: neighbouring pieces merge, the best-scored pair of the whole text first.

Spaces are written as U+2581. A character that is no piece becomes its UTF-8 bytes, each a token `<0x..>`.
Paper: Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226.
"""

from __future__ import annotations

import heapq
import re
from typing import TYPE_CHECKING

from localllm.errors import GGUFError

from .vocabulary import PREFIX, TokenKind, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPACE = "\u2581"
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BETWEEN = "\ud800"  # a lone surrogate that no token holds: bytes that are not UTF-8 are read as U+DC80 to U+DCFF
_REMEMBERED_WORDS = 16384
_LONGEST_REMEMBERED = 64


def piece_bytes(text: str, kind: int) -> bytes:
    """The bytes that a token stands for: one byte for a byte token, else its text with U+2581 as a space."""
    if kind == TokenKind.BYTE and (byte := _BYTE.fullmatch(text)):
        return bytes((int(byte[1], 16),))
    return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


class SentencePieceEncoder:
    """Turns text without special tokens into ids.

    Hardly any piece holds a space after a letter, so hardly any merge crosses from a letter to a space: text is merged
    word by word, and words are remembered.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.scores is None:
            raise GGUFError(f"{vocabulary.source}: the metadata key {PREFIX}scores is missing")
        unmergeable = frozenset((TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.BYTE))
        kinds = vocabulary.kinds
        self._ids = {text: token for token, text in enumerate(vocabulary.texts) if kinds[token] not in unmergeable}
        self._scores: list[float] = vocabulary.scores.tolist()
        self._fallback = _fallback_ids(vocabulary)
        self._words = _word_pattern(self._ids)
        self._remembered: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, which must not hold surrogates."""
        ids: list[int] = []
        for word in self._words.findall(text.replace(" ", SPACE)):
            known = self._remembered.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(word) <= _LONGEST_REMEMBERED:
                    if len(self._remembered) >= _REMEMBERED_WORDS:
                        self._remembered.clear()
                    self._remembered[word] = known
            ids.extend(known)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for piece in merged(word, self._ids, self._scores):
            token = self._ids.get(piece)
            if token is not None:
                ids.append(token)
            else:
                ids.extend(token for byte in piece.encode() if (token := self._fallback[byte]) is not None)
        return ids


def merged(text: str, ids: Mapping[str, int], scores: Sequence[float]) -> list[str]:
    """The pieces of `text` after all merges: the best score first, at equal scores the leftmost pair.

    Pieces form a linked list over the characters; pairs wait in a heap and are dropped when one side has changed.
    """
    pieces = list(text)
    before, after = list(range(-1, len(pieces) - 1)), list(range(1, len(pieces) + 1))
    heap: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        pair = pieces[left] + pieces[right]
        token = ids.get(pair)
        if token is not None:
            heapq.heappush(heap, (-scores[token], left, right, pair))

    for left in range(len(pieces) - 1):
        offer(left, left + 1)
    while heap:
        _, left, right, pair = heapq.heappop(heap)
        if not pieces[left] or after[left] != right or len(pieces[left]) + len(pieces[right]) != len(pair):
            continue
        pieces[left], pieces[right] = pair, ""
        following = after[left] = after[right]
        if following < len(pieces):
            before[following] = left
            offer(left, following)
        if before[left] >= 0:
            offer(before[left], left)
    return [piece for piece in pieces if piece]


def _word_pattern(pieces: Iterable[str]) -> re.Pattern[str]:
    """Matches a stretch of text that no merge leaves: spaces and what follows, up to the next space.

    A space stays inside where some piece holds one after that very character.
    """
    word = f"{SPACE}*[^{SPACE}]+"
    before_inner_space = set(re.findall(f"([^{SPACE}{_BETWEEN}]){SPACE}", _BETWEEN.join(pieces)))
    if before_inner_space:
        letters = re.escape("".join(sorted(before_inner_space)))
        word += f"(?:(?<=[{letters}]){SPACE}+[^{SPACE}]*)*"
    return re.compile(f"{word}|{SPACE}+")


def _fallback_ids(vocabulary: Vocabulary) -> list[int | None]:
    """The token of each byte; a vocabulary that lacks one has its unknown token there, or nothing."""
    unknown = vocabulary.ids_of(TokenKind.UNKNOWN)
    fallback: list[int | None] = [unknown[0] if unknown else None] * 256
    for token in vocabulary.ids_of(TokenKind.BYTE):
        if byte := _BYTE.fullmatch(vocabulary.texts[token]):
            fallback[int(byte[1], 16)] = token
    return fallback
