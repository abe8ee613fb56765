"""DRY: a penalty on tokens that would prolong a repetition.

Source: https://github.com/oobabooga/text-generation-webui/pull/5677
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_MATCH = 50  # longer repetitions are penalised as this long; the power below stays finite
MAX_HISTORY = 4096  # tokens looked back


def breaker_ids(pieces: Iterable[bytes], breakers: Sequence[str]) -> frozenset[int]:
    """Ids of the tokens whose text contains one of the strings that end a repetition."""
    needles = [text.encode("utf-8", "surrogatepass") for text in breakers]  # half a character is in no token
    return frozenset(index for index, piece in enumerate(pieces) if any(needle in piece for needle in needles))


def dry_penalty(
    logits: npt.NDArray[np.float64],
    history: Sequence[int],
    breakers: frozenset[int],
    multiplier: float,
    base: float,
    allowed_length: int,
) -> None:
    """Subtract multiplier * base ** (length - allowed_length) from tokens that prolong a repeat of `length`, in place.

    A repeat is an earlier occurrence of the newest tokens; it never reaches across a breaker.
    """
    if multiplier <= 0 or len(history) < 2:
        return
    tokens = np.asarray(history[-MAX_HISTORY:], dtype=np.int64)
    size = len(tokens)
    reach = 0
    while reach < min(MAX_MATCH, size) and int(tokens[size - 1 - reach]) not in breakers:
        reach += 1
    ends = np.flatnonzero(tokens[:-1] == tokens[-1]) if reach else np.empty(0, dtype=np.intp)
    longest: dict[int, int] = {}
    length = 0
    while len(ends) and length < reach:
        length += 1
        for following in np.unique(tokens[ends + 1]):
            longest[int(following)] = length
        ends = ends[ends >= length]
        if length < size:
            ends = ends[tokens[ends - length] == tokens[size - 1 - length]]
    for token, matched in longest.items():
        if matched >= allowed_length and token not in breakers:
            logits[token] -= multiplier * base ** (matched - allowed_length)
