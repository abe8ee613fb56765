"""The selective KV policies: how they are written, and what a cache holds under heavy hitters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from integer_executor import IntegerExecutor

from localllm.cache import HeavyHitterPolicy, KVCache, ScheduledRows, build_step, parse_kv_policy, pool_sizes
from localllm.errors import ConfigurationError
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.selective import HeavyHitters, QuerySparse


def test_how_policies_are_written() -> None:
    assert parse_kv_policy("h2o:256") == HeavyHitters(256, 128)
    assert parse_kv_policy("H2O:256:200") == HeavyHitters(256, 200)
    assert parse_kv_policy("sparq:16:128") == QuerySparse(16, 128, 32)
    assert parse_kv_policy("sparq:16:128:0") == QuerySparse(16, 128, 0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "h2o", "h2o:", "h2o:1", "h2o:16:16", "h2o:16:0", "h2o:-5", "h2o:1e3", "h2o:\u0663\u0663", "h2o:99999999"),
        *("sparq:16", "sparq:0:5", "sparq:4:0", "sparq:4:8:9", "sparq:4:8:1:1", "window:5", "h2o:4:2:1"),
    ],
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_kv_policy(text)


@given(st.text(max_size=20).filter(lambda text: text.strip().split(":")[0].lower() not in ("h2o", "sparq")))
def test_any_other_name_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_kv_policy(text)


@pytest.mark.parametrize(("capacity", "prompt"), [(40, 100), (48, 48), (33, 30), (300, 90)])
def test_pages_slots_and_indices(capacity: int, prompt: int) -> None:
    """A group without a window has places for `capacity` keys; rows beyond them come alone and without a slot."""
    layout = IntegerExecutor((None, 20)).layout
    policy = HeavyHitterPolicy(200, capacity)
    sizes = pool_sizes(layout, policy, "f16", parallel=1, step_rows=32)
    cache = KVCache(layout, sizes, policy)
    assert not cache.can_fork
    sequence = cache.open(list(range(prompt)))
    while sequence.length < prompt:
        start = sequence.length
        rows = min(cache.room(sequence), prompt - start, 32)
        assert rows == 1 or start + rows <= capacity
        assert cache.reserve(sequence, rows)
        step = build_step(cache, [ScheduledRows(sequence, np.arange(start, start + rows, dtype=np.int32), 1)])
        whole, window = step.groups
        positions = np.arange(start, start + rows)
        np.testing.assert_array_equal(whole.row_index, np.minimum(positions, capacity - 1))
        np.testing.assert_array_equal(whole.slots < 0, positions >= capacity)
        assert whole.pages.shape[1] == -(-min(start + rows, capacity) // PAGE_SIZE)
        assert (window.slots >= 0).all()
        assert window.pages.shape[1] <= 5
        cache.commit(sequence, rows)
    assert sequence.evicted_tokens == max(0, prompt - capacity)
    cache.release(sequence, publish=True)
    assert cache.usage().held == cache.usage().cached == 0


def test_the_context_ends() -> None:
    policy = HeavyHitterPolicy(50, 40)
    assert [policy.room(length, 0) for length in (0, 39, 40, 49, 50)] == [40, 1, 1, 1, 0]
