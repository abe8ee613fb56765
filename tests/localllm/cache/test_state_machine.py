"""Any sequence of operations: no leak, reference counts equal to holders, and every row sees exactly what it should.

The oracle recomputes each row from the tokens alone: which positions its policy lets it see, token by token.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_executor import IntegerExecutor, attention, embedding, seal

from localllm.cache import POLICIES, CachedSequence, KVCache, PoolSizes, ScheduledRows, build_step
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.step import Output

CONTEXT = 160
PRECISE = 1  # sink pages in full precision
EXAMPLES = int(os.environ.get("LOCALLLM_EXAMPLES", "8"))  # more for a thorough run
TEXTS = [np.random.default_rng(seed).integers(0, 8, 300).tolist() for seed in range(2)]


class Setup:
    """A kind of cache, and what its rows should see (written without the code under test)."""

    def __init__(self, windows: tuple[int | None, ...], window: int | None, seal_tokens: int) -> None:
        self.windows, self.window, self.seal_tokens = windows, window, seal_tokens
        self.visible = cache(self._visible)

    def _visible(self, position: int, native: int | None, sink_pages: int) -> tuple[list[int], int | None]:
        """Positions seen by the row at `position`; with evictions, its cache-relative position as well."""
        everything = list(range(position + 1))
        if native is not None and native < (self.window or CONTEXT):
            return everything[-native:], None
        if self.window is None:
            return everything, None
        kept: list[int] = []
        evicted = False
        for next_position in everything:
            if len(kept) == self.window // PAGE_SIZE * PAGE_SIZE:
                movable = len(kept) // PAGE_SIZE - sink_pages
                pages = (movable + 3) // 4
                sinks = sink_pages * PAGE_SIZE
                kept = kept[:sinks] + kept[sinks + pages * PAGE_SIZE :]
                evicted = True
            kept.append(next_position)
        return kept, len(kept) - 1 if evicted else None

    def is_sealed(self, key: int, position: int, sink_pages: int) -> bool:
        """Whether the row at `position` reads `key` from the quantised pool."""
        if not self.seal_tokens or key < max(1, min(sink_pages, PRECISE)) * PAGE_SIZE:
            return False
        return key < position // self.seal_tokens * self.seal_tokens


class Prefix:
    """A prefix of tokens; `levels[l]` is what layer l stores for its last token, the last level is above all layers."""

    def __init__(self, levels: list[int]) -> None:
        self.levels = levels
        self.longer: dict[int, Prefix] = {}


class Oracle:
    """What every row computes, from its tokens alone."""

    def __init__(self, setup: Setup, sink_pages: int) -> None:
        self.setup, self.sink_pages = setup, sink_pages
        self.root = Prefix([])

    def rows(self, tokens: Iterable[int]) -> list[int]:
        """The content of each row of a sequence."""
        path: list[Prefix] = []
        node = self.root
        for token in tokens:
            if token not in node.longer:
                node.longer[token] = Prefix(self._levels(token, path))
            node = node.longer[token]
            path.append(node)
        return [prefix.levels[-1] for prefix in path]

    def _levels(self, token: int, path: list[Prefix]) -> list[int]:
        position = len(path)
        x = embedding(np.array([token], np.int32))
        levels = [int(x[0])]
        for layer, window in enumerate(self.setup.windows):
            visible, near = self.setup.visible(position, window, self.sink_pages)
            keys, distances = [], []
            for key in visible:
                stored = np.array([path[key].levels[layer] if key < position else levels[layer]], np.uint64)
                sealed = self.setup.is_sealed(key, position, self.sink_pages)
                keys.append(seal(stored) if sealed else stored)
                is_sink = near is not None and key < self.sink_pages * PAGE_SIZE
                distances.append((near if is_sink and near is not None else position) - key)
            x = attention(x, np.concatenate(keys), np.array(distances))
            levels.append(int(x[0]))
        return levels


class Machine:
    """Drives a KVCache and an IntegerExecutor as an engine would; what an operation does follows from three numbers."""

    def __init__(self, setup: Setup, pages: int) -> None:
        self.setup = setup
        self.executor = IntegerExecutor(setup.windows, vocabulary_size=8, max_rows=10**6)
        groups = len(setup.windows)
        sizes = PoolSizes((pages,) * groups, (pages,) * groups if setup.seal_tokens else (), setup.seal_tokens, PRECISE)
        policy = POLICIES["error"](CONTEXT, None) if setup.window is None else POLICIES["window"](setup.window, None)
        self.cache = KVCache(self.executor.layout, sizes, policy)
        self.executor.allocate_kv(sizes.main, "q8" if setup.seal_tokens else "f32", sizes.staging)
        self.live: list[CachedSequence] = []
        self.oracles: dict[int, Oracle] = {}
        self.longest = CONTEXT if setup.window is None else 3 * setup.window

    def act(self, operation: int, a: int, b: int, c: int) -> None:
        """One operation; numbers 0 to 999."""
        parked = self.cache.parked
        if operation == 0 and parked and a % 2:
            before = parked[b % len(parked)].tokens.tolist()
            self.open(before[: len(before) - c % 40] + [1] * (1 + c % 3), 20 * (b % 3 == 0))
            return
        if operation < 2 or not self.live:
            self.open(TEXTS[a % 2][: 1 + b % len(TEXTS[0])] + [0, 1, 2][: c % 4], 20 * (c % 3 == 0))
            return
        sequence = self.live[a % len(self.live)]
        if operation < 4:
            self.complete(sequence, chunk=1 + b % 64, publish=c % 4 > 0)
        elif operation < 6:
            others = {a % len(self.live), b % len(self.live), c % len(self.live)}
            self.step([self.live[index] for index in others], b, c)
        elif operation == 6 and not sequence.moves:
            self.live.append(self.cache.fork(sequence))
        elif operation == 7:
            more = [0] * (b % 20) + [1] * (c % 20)
            sequence.tokens.extend(more[: max(0, self.longest - len(sequence.tokens))])
        elif operation == 8:
            self.cache.release(self.live.pop(a % len(self.live)), publish=b % 4 > 0)
        elif b % 20 == 0:
            self.cache.clear()

    def open(self, tokens: list[int], protected: int) -> None:
        sequence = self.cache.open(tokens[: self.longest], protected=protected)
        assert 0 <= sequence.length < len(sequence.tokens)
        self.live.append(sequence)

    def complete(self, sequence: CachedSequence, chunk: int, publish: bool) -> None:
        """Run all tokens that are there, some at a time."""
        while (waiting := len(sequence.tokens) - sequence.length) > 0:
            rows = min(waiting, chunk, self.cache.room(sequence))
            if not self.cache.reserve(sequence, rows):
                return
            self.run([(sequence, sequence.tokens[sequence.length : sequence.length + rows].tolist(), rows)])
            if publish:
                self.cache.publish(sequence)

    def step(self, chosen: list[CachedSequence], a: int, b: int) -> None:
        """Rows of several sequences in one step; behind the last token come guesses, some of them right."""
        plans = []
        for index, sequence in enumerate(chosen):
            waiting = len(sequence.tokens) - sequence.length
            rows = min(1 + a % 40, waiting)
            guesses = b % 20 if rows == waiting else 0
            rows = min(rows + guesses, self.cache.room(sequence), self.longest - sequence.length)
            if rows == 0 or not self.cache.reserve(sequence, rows):
                continue
            tokens = sequence.tokens[sequence.length : sequence.length + rows].tolist()
            tokens += [(a >> bit) + index & 1 for bit in range(rows - len(tokens))]
            least = min(rows, max(1, waiting))
            plans.append((sequence, tokens, least + (a + b) % (rows - least + 1)))
        self.run(plans)
        for sequence, _, _ in plans[: b % 4]:
            self.cache.publish(sequence)

    def run(self, plans: list[tuple[CachedSequence, list[int], int]]) -> None:
        """One step of (reserved sequence, tokens of its rows, how many of them are right), checked row by row."""
        if not plans:
            return
        scheduled = [ScheduledRows(sequence, np.array(tokens, np.int32), len(tokens)) for sequence, tokens, _ in plans]
        hidden = self.executor.forward(build_step(self.cache, scheduled, Output.HIDDEN)).astype(np.uint64)
        self.executor.steps.clear()
        values = hidden @ (np.uint64(1) << np.array([0, 16, 32, 48], np.uint64))
        at = 0
        for sequence, tokens, accepted in plans:
            oracle = self.oracles.setdefault(sequence.sink_pages, Oracle(self.setup, sequence.sink_pages))
            expected = oracle.rows([*sequence.tokens[: sequence.length], *tokens])[sequence.length :]
            assert values[at : at + len(tokens)].tolist() == expected
            at += len(tokens)
            known = len(sequence.tokens) - sequence.length
            sequence.tokens.extend(tokens[known:accepted])
            self.cache.commit(sequence, accepted)

    def check(self) -> None:
        """Every reference has exactly one holder, and no sequence has a page twice."""
        holders: list[Counter[int]] = [Counter() for _ in self.cache.groups]
        for sequence in [*self.live, *self.cache.parked]:
            for group, table in enumerate(sequence.tables):
                entries = table.entries.tolist()
                assert len(set(entries)) == len(entries)
                holders[group].update(entries)
            for group, entry in sequence.sources:
                holders[group][entry] += 1
        for group, pools in enumerate(self.cache.groups):
            for pool, sign in ((pools.main, 0), (pools.staging, -1)):
                for page in range(pool.size):
                    assert pool.holders(page) == holders[group][page ^ sign]
                assert pool.held + pool.available == pool.size

    def finish(self) -> None:
        """Nothing is left in the end."""
        while self.live:
            self.cache.release(self.live.pop(), publish=True)
        self.check()
        self.cache.clear()
        assert self.cache.usage().held == self.cache.usage().cached == 0


SETUPS = {
    "full": (Setup((None,), None, 0), 24),
    "full and windows": (Setup((None, 20, 1), None, 0), 24),
    "only windows": (Setup((20, 37), None, 0), 24),
    "sinks": (Setup((None, 20, 90), 80, 0), 24),
    "quantised": (Setup((None, 40), None, 32), 24),
    "quantised sinks": (Setup((None, 40), 96, 32), 24),
    "few pages": (Setup((None, 20), 80, 0), 11),
}
NUMBERS = st.integers(0, 999)


@pytest.mark.parametrize("name", list(SETUPS))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=st.lists(st.tuples(st.integers(0, 9), NUMBERS, NUMBERS, NUMBERS), min_size=60, max_size=90))
def test_any_sequence_of_operations(name: str, operations: list[tuple[int, int, int, int]]) -> None:
    machine = Machine(*SETUPS[name])
    for operation in operations:
        machine.act(*operation)
        machine.check()
    machine.finish()
