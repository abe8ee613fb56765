"""Sharing, copying, evicting: the cases that have a name."""

from __future__ import annotations

import numpy as np
from integer_executor import integer_layout

from localllm.cache import POLICIES, CachedSequence, KVCache, PoolSizes, ScheduledRows, build_step, pool_sizes
from localllm.kernels.kv_layout import PAGE_SIZE


def cache_of(
    pages: int = 32, windows: tuple[int | None, ...] = (None,), window: int | None = None, reuse: bool = True
) -> KVCache:
    policy = POLICIES["error"](1024, None) if window is None else POLICIES["window"](window, None)
    return KVCache(integer_layout(windows), PoolSizes((pages,) * len(windows)), policy, reuse=reuse)


def run(cache: KVCache, sequence: CachedSequence) -> None:
    while sequence.length < len(sequence.tokens):
        rows = min(len(sequence.tokens) - sequence.length, cache.room(sequence))
        assert cache.reserve(sequence, rows)
        cache.commit(sequence, rows)
        cache.publish(sequence)


def test_equal_prefixes_share_pages_while_both_run() -> None:
    cache = cache_of()
    first = cache.open(list(range(40)))
    run(cache, first)
    second = cache.open([*range(32), 99, 98])
    assert second.matched == 32
    assert second.tables[0].entries.tolist() == first.tables[0].entries.tolist()[:2]
    assert cache.usage().held == 3


def test_a_prefix_that_ends_inside_a_page_is_copied() -> None:
    cache = cache_of()
    first = cache.open(list(range(40)))
    run(cache, first)
    cache.release(first, publish=True)
    second = cache.open([*range(38), 99])
    assert second.matched == 38
    (move,) = second.moves
    assert move.source not in second.tables[0].entries
    assert move.destination == second.tables[0].entries[2]
    assert cache.reserve(second, 1)
    step = build_step(cache, [ScheduledRows(second, np.array([99], np.int32), 1)])
    assert step.moves == (move,)
    cache.commit(second, 1)
    assert not second.moves


def test_two_computations_of_one_block_end_in_one_page() -> None:
    cache = cache_of()
    one, other = cache.open(list(range(20))), cache.open(list(range(20)))
    run(cache, one)
    run(cache, other)
    assert one.tables[0].entries[0] == other.tables[0].entries[0]
    assert one.tables[0].entries[1] != other.tables[0].entries[1]


def test_the_deepest_block_of_the_oldest_prefix_is_reused_first() -> None:
    cache = cache_of(pages=6)
    old = cache.open(list(range(48)))
    run(cache, old)
    cache.release(old, publish=True)
    new = cache.open(list(range(100, 164)))
    run(cache, new)
    cache.release(new, publish=True)
    assert cache.open([*range(48), 1]).matched == 32
    assert cache.open([*range(100, 164), 1]).matched == 64


def test_without_reuse_nothing_is_found() -> None:
    cache = cache_of(reuse=False)
    first = cache.open(list(range(40)))
    run(cache, first)
    cache.release(first, publish=True)
    assert cache.open(list(range(41))).matched == 0
    assert cache.usage().cached == 0


def test_what_is_not_sane_is_not_found() -> None:
    cache = cache_of()
    first = cache.open(list(range(40)))
    assert cache.reserve(first, 40)
    cache.commit(first, 40)
    cache.release(first, publish=False)
    assert cache.open(list(range(41))).matched == 0
    assert cache.usage().held == 0


def test_too_few_pages_take_nothing() -> None:
    cache = cache_of(pages=3)
    first = cache.open(list(range(40)))
    run(cache, first)
    second = cache.open(list(range(100, 120)))
    assert not cache.reserve(second, 20)
    assert second.tables[0].count == 0
    cache.release(first, publish=True)
    assert cache.reserve(second, 20)


def test_an_evicted_chat_goes_on_where_it_was_but_is_shared_with_nobody() -> None:
    cache = cache_of(window=64)
    tokens = [*range(200)]
    first = cache.open(tokens)
    run(cache, first)
    assert first.evicted_tokens == 144  # 9 pages; 200 tokens fill 13, and sinks + window are 4
    cache.release(first, publish=True)
    assert [sequence.length for sequence in cache.parked] == [200]
    other = cache.open([*range(100), 999])
    assert other.matched == 64  # computed before anything was evicted
    again = cache.open([*tokens, 5, 6, 7])
    assert again.matched == 200
    assert not cache.parked


def test_windows_of_layers_free_their_pages() -> None:
    cache = cache_of(windows=(None, 20), pages=64)
    sequence = cache.open(list(range(400)))
    run(cache, sequence)
    assert cache.reserve(sequence, 1)
    assert [table.count for table in sequence.tables] == [26, 3]
    assert sequence.evicted_tokens == 0


def test_a_pool_of_the_planned_size_holds_the_longest_sequence() -> None:
    for window in (None, 96):
        policy = POLICIES["error"](200, None) if window is None else POLICIES["window"](window, None)
        layout = integer_layout((None, 20, 64))
        sizes = pool_sizes(layout, policy, "f16", parallel=1, step_rows=50)
        cache = KVCache(layout, sizes, policy)
        for start in (0, 0, 1):  # the second finds the first one's prefix
            sequence = cache.open(list(range(start, start + 200)))
            while sequence.length < 200:
                rows = min(50, cache.room(sequence), 200 - sequence.length)
                assert cache.reserve(sequence, rows)
                cache.commit(sequence, rows)
                cache.publish(sequence)
            cache.release(sequence, publish=True)


def test_rows_of_two_sequences_are_laid_out_as_the_step_says() -> None:
    cache = cache_of(window=64)
    long, short = cache.open(list(range(70))), cache.open([7, 8])
    run(cache, long)
    long.tokens.append(5)
    assert cache.reserve(long, 1)
    assert cache.reserve(short, 2)
    rows = [ScheduledRows(short, np.array([7, 8], np.int32), 1), ScheduledRows(long, np.array([5], np.int32), 1)]
    step = build_step(cache, rows)
    (tables,) = step.groups
    assert step.positions.tolist() == [0, 1, 70]
    assert step.sequences.tolist() == [0, 0, 1]
    assert step.output_rows.tolist() == [1, 2]
    assert tables.row_index.tolist() == [0, 1, 70 - PAGE_SIZE]
    assert tables.sink_tokens.tolist() == [0, PAGE_SIZE]
    assert tables.window_start.tolist() == [0, 2 * PAGE_SIZE]
    assert step.sink_positions is not None
    assert step.sink_positions.tolist() == [0, 1, 70 - PAGE_SIZE]
    assert tables.slots[2] == tables.pages[1, 3] * PAGE_SIZE + 70 % PAGE_SIZE
