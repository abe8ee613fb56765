"""Which captured graph serves a step: sizes rounded up, so that few graphs serve all steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.step import Output

if TYPE_CHECKING:
    from localllm.kernels.step import Step

_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_FEWEST_PAGES = 16


@dataclass(frozen=True, slots=True)
class Bucket:
    """The sizes of a graph. `decode`: every sequence has exactly one row; `best`: that many ids instead of logits."""

    rows: int
    sequences: int
    pages: int
    outputs: int
    decode: bool
    sinks: bool
    tree: bool
    output: Output
    best: int
    streamed: bool = False  # whether cold weights cross to the card

    @property
    def all_rows(self) -> bool:
        """Whether every row's output is wanted, in order."""
        return self.outputs == self.rows


def bucket_of(step: Step, most_rows: int, most_outputs: int, best: int) -> Bucket:
    """The smallest bucket that holds `step`."""
    rows, wanted = len(step.tokens), len(step.output_rows)
    sequences = int(step.sequences[-1]) + 1
    pages = max(_FEWEST_PAGES, *(int(tables.row_index.max()) // PAGE_SIZE + 1 for tables in step.groups))
    decode = sequences == rows and step.tree is None
    size = round_rows(rows, most_rows)
    outputs = size if wanted == rows and size <= most_outputs else min(_power_of_two(wanted), most_outputs)
    return Bucket(
        rows=size,
        sequences=size if decode else min(_power_of_two(sequences), size),
        pages=_power_of_two(pages),
        outputs=outputs,
        decode=decode,
        sinks=step.sink_positions is not None,
        tree=step.tree is not None,
        output=step.output,
        best=best,
    )


def round_rows(rows: int, most: int) -> int:
    """The smallest size of a bucket that holds `rows`."""
    larger = [size for size in _ROWS if rows <= size < most]
    return larger[0] if larger else max(rows, most)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count > 1 else count


def attention_tiles(step: Step, rows_a_tile: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Tiles of at most `rows_a_tile` rows of one sequence: int32 [T, 4] sequence, first row, rows, sequence's first."""
    starts = np.flatnonzero(np.diff(step.sequences, prepend=-1))
    stops = np.append(starts[1:], len(step.sequences))
    tiles = [
        (step.sequences[start], row, min(rows_a_tile, stop - row), start)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        for row in range(start, stop, rows_a_tile)
    ]
    return np.array(tiles, np.int32)


def most_tiles(bucket: Bucket, rows_a_tile: int) -> int:
    """How many tiles a step of this bucket may have."""
    if bucket.decode:
        return bucket.rows
    return min(bucket.rows, bucket.rows // rows_a_tile + bucket.sequences)
