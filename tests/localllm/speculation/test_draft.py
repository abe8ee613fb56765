"""Trees of guesses."""

from __future__ import annotations

import numpy as np

from localllm.speculation import NOTHING, Draft, chain
from localllm.speculation.draft import merge

TREE = Draft((5, 6, 7, 5, 8), (-1, 0, -1, 2, 3), (1, 2, 3, 4, 5))


def test_a_chain_needs_no_mask() -> None:
    assert chain([3, 4, 5], 9) == Draft((3, 4, 5), (-1, 0, 1), (9, 9, 9))
    assert chain([3, 4, 5], 9).is_chain
    assert NOTHING.is_chain
    assert not TREE.is_chain


def test_depths_and_ancestors() -> None:
    assert TREE.depths() == [1, 2, 1, 2, 3]
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    np.testing.assert_array_equal(TREE.ancestors(), np.array(expected, np.bool_))


def test_children() -> None:
    assert TREE.child(-1, 5) == 0
    assert TREE.child(-1, 7) == 2
    assert TREE.child(2, 5) == 3
    assert TREE.child(0, 5) is None


def test_keeping_some() -> None:
    assert TREE.keep([2, 3]) == Draft((7, 5), (-1, 0), (3, 4))
    assert TREE.keep([]) == NOTHING
    assert TREE.first(3) == TREE.keep([0, 1, 2])
    assert TREE.first(5) == TREE


def test_merged_drafts_say_everything_once() -> None:
    one = Draft((1, 2, 3), (-1, 0, 1), (7, 7, 7))
    other = Draft((1, 5, 4, 2), (-1, 0, -1, 0), (8, 8, 8, 8))
    assert merge((one, NOTHING, other)) == Draft((1, 2, 3, 5, 4), (-1, 0, 1, 0, -1), (7, 7, 7, 8, 8))
    assert merge((one, one)) == one
    assert merge(()) == NOTHING
