"""What an executor is asked to do: a flat, ragged batch of rows. Prefill, decode and any mix are the same call.

A row is one token of one sequence. Rows of a sequence are adjacent and in order. The keys that a sequence may see in
a cache group have *logical indices* 0, 1, 2, ...: first `sink_tokens` keys at positions 0, 1, ...; then keys at
positions `window_start`, `window_start` + 1, ... A row sees the keys of logical index <= its `row_index` (also
restricted by the layer's own window, counted in positions). K is stored rotated at its absolute position. When tokens
between the sinks and the window were evicted, sink keys are read with a second copy of the query, rotated at
`sink_positions` (StreamingLLM, https://arxiv.org/abs/2309.17453), so no key is ever rotated again; their distance, for
the layer's own window too, is counted from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Output(Enum):
    """What `forward` returns for each requested row."""

    LOGITS = "logits"
    HIDDEN = "hidden"  # after the final norm: embeddings


@dataclass(frozen=True, slots=True)
class PageMove:
    """Copy (and convert) a whole page before the rows run: copy-on-write, or sealing a page into a quantised pool."""

    group: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True, eq=False)
class GroupTables:
    """One cache group's view of the step; S sequences, M rows, P pages at most.

    A page entry >= 0 is a page of the main pool; for a quantised cache, ~entry (< 0) is a page of its small
    full-precision pool, to which new tokens are always written.
    """

    pages: npt.NDArray[np.int32]  # [S, P]: logical index i lies in page pages[s, i // PAGE_SIZE], unused entries 0
    sink_tokens: npt.NDArray[np.int32]  # [S]: a whole number of pages, or 0 while nothing was evicted
    window_start: npt.NDArray[np.int64]  # [S]: position of logical index sink_tokens (0 while nothing was evicted)
    slots: npt.NDArray[np.int64]  # [M]: where the row's K and V go: page * PAGE_SIZE + offset, in the writable pool
    row_index: npt.NDArray[np.int32]  # [M]: logical index of the row's own key


@dataclass(frozen=True, slots=True, eq=False)
class TreeMask:
    """Rows that are a tree of guesses: row m sees the committed keys and those of its own ancestors only.

    Committed keys are those of a logical index below that of the sequence's first row in this step.
    `ancestors` [M, M] bool: row m sees the key that row n writes (true on the diagonal, false across sequences).
    """

    ancestors: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward pass over M rows of S sequences."""

    tokens: npt.NDArray[np.int32]  # [M]
    positions: npt.NDArray[np.int64]  # [M] absolute, used for rope and native windows
    sequences: npt.NDArray[np.int32]  # [M] index of the row's sequence, non-decreasing
    groups: tuple[GroupTables, ...]  # one per CacheGroup of the KVLayout
    output_rows: npt.NDArray[np.int32]  # [R] rows whose output is wanted, ascending
    output: Output = Output.LOGITS
    sink_positions: npt.NDArray[np.int64] | None = None  # [M], only when some sequence has evicted
    tree: TreeMask | None = None
    moves: tuple[PageMove, ...] = ()
    # [R, (1 + T) * hidden] is filled beside logits: as Output.HIDDEN would give it, then what the T layers `taps` left
    hidden: npt.NDArray[np.float32] | None = None
    taps: tuple[int, ...] = ()  # numbers of layers, ascending
