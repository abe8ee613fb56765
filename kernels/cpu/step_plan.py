"""What the host works out before a step: who sees which keys, and how attention is divided into work items."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE

from .attention import Item
from .attention_merge import Merge
from .attention_tile import TILE_ROWS, Tile
from .softmax import CHUNK, CHUNK_PAGES, RowPlan
from .step_state import OUTPUT_GROUP, GroupWord, group_word

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.step import GroupTables, Step

    Words = npt.NDArray[np.int64]

_FEWEST_TILE_ROWS = 8  # fewer rows of a sequence are faster one by one: at 2,000 tokens 4 of them by half


class GroupPlan:
    """The arrays of one cache group, filled anew for every step.

    `tiles`: whether the prefill kernel may be used; `outputs`: whether the words of OUTPUT_GROUP are filled, too.
    """

    def __init__(
        self, group: int, window: int | None, max_rows: int, max_parts: int, *, tiles: bool, outputs: bool = False
    ) -> None:
        self._group, self._window = group, window
        self._rows = np.zeros((max_rows, RowPlan.SIZE), np.int64)
        self._work = _Work(window, max_rows, max_parts, tiles)
        self._output_work = _Work(window, max_rows, max_parts, tiles) if outputs else None
        self._slots = np.zeros(max_rows, np.int64)
        self._kept: list[object] = []  # what the addresses of this step point into
        # For steps of one row: what never changes, and views that take plain integers without numpy's overhead, which
        # counts here because a step leaves none of it in the caches.
        self._one_items = np.zeros((max_parts, Item.SIZE), np.int64)
        for field in (Item.FIRST_CHUNK, Item.PART):
            self._one_items[:, field] = np.arange(max_parts)
        self._one_items[:, Item.LAST_CHUNK] = np.arange(1, max_parts + 1)
        self._one_pages = np.zeros(max_parts * CHUNK_PAGES, np.int32)
        self._row_view = self._rows.reshape(-1).data
        self._merge_view = self._work.merges.reshape(-1).data
        self._slot_view = self._slots.data
        self._addresses = tuple(
            array.ctypes.data
            for array in (
                *(self._rows, self._one_items, self._work.tiles, self._work.merges, self._slots, self._one_pages),
            )
        )

    def prepare(self, step: Step, words: Words, heads: int, threads: int) -> None:
        """Fill the arrays for `step`; `heads` of the KV share a row's work among `threads`."""
        tables = step.groups[self._group]
        rows = len(step.tokens)
        pages = np.ascontiguousarray(tables.pages, np.int32)
        self._kept = [pages]
        self._slots[:rows] = tables.slots
        plans = self._rows[:rows]
        self._see(step, tables, pages, plans)
        if step.tree is not None:
            self._see_tree(step, tables, plans)
        first, last = _chunk_ranges(plans)
        everything = self._work.divide(step, np.arange(rows), first, last, heads, threads)
        self._set(words, self._group, everything)
        if self._output_work is not None:
            if len(step.output_rows) < rows:
                everything = self._output_work.divide(step, step.output_rows, first, last, heads, threads)
            self._set(words, OUTPUT_GROUP, everything)

    def _set(self, words: Words, group: int, work: tuple[int, ...]) -> None:
        start = group_word(group, GroupWord.ROWS)
        words[start : start + len(GroupWord)] = (self._rows.ctypes.data, *work, self._slots.ctypes.data)

    def prepare_one(self, step: Step, words: memoryview) -> None:
        """The same for a step of one row, without a tree."""
        tables = step.groups[self._group]
        index, sinks = int(tables.row_index[0]), int(tables.sink_tokens[0])
        low, low_sink = sinks, 0
        if self._window is not None:
            position = int(step.positions[0])
            near = position if step.sink_positions is None else int(step.sink_positions[0])
            low = max(sinks, position - self._window + 1 - int(tables.window_start[0]) + sinks)
            low_sink = max(near - self._window + 1, 0)
        used = index // PAGE_SIZE + 1
        self._one_pages[:used] = tables.pages[step.sequences[0], :used]
        self._slot_view[0] = int(tables.slots[0])
        rows, items, tiles, merges, slots, pages = self._addresses
        row = self._row_view
        row[0], row[1], row[2], row[3], row[4], row[5], row[6] = sinks, index, low, low_sink, pages, 0, 0
        row[7] = int(step.positions[0])
        sink_chunks = -(-sinks // CHUNK)
        first = 0 if low_sink < sinks else sink_chunks + (low - sinks) // CHUNK
        count = sink_chunks + (index - sinks) // CHUNK + 1 - first
        merge = self._merge_view
        merge[0], merge[1], merge[2] = 0, first, count
        at = group_word(self._group, GroupWord.ROWS)
        words[at], words[at + 1], words[at + 2] = rows, items + 8 * Item.SIZE * first, count
        words[at + 3], words[at + 4] = tiles, 0
        words[at + 5], words[at + 6], words[at + 7] = merges, 1, slots

    def _see(self, step: Step, tables: GroupTables, pages: npt.NDArray[np.int32], plans: Words) -> None:
        sequences = step.sequences
        sinks = tables.sink_tokens[sequences]
        plans[:, RowPlan.SINKS] = sinks
        plans[:, RowPlan.LAST] = tables.row_index
        plans[:, RowPlan.LOW] = sinks
        plans[:, RowPlan.LOW_SINK] = 0
        if self._window is not None:
            oldest = step.positions - self._window + 1
            near = step.positions if step.sink_positions is None else step.sink_positions
            plans[:, RowPlan.LOW_SINK] = np.maximum(near - self._window + 1, 0)
            plans[:, RowPlan.LOW] = np.maximum(oldest - tables.window_start[sequences] + sinks, sinks)
        plans[:, RowPlan.PAGES] = pages.ctypes.data + pages.strides[0] * sequences.astype(np.int64)
        plans[:, RowPlan.TREE] = 0
        plans[:, RowPlan.POSITION] = step.positions

    def _see_tree(self, step: Step, tables: GroupTables, plans: Words) -> None:
        """A byte for every key from the page of the sequence's first new key on, for each row."""
        assert step.tree is not None
        for rows in _runs(step.sequences):
            own = tables.row_index[rows].astype(np.int64)
            start = int(own[0]) // PAGE_SIZE * PAGE_SIZE
            end = int(own.max()) + 1
            mask = np.zeros((len(own), -(-(end - start) // PAGE_SIZE) * PAGE_SIZE), np.uint8)
            mask[:, : own[0] - start] = 1
            visible = step.tree.ancestors[rows, rows]
            if self._window is not None:
                positions = step.positions[rows]
                visible = visible & (positions[None, :] > positions[:, None] - self._window)
            mask[:, own - start] = visible
            self._kept.append(mask)
            plans[rows, RowPlan.LAST] = end - 1
            plans[rows, RowPlan.TREE] = mask.ctypes.data + mask.shape[1] * np.arange(len(own))
            plans[rows, RowPlan.TREE_START] = start


class _Work:
    """What attention does for some rows of a step, divided."""

    def __init__(self, window: int | None, max_rows: int, max_parts: int, may_tile: bool) -> None:
        self._window, self._max_parts, self._may_tile = window, max_parts, may_tile
        self.items = np.zeros((max_rows + max_parts, Item.SIZE), np.int64)
        self.tiles = np.zeros((max_rows, Tile.SIZE), np.int64)
        self.merges = np.zeros((max_rows, Merge.SIZE), np.int64)

    def divide(
        self, step: Step, chosen: npt.NDArray[np.integer], first: Words, last: Words, heads: int, threads: int
    ) -> tuple[int, ...]:
        """Chosen rows, ascending, to items, tiles and merges: the group words from ITEMS to MERGE_COUNT."""
        items, tiles, merges = self._divide(step, chosen, first, last, heads, threads)
        return (self.items.ctypes.data, items, self.tiles.ctypes.data, tiles, self.merges.ctypes.data, merges)

    def _divide(
        self, step: Step, chosen: npt.NDArray[np.integer], first: Words, last: Words, heads: int, threads: int
    ) -> tuple[int, int, int]:
        tiles = 0
        alone: list[int] = []
        # A window's edge does not move steadily over the rows of a tree, which a tile relies on.
        may_tile = self._may_tile and (step.tree is None or self._window is None)
        for rows in _neighbours(step.sequences, chosen):
            if not may_tile or rows.stop - rows.start < _FEWEST_TILE_ROWS:
                alone.extend(range(rows.start, rows.stop))
                continue
            starts = np.arange(rows.start, rows.stop, TILE_ROWS)
            ends = np.minimum(starts + TILE_ROWS, rows.stop)
            made = self.tiles[tiles : tiles + len(starts)]
            made[:, Tile.FIRST_ROW], made[:, Tile.ROW_COUNT] = starts, ends - starts
            made[:, Tile.FIRST_CHUNK], made[:, Tile.LAST_CHUNK] = first[starts], last[ends - 1]
            tiles += len(starts)
        if tiles > 1:
            _order(self.tiles[:tiles], threads)
        parts = int((last[alone] - first[alone]).sum())
        # The table for single rows always merges parts: there each thread has its own place for attended values.
        many = len(step.tokens) > 1
        if many and (len(alone) * heads >= 2 * threads or parts > self._max_parts):
            items = self.items[: len(alone)]
            items[:, Item.ROW], items[:, Item.PART] = alone, -1
            items[:, Item.FIRST_CHUNK], items[:, Item.LAST_CHUNK] = first[alone], last[alone]
            return len(alone), tiles, 0
        part = 0
        for place, row in enumerate(alone):
            start, stop = int(first[row]), int(last[row])
            items = self.items[part : part + stop - start]
            items[:, Item.ROW] = row
            items[:, Item.FIRST_CHUNK] = np.arange(start, stop)
            items[:, Item.LAST_CHUNK] = items[:, Item.FIRST_CHUNK] + 1
            items[:, Item.PART] = np.arange(part, part + stop - start)
            self.merges[place] = row, part, stop - start, 0
            part += stop - start
        return part, tiles, len(alone)


def _chunk_ranges(plans: Words) -> tuple[Words, Words]:
    """The first chunk that each row sees something of, and the one behind its last."""
    sinks, low = plans[:, RowPlan.SINKS], plans[:, RowPlan.LOW]
    sink_chunks = -(-sinks // CHUNK)
    first = np.where(plans[:, RowPlan.LOW_SINK] < sinks, 0, sink_chunks + (low - sinks) // CHUNK)
    last = sink_chunks + (plans[:, RowPlan.LAST] - sinks) // CHUNK + 1
    return first, last


def _neighbours(sequences: npt.NDArray[np.int32], chosen: npt.NDArray[np.integer]) -> list[slice]:
    """Ranges of chosen rows, ascending, that are neighbours in one sequence; sequences do not descend."""
    if len(chosen) == 0:
        return []
    first, last = int(chosen[0]), int(chosen[-1])
    if last - first == len(chosen) - 1 and sequences[first] == sequences[last]:
        return [slice(first, last + 1)]
    breaks = (np.diff(chosen) != 1) | (np.diff(sequences[chosen]) != 0)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(chosen)]
    return [slice(int(chosen[start]), int(chosen[stop - 1]) + 1) for start, stop in pairwise(edges)]


def _runs(sequences: npt.NDArray[np.int32]) -> list[slice]:
    """The rows of each sequence."""
    edges = [0, *(np.flatnonzero(np.diff(sequences)) + 1).tolist(), len(sequences)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _order(tiles: Words, threads: int) -> None:
    """Long tiles first, and the first half dealt out: each thread starts with its part of it, see `shares`."""
    backwards = tiles[::-1]  # later tiles of a prompt see more keys
    longest = backwards[np.argsort(backwards[:, Tile.FIRST_CHUNK] - backwards[:, Tile.LAST_CHUNK], kind="stable")]
    half = len(tiles) // 2
    tiles[:] = np.concatenate([*(longest[:half][k::threads] for k in range(threads)), longest[half:]])
