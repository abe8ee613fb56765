"""What is left out for a price."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.turbo.curve import LossCurve, thresholds_of


def _curve(seed: int, tokens: int = 20, neurons: int = 30) -> tuple[LossCurve, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = np.maximum(rng.standard_normal((tokens, neurons)) - 0.5, 0).astype(np.float32)
    scores = (values + rng.standard_normal(values.shape) * 0.3).astype(np.float32)
    weights = rng.random(neurons).astype(np.float32) + np.float32(0.1)
    stream = rng.standard_normal((tokens, 8)).astype(np.float32)
    return LossCurve(scores, weights, values, weights, stream), scores, weights


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6))
def test_a_higher_price_leaves_out_more_and_loses_more(seed: int, prices: list[float]) -> None:
    curve, scores, weights = _curve(seed)
    cuts = [curve.cut(price) for price in sorted(prices)]
    for lower, higher in pairwise(cuts):
        assert lower.level <= higher.level
        assert lower.kept >= higher.kept
        assert lower.fired >= higher.fired
        assert lower.loss <= higher.loss
    for cut in cuts:
        assert 0 <= cut.fired <= cut.kept <= 1
        kept = (scores > thresholds_of(cut.level, weights)).mean()
        assert kept == pytest.approx(cut.kept, abs=0.005)  # a division rounds


def test_zeros_are_free_and_a_price_of_nothing_loses_nothing() -> None:
    values = np.array([[0.0, 1.0, 0.0, 2.0]], np.float32)
    ones = np.ones(4, np.float32)
    curve = LossCurve(values, ones, values, ones, np.ones((1, 4), np.float32))
    cut = curve.cut(1e-9)
    assert (cut.kept, cut.fired, cut.loss) == (0.5, 0.5, 0.0)
    assert curve.cut(100.0).kept == 0.0
    assert curve.cut(100.0).loss == pytest.approx(5 / 4)


def test_nothing_is_left_out_where_everything_matters() -> None:
    values = np.ones((1, 4), np.float32)
    ones = np.ones(4, np.float32)
    cut = LossCurve(values, ones, values, ones, np.ones((1, 4), np.float32)).cut(1e-9)
    assert cut.kept == 1.0
    assert cut.level == -np.inf
    assert (thresholds_of(cut.level, ones) == -np.inf).all()


def test_a_neuron_without_weight_gets_a_finite_threshold() -> None:
    assert np.isfinite(thresholds_of(1.0, np.array([0, 1], np.float32))).all()
