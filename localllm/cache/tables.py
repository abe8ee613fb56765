"""Builds the Step of a set of scheduled rows from the page tables of their sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.step import GroupTables, Output, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from .cache import KVCache
    from .sequence import CachedSequence


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledRows:
    """Rows of one sequence, from its length on (reserved); the output of the last `outputs` of them is wanted."""

    sequence: CachedSequence
    tokens: npt.NDArray[np.int32]
    outputs: int


def build_step(cache: KVCache, scheduled: Sequence[ScheduledRows], output: Output = Output.LOGITS) -> Step:
    """One Step over all rows, in the given order."""
    sequences = [rows.sequence for rows in scheduled]
    counts = np.array([len(rows.tokens) for rows in scheduled])
    ends = np.cumsum(counts)
    first = ends - counts
    row_sequence = np.repeat(np.arange(len(sequences), dtype=np.int32), counts)
    lengths = np.array([sequence.length for sequence in sequences], np.int64)
    positions = np.arange(ends[-1], dtype=np.int64) + (lengths - first)[row_sequence]
    wanted = [np.arange(end - rows.outputs, end) for rows, end in zip(scheduled, ends.tolist(), strict=True)]
    groups = tuple(_group_tables(sequences, group, row_sequence, positions) for group in range(len(cache.groups)))
    near = cache.policy_group
    evicted = near is not None and any(sequence.evicted_at for sequence in sequences)
    return Step(
        tokens=np.concatenate([rows.tokens for rows in scheduled]),
        positions=positions,
        sequences=row_sequence,
        groups=groups,
        output_rows=np.concatenate(wanted).astype(np.int32),
        output=output,
        sink_positions=groups[near].row_index.astype(np.int64) if near is not None and evicted else None,
        moves=tuple(move for sequence in sequences for move in sequence.moves),
    )


def _group_tables(
    sequences: Sequence[CachedSequence],
    group: int,
    row_sequence: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
) -> GroupTables:
    tables = [sequence.tables[group] for sequence in sequences]
    pages = np.zeros((len(tables), max(table.count for table in tables)), np.int32)
    for index, table in enumerate(tables):
        pages[index, : table.count] = table.entries
    dropped = np.array([table.dropped * PAGE_SIZE for table in tables], np.int64)
    logical = positions - dropped[row_sequence]
    entries = pages[row_sequence, logical // PAGE_SIZE].astype(np.int64)
    entries ^= entries >> 63  # ~entry is the page in the staging pool
    return GroupTables(
        pages=pages,
        sink_tokens=np.array([table.sink_tokens for table in tables], np.int32),
        window_start=np.array([table.window_start for table in tables], np.int64),
        slots=entries * PAGE_SIZE + positions % PAGE_SIZE,
        row_index=logical.astype(np.int32),
    )
