"""Finding special tokens in text: control tokens only where the text may hold them, user-defined ones everywhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .vocabulary import TokenKind, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SPACES = re.compile(r"[ \t\n\v\f\r]*")
# The kinds that a text may only hold where the caller trusts it.
_GUARDED = (TokenKind.CONTROL, TokenKind.UNKNOWN)


class SpecialTokens:
    """Cuts text at special tokens; at every place the longest one wins."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._guarded = _by_text(vocabulary, *_GUARDED)
        self._open = _by_text(vocabulary, TokenKind.USER_DEFINED)
        self._lengths: dict[str, list[int]] = {}
        for text in (*self._guarded, *self._open):
            self._lengths.setdefault(text[:2], []).append(len(text))
        for start, lengths in self._lengths.items():
            if start[0] in self._lengths:
                lengths.append(1)
            self._lengths[start] = sorted(set(lengths), reverse=True)
        first_letters = "".join(sorted({text[0] for text in self._lengths}))
        self._candidate = re.compile(f"[{re.escape(first_letters)}]") if first_letters else None
        # Phi-3 was trained without the white space that its template puts after its tokens.
        swallows = "phi-3" in vocabulary.model_name.lower() or "phi3" in vocabulary.model_name.lower()
        keeps = frozenset(("<unk>", "<s>", "<|endoftext|>"))
        self._swallows_space = frozenset(self._guarded.keys() - keeps) if swallows else frozenset()

    def split(self, text: str, trusted: Sequence[tuple[int, int]]) -> Iterator[str | int]:
        """Plain text and ids of special tokens in order; `trusted` are the (start, end) where control tokens count."""
        position = plain_from = 0
        area = 0
        while self._candidate is not None and (found := self._candidate.search(text, position)):
            start = found.start()
            while area < len(trusted) and trusted[area][1] <= start:
                area += 1
            limit = trusted[area][1] if area < len(trusted) and trusted[area][0] <= start else start
            token, end = self._at(text, start, limit)
            if token is None:
                position = start + 1
                continue
            if start > plain_from:
                yield text[plain_from:start]
            yield token
            if text[start:end] in self._swallows_space:
                end = _SPACES.match(text, end).end()  # type: ignore[union-attr]  # it matches nothing as well
            position = plain_from = end
        if plain_from < len(text):
            yield text[plain_from:]

    def _at(self, text: str, start: int, limit: int) -> tuple[int | None, int]:
        """The longest special token at `start`, and its end; control tokens must end by `limit`."""
        for length in self._lengths.get(text[start : start + 2]) or self._lengths.get(text[start]) or ():
            end = start + length
            piece = text[start:end]
            token = self._guarded.get(piece) if end <= limit else None
            token = self._open.get(piece) if token is None else token
            if token is not None:
                return token, end
        return None, start


def _by_text(vocabulary: Vocabulary, *kinds: TokenKind) -> dict[str, int]:
    return {text: token for token in vocabulary.ids_of(*kinds) if (text := vocabulary.texts[token])}
