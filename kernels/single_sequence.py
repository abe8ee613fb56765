"""One sequence through an executor: the steps and the page tables that need no scheduler and no cache policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .kv_layout import PAGE_SIZE
from .step import GroupTables, Output, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from .executor import Executor
    from .kv_layout import KVLayout, KVType


def pages_for(layout: KVLayout, tokens: int) -> tuple[int, ...]:
    """How many pages every cache group needs to hold `tokens` tokens of one sequence."""
    return (-(-tokens // PAGE_SIZE),) * len(layout.groups)


def simple_step(
    layout: KVLayout,
    tokens: Sequence[int] | npt.NDArray[np.integer],
    start: int = 0,
    *,
    output_rows: npt.NDArray[np.int32] | None = None,
    output: Output = Output.LOGITS,
) -> Step:
    """A step over `tokens` at positions start, start + 1, ...; nothing evicted, position p in slot p of every group.

    `output_rows` None: the output of every row.
    """
    rows = len(tokens)
    positions = np.arange(start, start + rows, dtype=np.int64)
    pages = np.arange(-(-(start + rows) // PAGE_SIZE), dtype=np.int32)[None, :]
    tables = GroupTables(
        pages=pages,
        sink_tokens=np.zeros(1, np.int32),
        window_start=np.zeros(1, np.int64),
        slots=positions,
        row_index=positions.astype(np.int32),
    )
    return Step(
        tokens=np.asarray(tokens, np.int32),
        positions=positions,
        sequences=np.zeros(rows, np.int32),
        groups=(tables,) * len(layout.groups),
        output_rows=np.arange(rows, dtype=np.int32) if output_rows is None else output_rows,
        output=output,
    )


def logits_of(
    executor: Executor,
    tokens: Sequence[int] | npt.NDArray[np.integer],
    *,
    kv_type: KVType = "f32",
    output: Output = Output.LOGITS,
    chunk: int | None = None,
) -> npt.NDArray[np.float32]:
    """Logits (or hidden vectors) of every token of a fresh sequence: [len(tokens), vocabulary or hidden].

    Allocates the executor's KV cache anew, for this sequence alone. `chunk` rows are run at a time (None: `max_rows`).
    """
    executor.allocate_kv(pages_for(executor.layout, len(tokens)), kv_type, (0,) * len(executor.layout.groups))
    size = min(chunk or executor.max_rows, executor.max_rows)
    outputs = []
    for start in range(0, len(tokens), size):
        step = simple_step(executor.layout, tokens[start : start + size], start, output=output)
        outputs.append(executor.forward(step).copy())
    return np.concatenate(outputs)
