"""The thread count that is chosen on simulated machines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from localllm.kernels.cpu.governor import ThreadGovernor


def _run(governor: ThreadGovernor, steps: int, seconds: Callable[[int], float]) -> list[int]:
    counts = []
    for _ in range(steps):
        counts.append(governor.choose())
        governor.record(seconds(counts[-1]))
    return counts


def _share(counts: list[int], wanted: int) -> float:
    return counts.count(wanted) / len(counts)


def test_a_quiet_machine_keeps_all_threads() -> None:
    governor = ThreadGovernor(8)
    counts = _run(governor, 4000, lambda n: 1.0 / n)
    assert _share(counts, 8) > 0.99


def test_a_machine_where_more_threads_are_slower_settles_below() -> None:
    best = {1: 4.0, 2: 2.0, 4: 1.5, 6: 3.0}
    counts = _run(ThreadGovernor(6), 1000, lambda n: best[n])
    assert counts[0] == 6
    assert _share(counts[200:], 4) > 0.9


def test_little_work_begins_with_few_threads_and_takes_more_if_they_help() -> None:
    governors = [ThreadGovernor(12, first) for first in (0, 1, 3, 4, 9, 99)]
    assert [governor.choose() for governor in governors] == [1, 1, 4, 4, 12, 12]
    counts = _run(ThreadGovernor(8, 2), 2000, lambda n: 1.0 / n)
    assert counts[0] == 2
    assert counts[-1] == 8


def test_a_core_that_gets_busy_is_given_up_and_taken_back() -> None:
    governor = ThreadGovernor(2)
    quiet, busy = {1: 1.0, 2: 0.6}, {1: 1.1, 2: 6.0}
    _run(governor, 300, lambda n: quiet[n])
    loaded = _run(governor, 400, lambda n: busy[n])
    assert 1 in loaded[:20]
    assert _share(loaded[40:], 1) > 0.95
    again = _run(governor, 2500, lambda n: quiet[n])
    assert again[-1] == 2


def test_one_thread_is_never_doubted() -> None:
    assert set(_run(ThreadGovernor(1), 200, lambda n: 1.0)) == {1}


def test_steps_of_different_cost_and_a_drifting_machine_change_nothing() -> None:
    """Half the threads take 1.15 times as long, but steps differ by a quarter, and there are slow hours."""
    for seed in range(8):
        rng, slow = np.random.default_rng(seed), 0
        governor = ThreadGovernor(16)

        def seconds(count: int, rng: np.random.Generator = rng) -> float:
            nonlocal slow
            slow = slow - 1 if slow else int(rng.integers(5, 60)) * int(rng.random() < 0.02)
            return float((1.4 if slow else 1.0) * 1.15 ** np.log2(16 / count) * rng.uniform(0.75, 1.25))

        assert _share(_run(governor, 3000, seconds), 16) > 0.9
