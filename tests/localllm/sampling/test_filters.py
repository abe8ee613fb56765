"""Each filter against its definition, spelt out over a sorted list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.sampling.candidates import Candidates
from localllm.sampling.min_p import min_p
from localllm.sampling.top_k import top_k
from localllm.sampling.top_p import top_p
from localllm.sampling.typical_p import typical_p
from localllm.sampling.xtc import xtc

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)
UNIT = st.floats(0, 1)


def make(logits: list[float]) -> Candidates:
    return Candidates(np.arange(len(logits)), np.array(logits, dtype=np.float64))


def ranked(logits: list[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


@given(LOGITS, st.integers(-1, 50))
def test_top_k_keeps_the_best_and_the_lower_id_on_ties(logits: list[float], k: int) -> None:
    kept = set(top_k(make(logits), k).ids.tolist())
    expected = range(len(logits)) if k <= 0 else ranked(logits)[:k]
    assert kept == set(expected)


@given(LOGITS, UNIT)
def test_top_p_keeps_the_smallest_head_that_reaches_p(logits: list[float], p: float) -> None:
    probabilities = make(logits).probabilities()
    kept = top_p(make(logits), p).ids.tolist()
    order = ranked(logits)
    if p >= 1:
        assert kept == list(range(len(logits)))
        return
    assert kept == order[: len(kept)]
    assert probabilities[kept].sum() >= p - 1e-12
    assert probabilities[kept[:-1]].sum() < p + 1e-12 or len(kept) == 1


@given(LOGITS, UNIT)
def test_min_p_keeps_a_share_of_the_best_probability(logits: list[float], p: float) -> None:
    probabilities = make(logits).probabilities()
    kept = set(min_p(make(logits), p).ids.tolist())
    for index, probability in enumerate(probabilities):
        if probability > p * probabilities.max() * (1 + 1e-9):
            assert index in kept
        if probability < p * probabilities.max() * (1 - 1e-9):
            assert index not in kept


@given(LOGITS, UNIT)
def test_typical_p_prefers_surprise_near_the_entropy(logits: list[float], p: float) -> None:
    candidates = make(logits)
    kept = typical_p(candidates, p)
    if p >= 1:
        assert kept is candidates
        return
    probabilities = candidates.probabilities()
    distance = np.abs(-np.log(probabilities) + (probabilities * np.log(probabilities)).sum())
    dropped = np.setdiff1d(candidates.ids, kept.ids)
    assert probabilities[kept.ids].sum() >= p - 1e-9
    if len(dropped):
        assert distance[kept.ids].max() <= distance[dropped].min() + 1e-9


@pytest.mark.parametrize(("draw", "expected"), [(0.3, {2, 3, 4}), (0.7, {0, 1, 2, 3, 4})])
def test_xtc_drops_the_top_but_the_least_likely_of_them(draw: float, expected: set[int]) -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.06, 0.04]).tolist()
    assert set(xtc(make(logits), 0.15, 0.5, draw).ids.tolist()) == expected


def test_xtc_never_drops_a_sure_choice() -> None:
    logits = np.log([0.9, 0.06, 0.04]).tolist()
    assert len(xtc(make(logits), 0.1, 1.0, 0.0).ids) == 3
