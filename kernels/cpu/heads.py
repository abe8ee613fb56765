"""Between the projections and attention: norms over heads, rope, scaling, and the way of keys and values into pages.

Rows of query and key matrices are permuted when they are repacked, so that the two values that rope turns together are
neighbours, whatever the file's convention. A head's rows are padded to whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .attention_shape import store_head
from .compile import KernelSource
from .ir_types import F32, F32X16, Value
from .normalise import NormKind
from .operation import Arguments, Kind, Operation, Rows, Share, float_bits, portion
from .page_types import LANES, PagePool, PagePoolValue, PageShape, padded
from .step_state import GroupWord, Word, group_word

if TYPE_CHECKING:
    from .emit import Emitter

_SWAPPED_PAIRS = tuple(i ^ 1 for i in range(LANES))


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm over each head of `width` values; `gain` and `bias` are padded like heads, `stride` bytes apart."""

    kind: NormKind
    width: int
    gain: int = 0
    bias: int = 0
    stride: int = 0  # 0: all heads share one gain
    eps: float = 0.0
    after_rope: bool = False


NO_NORM = HeadNorm(NormKind.NONE, 1)


@dataclass(frozen=True, slots=True)
class Turn:
    """Where rope acts: values [start, start + lanes) of a head, in whole registers; lanes 0: not at all.

    `table` has a row for each row of the step: `lanes` factors of a value itself, then those of its neighbour; beyond
    the rotated values these are 1 and 0.
    """

    start: int
    lanes: int
    table: Rows


def rotate_queries(
    norm: HeadNorm,
    turn: Turn,
    *,
    source: Rows,
    target: Rows,
    heads: int,
    stride: int,
    target_stride: int | None = None,
    scale: float,
    only_if_evicted: bool = False,
    barrier: bool = True,
) -> Operation:
    """target[m][h] = scale * rope(norm(source[m][h])), in place or not.

    Heads are `stride` bytes long; in the target they lie `target_stride` apart, if that is given.

    `only_if_evicted`: nothing is done unless the step has sink positions (the second copy of the queries).
    """
    arguments = (*_arguments(norm, turn, source, heads, stride), *target.fields, float_bits(scale))
    apart = target_stride or stride
    key = f"{_key(norm, turn, stride)} {apart} {only_if_evicted}"

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        work = _Heads(e, record, step, thread, norm, turn, stride)
        targets, factor = work.arguments.rows(), e.splat(work.arguments.float(), LANES)
        stop = work.stop
        if only_if_evicted:
            stop = e.select(e.compare("!=", e.field(step, Word.EVICTED), 0), stop, work.start)

        def unit(row: Value, head: Value) -> None:
            out = e.at(targets.row(row), e.mul(head, apart))
            for offset, value in work.head(row, head):
                e.store(e.mul(value, factor), out, offset)

        work.emit(unit, stop)

    return Operation(KernelSource("rotate_queries", key, emit), arguments, Kind.ROTATE, barrier)


def store_keys(
    norm: HeadNorm,
    turn: Turn,
    *,
    source: Rows,
    stride: int,
    pages: PagePool,
    group: int,
    places: Rows | None = None,
    barrier: bool,
) -> Operation:
    """The keys of all rows, normalised and rotated, into the slots of cache group `group`.

    `places`: slots (int64) of each row and head, instead of those of the group.
    """
    slots, shape = 8 * group_word(group, GroupWord.SLOTS), pages.shape
    arguments = (*_arguments(norm, turn, source, shape.heads, stride), *pages.fields, slots, *_fields(places))

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        work = _Heads(e, record, step, thread, norm, turn, stride)
        place, floats = _Place(e, step, work.arguments, shape, by_head=places is not None), shape.floats

        def unit(row: Value, head: Value) -> None:
            page, slot = place.of(row, head)
            keys = e.at(place.pages.keys(head), e.mul(page, shape.key_head_bytes))
            for offset, value in work.head(row, head):
                floats.store_key(e, value, keys, e.integer(offset // 4), slot)

        work.emit(unit, work.stop)

    key = f"{_key(norm, turn, stride)} {shape} {places is not None}"
    source_code = KernelSource("store_keys", key, emit)
    return Operation(source_code, arguments, Kind.ROTATE, barrier)


def store_values(
    *,
    source: Rows,
    stride: int,
    pages: PagePool,
    group: int,
    places: Rows | None = None,
    barrier: bool,
) -> Operation:
    """The values of all rows into their slots, as for keys."""
    turn, shape = Turn(0, 0, Rows(0, 0)), pages.shape
    slots = 8 * group_word(group, GroupWord.SLOTS)
    arguments = (*_arguments(NO_NORM, turn, source, shape.heads, stride), *pages.fields, slots, *_fields(places))

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        work = _Heads(e, record, step, thread, NO_NORM, turn, stride)
        place, floats = _Place(e, step, work.arguments, shape, by_head=places is not None), shape.floats

        def unit(row: Value, head: Value) -> None:
            page, slot = place.of(row, head)
            values = e.at(place.pages.values(head), e.mul(page, shape.value_head_bytes))
            for offset, value in work.head(row, head):
                floats.store_value(e, value, values, shape.value_dim, slot, e.integer(offset // 4))

        work.emit(unit, work.stop)

    source_code = KernelSource("store_values", f"{shape} {stride} {places is not None}", emit)
    return Operation(source_code, arguments, Kind.ROTATE, barrier)


def compact_heads(dim: int, *, source: Rows, target: Rows, heads: int, barrier: bool = True) -> Operation:
    """Heads of `dim` values, padded to whole registers in the source, side by side in the target."""
    turn, stride = Turn(0, 0, Rows(0, 0)), head_stride(dim)
    arguments = (*_arguments(NO_NORM, turn, source, heads, stride), *target.fields)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        work = _Heads(e, record, step, thread, NO_NORM, turn, stride)
        targets, one = work.arguments.rows(), e.constant(F32X16, 1.0)

        def unit(row: Value, head: Value) -> None:
            source_head = e.at(work.sources.row(row), e.mul(head, stride))
            store_head(e, dim, source_head, one, e.at(targets.row(row), e.mul(head, 4 * dim)))

        work.emit(unit, work.stop)

    return Operation(KernelSource("compact_heads", str(dim), emit), arguments, Kind.ATTENTION_OUTPUT, barrier)


def _arguments(norm: HeadNorm, turn: Turn, source: Rows, heads: int, stride: int) -> tuple[int, ...]:
    gain = (norm.gain, norm.bias, norm.stride, float_bits(norm.eps))
    return (*source.fields, heads, *turn.table.fields, *gain, *Share(Word.ROWS).fields)


def _fields(places: Rows | None) -> tuple[int, ...]:
    return () if places is None else places.fields


def _key(norm: HeadNorm, turn: Turn, stride: int) -> str:
    return f"{norm.kind.value} {norm.width} {norm.after_rope} {turn.start} {turn.lanes} {stride}"


class _Place:
    """Where the key and value of a row go."""

    def __init__(self, e: Emitter, step: Value, arguments: Arguments, shape: PageShape, *, by_head: bool) -> None:
        self.e = e
        self.pages = PagePoolValue(e, shape, arguments.integers(2))
        self.slots = e.load(step.type, step, arguments.integer())
        self.places = arguments.rows() if by_head else None

    def of(self, row: Value, head: Value) -> tuple[Value, Value]:
        """The page's number and the slot in it."""
        e = self.e
        if self.places is None:
            slot = e.load(row.type, self.slots, e.mul(row, 8))
        else:
            slot = e.load(row.type, self.places.row(row), e.mul(head, 8))
        return e.div(slot, LANES), e.remainder(slot, LANES)


class _Heads:
    """Walks (row, head) units; gives the registers of a head after norm and rope."""

    def __init__(
        self, e: Emitter, record: Value, step: Value, thread: Value, norm: HeadNorm, turn: Turn, stride: int
    ) -> None:
        self.e, self.norm, self.turn, self.stride = e, norm, turn, stride
        self.arguments = values = Arguments(e, record, thread)
        self.sources, self.count, self.table = values.rows(), values.integer(), values.rows()
        self.gain, self.bias, self.gain_stride = values.integers(3)
        self.eps = values.float()
        offset, _ = values.integers(2)
        rows = e.load(thread.type, step, e.mul(offset, 8))
        self.start, self.stop = portion(e, e.mul(rows, self.count), step, thread)

    def emit(self, unit: Callable[[Value, Value], None], stop: Value) -> None:
        """Call `unit(row, head)` for this thread's units."""
        e = self.e
        e.loop(stop, [], lambda u, _: unit(e.div(u, self.count), e.remainder(u, self.count)), start=self.start)

    def head(self, row: Value, head: Value) -> list[tuple[int, Value]]:
        """(byte offset, 16 values) of all registers of a head."""
        e = self.e
        source = e.at(self.sources.row(row), e.mul(head, self.stride))
        pieces = [(offset, e.load(F32X16, source, offset)) for offset in range(0, self.stride, 64)]
        if not self.norm.after_rope:
            pieces = self._normalised(pieces, head)
        pieces = [(offset, self._turned(offset, value, row)) for offset, value in pieces]
        return self._normalised(pieces, head) if self.norm.after_rope else pieces

    def _turned(self, offset: int, value: Value, row: Value) -> Value:
        e, place = self.e, offset - 4 * self.turn.start
        if not 0 <= place < 4 * self.turn.lanes:
            return value
        own, other = (e.load(F32X16, self.table.row(row), place + 4 * k * self.turn.lanes) for k in range(2))
        return e.fma(e.shuffle(value, _SWAPPED_PAIRS), other, e.mul(value, own))

    def _normalised(self, pieces: list[tuple[int, Value]], head: Value) -> list[tuple[int, Value]]:
        e, norm = self.e, self.norm
        if norm.kind is NormKind.NONE:
            return pieces
        offset_of_head = e.mul(head, self.gain_stride)
        if norm.kind is NormKind.LAYER:
            total = e.constant(F32X16, 0.0)
            for _, value in pieces:
                total = e.add(total, value)
            mean = e.splat(e.mul(e.horizontal_sum(total), 1.0 / norm.width), LANES)
            inside = [(offset, e.lane_mask(LANES, e.integer(norm.width - offset // 4))) for offset, _ in pieces]
            pieces = [
                (offset, e.select(mask, e.sub(value, mean), 0.0))
                for (offset, value), (_, mask) in zip(pieces, inside, strict=True)
            ]
        squares = e.constant(F32X16, 0.0)
        for _, value in pieces:
            squares = e.fma(value, value, squares)
        mean_square = e.mul(e.horizontal_sum(squares), e.constant(F32, 1.0 / norm.width))
        factor = e.splat(e.div(1.0, e.sqrt(e.add(mean_square, self.eps))), LANES)
        result = []
        for offset, value in pieces:
            y = e.mul(e.mul(value, factor), e.load(F32X16, self.gain, offset_of_head, offset))
            if norm.kind is NormKind.LAYER:
                y = e.add(y, e.load(F32X16, self.bias, offset_of_head, offset))
            result.append((offset, y))
        return result


def head_stride(dim: int) -> int:
    """Bytes between the heads of a projection's rows."""
    return 4 * padded(dim)
