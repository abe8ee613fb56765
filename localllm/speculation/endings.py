"""Where did the longest ending of a text occur before? A search of the latest tokens, each time anew.

Comparing numbers is so cheap that an index would cost more: it takes time with every token, and hundreds of bytes for
each. Here a token costs four bytes, no more than the last `most_tokens` are kept, and all that a long text has to pay
for is the comparison of its tokens with one number; not even that where the last two tokens never stood together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

LONGEST = 64  # tokens of an ending that are compared
_SHORTEST = 2
_FEW = 256  # places that are compared token by token: the latest ones
_PAIRS, _MIX = 1 << 18, 0x9E3779B1  # bytes, and an odd number that spreads pairs of tokens over them
_NARROWED = 8  # tokens by which many places become fewer before that


class Endings:
    """The latest `most_tokens` of a text that grows; `match_length` and `match_end` say what its ending repeats.

    `match_length` (0, or 2 to LONGEST) counts tokens of the longest ending that occurs before, `match_end` is the
    position of the last token of its latest occurrence.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._tokens = np.full(1024, -1, np.int32)  # LONGEST numbers that are no token, then the text
        self._used = LONGEST
        self._dropped = 0  # tokens of the text that are not kept any more
        self._pairs = bytearray(_PAIRS)  # by hash: whether such a pair of neighbours has stood in the text
        self.match_length = 0
        self.match_end = -1

    @property
    def count(self) -> int:
        """Tokens of the text so far."""
        return self._dropped + self._used - LONGEST

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens and look for what the text ends with."""
        self._append(np.asarray(tokens, np.int32))
        self.match_length, self.match_end = 0, -1
        if not self._may_repeat(len(tokens)):
            return
        text = self._tokens[max(LONGEST, self._used - self._most_tokens) - LONGEST : self._used]
        places = self._places(text)
        if not len(places):
            return
        back = np.arange(LONGEST)
        equal = text[places[:, None] - back] == text[len(text) - 1 - back]
        lengths = np.where(equal.all(axis=1), LONGEST, equal.argmin(axis=1))
        lengths = np.minimum(lengths, places - LONGEST + 1)  # what lies before the latest tokens does not count
        best = len(places) - 1 - int(lengths[::-1].argmax())  # the latest of the longest
        self.match_length = int(lengths[best])
        self.match_end = int(places[best]) - len(text) + self.count

    def _may_repeat(self, added: int) -> bool:
        """Whether the last two tokens can have stood before; notes the pairs that so many new tokens end.

        Without it prose, where they mostly have not, would pay for a search after every token.
        """
        if added == 0:
            return True
        if added == 1:
            before, last = self._tokens[self._used - 2 : self._used].tolist()
            pair = (before * _MIX + last) % _PAIRS
            seen = bool(self._pairs[pair])
            self._pairs[pair] = 1
            return seen
        text = self._tokens[max(LONGEST, self._used - added) - 1 : self._used].astype(np.int64)
        pairs = (text[:-1] * _MIX + text[1:]) % _PAIRS
        noted = np.frombuffer(self._pairs, np.uint8)
        noted[pairs[:-1]] = 1
        seen = bool(noted[pairs[-1]])
        noted[pairs[-1]] = 1
        return seen

    @staticmethod
    def _places(text: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Where the last two tokens stood before, in `text`; the latest few, of those that repeat the most."""
        if len(text) < LONGEST + _SHORTEST + 1:
            return np.empty(0, np.int64)
        places = np.flatnonzero(text[LONGEST + 1 : -1] == text[-1]) + LONGEST + 1
        places = places[text[places - 1] == text[-2]]
        for back in range(_SHORTEST, _NARROWED):
            if len(places) <= _FEW:
                break
            longer = places[text[places - back] == text[-1 - back]]
            if not len(longer):
                break
            places = longer
        latest: npt.NDArray[np.int64] = places[-_FEW:]
        return latest

    def _append(self, tokens: npt.NDArray[np.int32]) -> None:
        tokens, left_out = tokens[-self._most_tokens :], max(0, len(tokens) - self._most_tokens)
        if left_out:
            self._dropped += self._used - LONGEST + left_out
            self._used = LONGEST
        if self._used + len(tokens) > len(self._tokens):
            kept = self._tokens[max(LONGEST, self._used - self._most_tokens) : self._used]
            size = max(1024, 2 * (LONGEST + len(kept) + len(tokens)))
            self._dropped += self._used - LONGEST - len(kept)
            self._tokens = np.concatenate(
                [self._tokens[:LONGEST], kept, np.empty(size - LONGEST - len(kept), np.int32)]
            )
            self._used = LONGEST + len(kept)
        self._tokens[self._used : self._used + len(tokens)] = tokens
        self._used += len(tokens)
