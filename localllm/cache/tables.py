"""Builds the Step of a set of scheduled rows from the page tables of their sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.step import GroupTables, Output, Step, TreeMask

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from .cache import KVCache
    from .sequence import CachedSequence


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledRows:
    """Rows of one sequence, from its length on (reserved); the output of the last `outputs` of them is wanted.

    `parents`: the last rows are a tree, each follows another of them (by its number) or the row before all (-1).
    """

    sequence: CachedSequence
    tokens: npt.NDArray[np.int32]
    outputs: int
    parents: tuple[int, ...] = ()


def build_step(
    cache: KVCache,
    scheduled: Sequence[ScheduledRows],
    output: Output = Output.LOGITS,
    hidden: npt.NDArray[np.float32] | None = None,
    taps: tuple[int, ...] = (),
) -> Step:
    """One Step over all rows, in the given order. `hidden`, `taps`: as in Step."""
    sequences = [rows.sequence for rows in scheduled]
    positions, row_sequence, wanted = _one(scheduled[0]) if len(scheduled) == 1 else _several(scheduled)
    groups = tuple(
        _group_tables(sequences, index, row_sequence, positions, group.policy.capacity)
        for index, group in enumerate(cache.groups)
    )
    shift, tree = _trees(scheduled) if any(rows.parents for rows in scheduled) else (None, None)
    near = cache.policy_group
    evicted = near is not None and any(sequence.evicted_at for sequence in sequences)
    return Step(
        tokens=scheduled[0].tokens if len(scheduled) == 1 else np.concatenate([rows.tokens for rows in scheduled]),
        positions=positions if shift is None else positions - shift,
        sequences=row_sequence,
        groups=groups,
        output_rows=wanted,
        output=output,
        sink_positions=_sink_positions(groups[near], shift) if near is not None and evicted else None,
        tree=tree,
        hidden=hidden,
        taps=taps,
        moves=tuple(move for sequence in sequences for move in sequence.moves),
    )


def _sink_positions(tables: GroupTables, shift: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    near = tables.row_index.astype(np.int64)
    return near if shift is None else near - shift


def _trees(scheduled: Sequence[ScheduledRows]) -> tuple[npt.NDArray[np.int64], TreeMask]:
    """How far each row's position lies before its place, for siblings share a position, and who sees whom."""
    total = sum(len(rows.tokens) for rows in scheduled)
    shift, ancestors = np.zeros(total, np.int64), np.zeros((total, total), np.bool_)
    start = 0
    for rows in scheduled:
        count = len(rows.tokens)
        own = ancestors[start : start + count, start : start + count]
        own[:] = np.tri(count, dtype=np.bool_)
        first = count - len(rows.parents)
        depths: list[int] = []
        for index, parent in enumerate(rows.parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            own[first + index] = own[first + parent]
            own[first + index, first + index] = True
            shift[start + first + index] = index - depths[index]
        start += count
    return shift, TreeMask(ancestors)


def _one(rows: ScheduledRows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Positions, sequence and output rows of a step with one sequence, which is the most common one."""
    count, length = len(rows.tokens), rows.sequence.length
    return (
        np.arange(length, length + count, dtype=np.int64),
        np.zeros(count, np.int32),
        np.arange(count - rows.outputs, count, dtype=np.int32),
    )


def _several(
    scheduled: Sequence[ScheduledRows],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    counts = np.array([len(rows.tokens) for rows in scheduled])
    lengths = np.array([rows.sequence.length for rows in scheduled], np.int64)
    ends = counts.cumsum()
    row_sequence = np.arange(len(scheduled), dtype=np.int32).repeat(counts)
    positions = np.arange(ends[-1], dtype=np.int64) + (lengths - ends + counts)[row_sequence]
    if ends[-1] == len(scheduled):
        return positions, row_sequence, row_sequence
    wanted = [np.arange(end - rows.outputs, end) for rows, end in zip(scheduled, ends.tolist(), strict=True)]
    return positions, row_sequence, np.concatenate(wanted).astype(np.int32)


def _group_tables(
    sequences: Sequence[CachedSequence],
    group: int,
    row_sequence: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    capacity: int | None,
) -> GroupTables:
    tables = [sequence.tables[group] for sequence in sequences]
    if len(tables) == 1:
        pages = tables[0].entries[None].copy()
    else:
        pages = np.zeros((len(tables), max(table.count for table in tables)), np.int32)
        for index, table in enumerate(tables):
            pages[index, : table.count] = table.entries
    dropped = [table.dropped * PAGE_SIZE for table in tables]
    logical = positions - (dropped[0] if len(tables) == 1 else np.array(dropped, np.int64)[row_sequence])
    if capacity is not None:
        logical = np.minimum(logical, capacity - 1)
    entries = pages[row_sequence, logical // PAGE_SIZE].astype(np.int64)
    entries ^= entries >> 63  # ~entry is the page in the staging pool
    slots = entries * PAGE_SIZE + positions % PAGE_SIZE
    if capacity is not None:
        slots[positions >= capacity] = -1  # the executor finds the places
    return GroupTables(
        pages=pages,
        sink_tokens=np.array([table.sink_tokens for table in tables], np.int32),
        window_start=np.array([table.window_start for table in tables], np.int64),
        slots=slots,
        row_index=logical.astype(np.int32),
    )
