"""DRY against a search by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from localllm.sampling.dry import MAX_MATCH, breaker_ids, dry_penalty


def expected(history: list[int], breakers: frozenset[int], allowed: int) -> np.ndarray:
    logits = np.zeros(8)
    size = len(history)
    longest: dict[int, int] = {}
    for end in range(size - 1):
        length = 0
        while (
            length <= end
            and length < MAX_MATCH
            and history[end - length] == history[size - 1 - length]
            and history[size - 1 - length] not in breakers
        ):
            length += 1
        if length:
            following = history[end + 1]
            longest[following] = max(longest.get(following, 0), length)
    for token, length in longest.items():
        if length >= allowed and token not in breakers:
            logits[token] -= 0.5 * 1.75 ** (length - allowed)
    return logits


@given(
    st.lists(st.integers(0, 7), max_size=30),
    st.frozensets(st.integers(0, 7), max_size=2),
    st.integers(0, 3),
)
def test_equals_brute_force(history: list[int], breakers: frozenset[int], allowed: int) -> None:
    logits = np.zeros(8)
    dry_penalty(logits, history, breakers, 0.5, 1.75, allowed)
    np.testing.assert_allclose(logits, expected(history, breakers, allowed))


def test_breakers_are_found_inside_pieces() -> None:
    assert breaker_ids([b"a", b"b\n", b" :c", b'"'], ("\n", ":", '"')) == {1, 2, 3}
