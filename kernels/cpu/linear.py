"""Matrix products over tiles: y = x @ weight.T with what follows fused into it.

The units of work are (segment, tile): a segment is a range of rows with its weights, either a part of the step's rows
(one part, unless there are too few tiles for the threads) or the rows of one expert. Every row is computed alike, alone
or in a block of rows: sums run over the blocks of a tile in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .activation_format import emit_store, emit_store_rows
from .atomics import atomic_add
from .compile import KernelSource
from .ir_types import F32X16, Value
from .normalise import emit_activation
from .operation import (
    CLAIMED_ROWS,
    MANY_THREADS,
    Arguments,
    Kind,
    Operation,
    Rows,
    RowsValue,
    float_bits,
    number_of,
    shares,
)
from .run_loop import word
from .step_state import LINE, Word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.kernels.spec import Activation

    from .activation_format import Form
    from .emit import Emitter
    from .tiles.layout import TileLayout

TILE_ROWS = 16
_UNITS_PER_THREAD = 4  # rows are divided until every thread has about this many tiles
_PIECES_PER_THREAD = 16  # of an operation whose work is taken from a queue
_CLAIMED_BYTES = 1 << 18  # a thread: less is read before a slow core is noticed
_PART_ROWS = 128  # of many rows, in a part
_GROUP_BYTES = 1 << 18  # tiles that stay in the second-level cache while all rows pass over them


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tiled matrix in memory, or a stack of them: one for each expert."""

    layout: TileLayout
    address: int
    tiles: int  # of one matrix
    tile_bytes: int
    blocks: int  # steps of `emit_dot` in a row
    bias: int = 0  # address of padded float32, 0: none
    stack_bytes: int = 0  # between the matrices of a stack
    stack_bias_bytes: int = 0

    def one(self, index: int) -> Matrix:
        """A single matrix of a stack."""
        bias = self.bias and self.bias + index * self.stack_bias_bytes
        return replace(self, address=self.address + index * self.stack_bytes, bias=bias)

    @property
    def fields(self) -> tuple[int, ...]:
        """As record fields, for `_MatrixValue`."""
        return (
            self.address,
            self.tiles,
            self.tile_bytes,
            self.blocks,
            self.bias,
            self.stack_bytes,
            self.stack_bias_bytes,
        )


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Addresses of int64 arrays: how slots are sorted by expert (see `experts`). All zero: there are no experts."""

    active: int = 0  # [0] how many experts have slots, then their numbers
    starts: int = 0  # [experts + 1] first slot of each
    source_rows: int = 0  # the source row of each slot; 0: the slot's own number

    @property
    def fields(self) -> tuple[int, int, int]:
        """As record fields."""
        return self.active, self.starts, self.source_rows


def linear(
    matrix: Matrix,
    *,
    source: Rows,
    target: Rows,
    count: Word = Word.ROWS,
    residual: Rows | None = None,
    residual_list: int = 0,
    scale: float = 1.0,
    experts: ExpertRows | None = None,
    kind: Kind,
    barrier: bool = True,
    queue: int | None = None,
    fixed: bool = False,
) -> Operation:
    """target[m] = residual[m] + scale * (source[m] @ weight.T + bias); target rows are whole tiles of 16 floats.

    `residual_list`: state word with the address of int64 rows, residual[list[m]] is added.
    `queue`: one of the state's, from which threads take all work piece by piece, however few rows there are.
    `fixed`: in steps of few rows each thread does the tiles that it does in other such operations of this height.
    """
    base = residual or Rows(0, 0)
    sorted_rows = experts or ExpertRows()
    arguments = (
        *(*matrix.fields, *source.fields, *target.fields, *base.fields, float_bits(scale), 8 * count),
        *(*sorted_rows.fields, source.refinements),
    )
    refined = bool(source.refinements)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        weights = _MatrixValue(e, matrix.layout, values)
        sources, targets, residuals = values.rows(), values.rows(), values.rows()
        factor, segments = (
            e.splat(values.float(), 16),
            _Segments(e, record, step, thread, values, sorted_rows, queue, fixed),
        )
        zeros = _zeros(e)
        has_residual = e.compare("!=", residuals.stride, 0)
        residual_number = number_of(e, step, residual_list)

        def old(tile: Value, m: Value) -> Value:
            return e.select(has_residual, e.at(residuals.row(residual_number(m)), e.mul(tile, 64)), zeros)

        def tile(segment: _Segment, number: Value, rows: Sequence[Value]) -> None:
            if len(rows) > 1:  # these lines lie far apart, and are wanted when the products are ready
                for m in rows:
                    e.prefetch(old(number, m))
                    e.prefetch(targets.row(m), e.mul(number, 64), write=True)
            sums = weights.dot(segment.expert, number, segments.sources(sources, rows))
            bias = weights.bias_of(segment.expert, number, zeros)
            for m, total in zip(rows, sums, strict=True):
                value = e.fma(e.add(total, e.load(F32X16, bias)), factor, e.load(F32X16, old(number, m)))
                e.store(value, targets.row(m), e.mul(number, 64))

        weights.refinements = values.integer() if refined else 0
        segments.emit(weights.tiles, weights.tile_bytes, tile)

    key = f"{matrix.layout.name} {_key(sorted_rows)} {refined} {residual_list} {queue} {fixed}"
    source_code = KernelSource("linear", key, emit)
    return Operation(source_code, arguments, kind, barrier)


def gated(
    matrix: Matrix,
    activation: Activation,
    *,
    source: Rows,
    target: Rows,
    target_format: Form,
    experts: ExpertRows | None = None,
    count: Word = Word.ROWS,
    kind: Kind = Kind.GATE_UP,
    barrier: bool = True,
    queue: int | None = None,
) -> Operation:
    """target[m] = activation(gate) * up in `target_format`, without ever storing the two.

    The matrix holds, for every 32 neurons, two tiles of gate rows and two of up rows; its bias vector is in that order.
    """
    sorted_rows = experts or ExpertRows()
    arguments = (
        *(*matrix.fields, *source.fields, *target.fields, 8 * count),
        *(*sorted_rows.fields, source.refinements),
    )
    refined = bool(source.refinements)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        weights = _MatrixValue(e, matrix.layout, values)
        sources, targets = values.rows(), values.rows()
        segments = _Segments(e, record, step, thread, values, sorted_rows, queue)
        zeros, block = _zeros(e), segments.block
        scratch, values_of_rows = e.scratch(4 * 64 * block), e.scratch(128 * block)

        def store(number: Value, row: Value, count: int, values: Value) -> None:
            if count == 1:
                emit_store(
                    e, target_format, targets.row(row), number, e.load(F32X16, values), e.load(F32X16, values, 64)
                )
            else:
                emit_store_rows(e, target_format, count, lambda t: targets.row(e.add(row, t)), number, values)

        def unit(segment: _Segment, number: Value, rows: Sequence[Value]) -> None:
            activations = segments.sources(sources, rows)

            def tile(k: Value, _: list[Value]) -> None:
                at = e.add(e.mul(number, 4), k)
                sums = weights.dot(segment.expert, at, activations)
                bias = e.load(F32X16, weights.bias_of(segment.expert, at, zeros))
                for t, total in enumerate(sums):
                    e.store(e.add(total, bias), scratch, e.mul(k, 64), 256 * t)

            e.loop(4, [], tile)

            def finish(t: Value, _: list[Value]) -> None:
                sums = [e.load(F32X16, scratch, e.mul(t, 256), 64 * k) for k in range(4)]
                low, high = (emit_activation(e, activation, sums[k], sums[2 + k]) for k in range(2))
                e.store(low, values_of_rows, e.mul(t, 128))
                e.store(high, values_of_rows, e.mul(t, 128), 64)

            e.loop(len(rows), [], finish)
            first = 0
            while first < len(rows):  # powers of two of them are stored together
                count = 1 << ((len(rows) - first).bit_length() - 1)
                store(number, rows[first], count, e.at(values_of_rows, 128 * first))
                first += count

        weights.refinements = values.integer() if refined else 0
        segments.emit(e.div(weights.tiles, 4), e.mul(weights.tile_bytes, 4), unit)

    key = f"{matrix.layout.name} {activation.value} {target_format.name} {_key(sorted_rows)} {refined} {queue}"
    return Operation(KernelSource("gated", key, emit), arguments, kind, barrier)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Rows [start, stop) that share weights, those of `expert`."""

    expert: Value
    start: Value
    stop: Value


class _MatrixValue:
    """A `Matrix` inside a kernel."""

    def __init__(self, e: Emitter, layout: TileLayout, arguments: Arguments) -> None:
        self.e, self.layout = e, layout
        self.address, self.tiles, self.tile_bytes, self.blocks, self.bias, *stack = arguments.integers(7)
        self.stack_bytes, self.stack_bias_bytes = stack
        self.refinements: Value | int = 0

    def dot(self, expert: Value, tile: Value, activations: Sequence[Value]) -> list[Value]:
        """The products of a tile with several activation rows."""
        e = self.e
        address = e.add(self.address, e.add(e.mul(expert, self.stack_bytes), e.mul(tile, self.tile_bytes)))
        return self.layout.emit_dot(e, e.pointer(address), self.blocks, activations, self.refinements)

    def bias_of(self, expert: Value, tile: Value, zeros: Value) -> Value:
        """Where the bias of a tile's rows lies."""
        e = self.e
        address = e.at(self.bias, e.mul(expert, self.stack_bias_bytes), e.mul(tile, 64))
        return e.select(e.compare("!=", self.bias, 0), address, zeros)


class _Segments:
    """Divides the work among threads and walks this thread's part."""

    def __init__(
        self,
        e: Emitter,
        record: Value,
        step: Value,
        thread: Value,
        arguments: Arguments,
        experts: ExpertRows,
        queue: int | None,
        fixed: bool = False,
    ) -> None:
        self.e, self.record, self.step, self.thread, self.queue, self.fixed = e, record, step, thread, queue, fixed
        self.by_expert, self.indirect = bool(experts.active), bool(experts.source_rows)
        count_offset, self.active, self.starts, self.source_rows = arguments.integers(4)
        self.rows = e.load(thread.type, step, count_offset)
        self.block = e.isa.token_block

    def sources(self, sources: RowsValue, rows: Sequence[Value]) -> list[Value]:
        """Pointers to the activations of these rows or slots."""
        e = self.e
        if self.indirect:
            rows = [e.field(e.add(self.source_rows, e.mul(m, 8)), 0) for m in rows]
        return [sources.row(m) for m in rows]

    def emit(self, tiles: Value, tile_bytes: Value, body: Callable[[_Segment, Value, Sequence[Value]], None]) -> None:
        """Call `body(segment, tile, rows)` for all tiles and all blocks of rows that are this thread's."""
        e = self.e
        parts = e.field(self.active, 0) if self.by_expert else self._row_parts(tiles)
        total = e.mul(parts, tiles)

        def walk(start: Value, stop: Value) -> None:
            def segment(index: Value, _: list[Value]) -> None:
                before = e.mul(index, tiles)
                first, last = e.max(e.sub(start, before), 0), e.min(e.sub(stop, before), tiles)
                self._rows_of(self._segment(index, parts), first, last, tile_bytes, body)

            e.loop(e.div(e.add(stop, e.sub(tiles, 1)), tiles), [], segment, start=e.div(start, tiles))

        if self.queue is None:
            claimed = e.compare(">=", self.rows, CLAIMED_ROWS)
            if not self.fixed:
                claimed = e.bit_or(claimed, self._large(e.mul(tiles, tile_bytes)))
            shares(e, self.record, self.step, self.thread, total, claimed, walk)
            return
        piece = e.max(e.div(total, e.mul(word(e, self.step, Word.THREADS), _PIECES_PER_THREAD)), 1)
        offset = 8 * (Word.QUEUES + LINE * self.queue)

        def take(carried: list[Value]) -> list[Value]:
            walk(carried[0], e.min(e.add(carried[0], piece), total))
            return [atomic_add(e, piece, self.step, offset)]

        taken = [atomic_add(e, piece, self.step, offset)]
        e.repeat_while(taken, lambda carried: e.compare("<", carried[0], total), take)

    def _large(self, size: Value) -> Value:
        """Whether many threads read `size` bytes together: some cores of such machines are slower than others."""
        e = self.e
        threads = word(e, self.step, Word.THREADS)
        many = e.compare(">=", threads, MANY_THREADS)
        return e.bit_and(many, e.compare(">=", size, e.mul(threads, _CLAIMED_BYTES)))

    def _row_parts(self, tiles: Value) -> Value:
        e = self.e
        wanted = e.mul(word(e, self.step, Word.THREADS), _UNITS_PER_THREAD)
        blocks = e.div(e.add(self.rows, self.block - 1), self.block)
        parts = e.max(e.min(e.div(e.add(wanted, e.sub(tiles, 1)), tiles), blocks), 1)
        alone = e.compare("==", word(e, self.step, Word.THREADS), 1)
        return e.select(alone, parts, e.max(parts, e.div(self.rows, _PART_ROWS)))

    def _segment(self, index: Value, parts: Value) -> _Segment:
        e = self.e
        if self.by_expert:
            expert = e.field(e.add(self.active, e.mul(index, 8)), 1)
            starts = e.add(self.starts, e.mul(expert, 8))
            return _Segment(expert, e.field(starts, 0), e.field(starts, 1))
        # Parts are whole blocks, so that a block of rows is cut only at the end.
        blocks = e.div(e.add(self.rows, self.block - 1), self.block)
        bounds = [e.mul(e.div(e.mul(blocks, e.add(index, k)), parts), self.block) for k in range(2)]
        return _Segment(e.integer(0), bounds[0], e.min(bounds[1], self.rows))

    def _rows_of(
        self,
        segment: _Segment,
        first: Value,
        last: Value,
        tile_bytes: Value,
        body: Callable[[_Segment, Value, Sequence[Value]], None],
    ) -> None:
        """All rows of a segment over tiles [first, last), a group of tiles at a time."""
        e, block = self.e, self.block
        group = e.max(e.div(_GROUP_BYTES, tile_bytes), 1)
        rows = e.sub(segment.stop, segment.start)
        whole = e.add(segment.start, e.mul(e.div(rows, block), block))

        def tiles(start: Value, _: list[Value]) -> None:
            stop = e.min(e.add(start, group), last)

            def rows_at_once(count: int) -> Callable[[Value, list[Value]], None]:
                def rows(m: Value, _: list[Value]) -> None:
                    numbers = [e.add(m, t) for t in range(count)]
                    e.loop(stop, [], lambda tile, _: body(segment, tile, numbers), start=start)

                return rows

            e.loop(whole, [], rows_at_once(block), start=segment.start, step=block)
            done, size = whole, block
            while size > 4:  # what is left is no whole block: at most one piece of each smaller size
                size //= 2
                end = e.add(done, e.bit_and(rows, size))
                e.loop(end, [], rows_at_once(size), start=done, step=size)
                done = end
            for few in (3, 2, 1):  # three too, with which guesses often come
                end = e.select(e.compare("==", e.bit_and(rows, 3), few), e.add(done, few), done)
                e.loop(end, [], rows_at_once(few), start=done, step=few)

        e.loop(last, [], tiles, start=first, step=group)


def _key(experts: ExpertRows) -> str:
    return f"{bool(experts.active)} {bool(experts.source_rows)}"


def _zeros(e: Emitter) -> Value:
    """A vector of zeros on the stack, for what is absent."""
    zeros = e.scratch(64)
    e.store(e.constant(F32X16, 0.0), zeros)
    return zeros
