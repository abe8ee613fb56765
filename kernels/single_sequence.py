"""One sequence through an executor: the steps and the page tables that need no scheduler and no cache policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .kv_layout import PAGE_SIZE, QUANTISED, SEAL_TOKENS
from .step import GroupTables, Output, PageMove, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from .executor import Executor
    from .kv_layout import KVLayout, KVType


_SINK_PAGES = 1
_SEALED_PAGES = SEAL_TOKENS // PAGE_SIZE


def pages_for(layout: KVLayout, tokens: int, capacity: int | None = None) -> tuple[int, ...]:
    """How many pages every cache group needs for `tokens` tokens of one sequence, `capacity` as in `simple_step`."""
    held = [
        tokens if capacity is None or group.window is not None else min(tokens, capacity) for group in layout.groups
    ]
    return tuple(-(-count // PAGE_SIZE) for count in held)


def allocate_for(executor: Executor, tokens: int, kv_type: KVType, capacity: int | None = None) -> None:
    """Make the executor's KV cache anew, for one sequence of `tokens` tokens run by `simple_step`."""
    groups = len(executor.layout.groups)
    staging = _SINK_PAGES + _SEALED_PAGES if kv_type in QUANTISED else 0
    executor.allocate_kv(pages_for(executor.layout, tokens, capacity), kv_type, (staging,) * groups)


def chunks(
    start: int, stop: int, most: int, kv_type: KVType = "f32", capacity: int | None = None
) -> Iterator[tuple[int, int]]:
    """Divide the tokens from `start` to `stop` into steps of at most `most` rows that `simple_step` can make."""
    while start < stop:
        end = min(stop, start + most)
        if capacity is not None:
            end = min(end, max(capacity, start + 1))
        if kv_type in QUANTISED:
            end = min(end, (start // SEAL_TOKENS + 1) * SEAL_TOKENS)
        yield start, end
        start = end


def simple_step(
    layout: KVLayout,
    tokens: Sequence[int] | npt.NDArray[np.integer],
    start: int = 0,
    *,
    output_rows: npt.NDArray[np.int32] | None = None,
    output: Output = Output.LOGITS,
    kv_type: KVType = "f32",
    capacity: int | None = None,
) -> Step:
    """A step over `tokens` at positions start, start + 1, ...; nothing evicted, position p in slot p of every group.

    `output_rows` None: the output of every row. Of a quantised cache the first page and those since the last multiple
    of SEAL_TOKENS are in full precision; a step must not go beyond the next multiple (see `chunks`). `capacity`:
    what heavy hitters keep in groups without a window.
    """
    rows = len(tokens)
    positions = np.arange(start, start + rows, dtype=np.int64)
    entries = np.arange(-(-(start + rows) // PAGE_SIZE), dtype=np.int32)
    slots = positions
    moves: tuple[PageMove, ...] = ()
    if kv_type in QUANTISED:
        entries, slots, moves = _quantised(layout, entries, positions)
    tables = GroupTables(
        pages=entries[None, :],
        sink_tokens=np.zeros(1, np.int32),
        window_start=np.zeros(1, np.int64),
        slots=slots,
        row_index=positions.astype(np.int32),
    )
    limited = tables if capacity is None else _limited(tables, positions, capacity)
    return Step(
        tokens=np.asarray(tokens, np.int32),
        positions=positions,
        sequences=np.zeros(rows, np.int32),
        groups=tuple(limited if group.window is None else tables for group in layout.groups),
        output_rows=np.arange(rows, dtype=np.int32) if output_rows is None else output_rows,
        output=output,
        moves=moves,
    )


def _limited(tables: GroupTables, positions: npt.NDArray[np.int64], capacity: int) -> GroupTables:
    """Tables for `capacity` keys; a row beyond them has no slot, see `selective.HeavyHitters`."""
    return replace(
        tables,
        pages=tables.pages[:, : -(-capacity // PAGE_SIZE)],
        slots=np.where(positions < capacity, positions, -1),
        row_index=np.minimum(positions, capacity - 1).astype(np.int32),
    )


def _quantised(
    layout: KVLayout, pages: npt.NDArray[np.int32], positions: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], tuple[PageMove, ...]]:
    """Page entries, slots and moves of a step: page p lies in the main pool, or in the staging pool as ~`recent(p)`."""
    start = int(positions[0])
    if int(positions[-1]) // SEAL_TOKENS != start // SEAL_TOKENS:
        raise ValueError(f"a step over a quantised cache must not go beyond a multiple of {SEAL_TOKENS} tokens")
    recent = np.where(pages < _SINK_PAGES, pages, _SINK_PAGES + pages % _SEALED_PAGES)
    first = start // SEAL_TOKENS * _SEALED_PAGES
    entries = np.where((pages < _SINK_PAGES) | (pages >= first), ~recent, pages).astype(np.int32)
    slots = recent[positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
    moves: tuple[PageMove, ...] = ()
    if start % SEAL_TOKENS == 0:
        sealed = range(max(_SINK_PAGES, first - _SEALED_PAGES), first)
        groups = range(len(layout.groups))
        moves = tuple(PageMove(group, ~int(recent[page]), page) for group in groups for page in sealed)
    return entries, slots, moves


def logits_of(
    executor: Executor,
    tokens: Sequence[int] | npt.NDArray[np.integer],
    *,
    kv_type: KVType = "f32",
    output: Output = Output.LOGITS,
    chunk: int | None = None,
    capacity: int | None = None,
) -> npt.NDArray[np.float32]:
    """Logits (or hidden vectors) of every token of a fresh sequence: [len(tokens), vocabulary or hidden].

    Allocates the executor's KV cache anew, for this sequence alone. `chunk` rows are run at a time (None: `max_rows`).
    `capacity`: that of an executor opened with `HeavyHitters`.
    """
    allocate_for(executor, len(tokens), kv_type, capacity)
    outputs = []
    for start, stop in chunks(0, len(tokens), min(chunk or executor.max_rows, executor.max_rows), kv_type, capacity):
        step = simple_step(
            executor.layout, tokens[start:stop], start, output=output, kv_type=kv_type, capacity=capacity
        )
        outputs.append(executor.forward(step).copy())
    return np.concatenate(outputs)
