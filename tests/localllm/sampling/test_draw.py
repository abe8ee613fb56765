"""Drawing in blocks gives the token that the running sum over everything gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.sampling import Sampler, SamplingParameters
from localllm.sampling.draw import BLOCK, draw_plain


@given(
    st.integers(1, 3 * BLOCK + 7),
    st.integers(0, 2**32 - 1),
    st.floats(0.05, 3.0),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 0.9),
)
def test_as_one_running_sum(size: int, seed: int, temperature: float, draw: float, banned: float) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 4, size).astype(np.float32)
    logits[random.random(size) < banned] = -np.inf
    logits[random.integers(size)] = 2.0
    weights = np.exp((logits.astype(np.float64) - float(logits.max())) / temperature)
    ends = np.cumsum(weights)
    token = draw_plain(logits, temperature, draw)
    assert weights[token] > 0
    before = ends[token] - weights[token]
    slack = 1e-12 * ends[-1]
    assert before - slack <= draw * ends[-1] <= ends[token] + slack


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_the_last_draw_takes_the_last_possible_token(size: int) -> None:
    logits = np.full(size, -np.inf, np.float32)
    logits[size // 2] = 1.0
    for draw in (0.0, 0.5, np.nextafter(1.0, 0.0)):
        assert draw_plain(logits, 1.0, draw) == size // 2


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.99), st.integers(0, 50))
def test_a_quick_first_look_leaves_min_p_as_it_is(seed: int, min_p: float, top_k: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 700).astype(np.float32)
    plain = Sampler(SamplingParameters(min_p=min_p, top_k=top_k), 700)
    slow = Sampler(SamplingParameters(min_p=min_p, top_k=top_k, logit_bias={1: 0.0}), 700)
    assert np.allclose(plain.distribution(logits, []), slow.distribution(logits, []), atol=1e-12)
