"""Quantised pages: every number comes back within half a step, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.kernels.kv_layout import KVType
from localllm.kernels.kv_quantise import (
    QUANTISATIONS,
    dequantise_keys,
    dequantise_values,
    key_steps,
    quantise_keys,
    quantise_values,
    value_groups,
    value_steps,
)

TYPES: list[KVType] = ["q8", "q4", "q2"]


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(-3, 4),
    offset=st.floats(0, 2),
    channels=st.sampled_from([2, 16, 70]),
)
def test_keys_are_within_a_step(name: KVType, seed: int, scale: float, offset: float, channels: int) -> None:
    random, kind = np.random.default_rng(seed), QUANTISATIONS[name]
    keys = random.standard_normal((3, channels, 16)) * 10.0**scale * random.uniform(0.01, 1, (3, channels, 1))
    keys += (
        random.standard_normal((3, channels, 1)) * 10.0 ** (scale + offset) * (random.random((3, channels, 1)) < 0.1)
    )
    stored = quantise_keys(np.clip(keys, -65504, 65504).astype(np.float32), kind)
    step = key_steps(stored.base, stored.steps)[..., None]
    error = np.abs(dequantise_keys(stored, kind) - np.clip(keys, -65504, 65504))
    assert (error <= 0.502 * step + 1e-6 * np.abs(keys)).all()


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(-2, 4), channels=st.sampled_from([1, 16, 64, 80, 256]))
def test_values_are_within_a_step(name: KVType, seed: int, scale: float, channels: int) -> None:
    random, kind = np.random.default_rng(seed), QUANTISATIONS[name]
    values = random.standard_normal((2, 16, channels)) * 10.0**scale + random.uniform(-1, 1) * 10.0**scale
    values = np.clip(values, -65504, 65504).astype(np.float32)
    stored = quantise_values(values, kind)
    error = np.abs(dequantise_values(stored, kind) - values)
    for index, group in enumerate(value_groups(channels)):
        step = value_steps(stored.steps[..., index, :])[..., None]
        assert (error[..., group] <= 0.51 * step + 1e-6 * np.abs(values[..., group])).all()


@pytest.mark.parametrize("name", TYPES)
def test_equal_numbers_and_zeros(name: KVType) -> None:
    kind = QUANTISATIONS[name]
    for constant in (0.0, 1.0, -250.0, 65504.0):
        keys = np.full((4, 16), constant, np.float32)
        back = dequantise_keys(quantise_keys(keys, kind), kind)
        np.testing.assert_allclose(back, keys, rtol=0.01)
        back = dequantise_values(quantise_values(keys.T.copy(), kind), kind)
        np.testing.assert_allclose(back, keys.T, rtol=0.1)


def test_groups_of_values_cover_all_channels_once() -> None:
    for channels in range(1, 300):
        covered = [c for group in value_groups(channels) for c in range(channels)[group]]
        assert covered == list(range(channels))
