"""Logits of the tokens that may matter, computed exactly in place of those that a small matrix guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .compile import KernelSource
from .ir_types import F32, F32X16, I32, I32X16, I64, Value
from .operation import Arguments, Kind, Operation, Rows, RowsValue, float_bits, load_index, portion
from .run_loop import word
from .sparse.active import LANES, store_some
from .sparse.rows import emit_product
from .step_state import Word

if TYPE_CHECKING:
    from .emit import Emitter
    from .sparse.rows import NeuronRows

_PIECE = 1024  # logits: pieces are dealt out in turn, since likely tokens have neighbouring numbers
_AHEAD = 8  # rows that are asked for before they are read


def find_largest(*, logits: Rows, width: int, largest: Rows, count: Word) -> Operation:
    """The largest logit of each row in the part that a thread computed, to the float32 row that it has of `largest`.

    `width`: columns, a multiple of 16; they are divided as tiles are: what another thread wrote takes long to read.
    """
    arguments = (logits.address, logits.stride, width // LANES, *largest.fields, 8 * count)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        rows, vectors = RowsValue(e, *values.integers(2)), values.integer()
        target, count_of = values.rows().row(e.integer(0)), e.load(I64, step, values.integer())
        first, last = portion(e, vectors, step, thread)

        def row(m: Value, _: list[Value]) -> None:
            def look(i: Value, best: list[Value]) -> list[Value]:
                return [e.max(best[0], e.load(F32X16, rows.row(m), e.mul(i, 4 * LANES)))]

            best = e.loop(last, [e.constant(F32X16, float("-inf"))], look, start=first)[0]
            e.store(e.horizontal_max(best), target, e.mul(m, 4))

        e.loop(count_of, [], row)

    return Operation(KernelSource("find_largest", "", emit), arguments, Kind.HEAD)


def exact_logits(
    rows: NeuronRows,
    *,
    source: Rows,
    logits: Rows,
    width: int,
    largest: Rows,
    margin: float,
    chosen: Rows,
    count: Word,
) -> Operation:
    """logits[m][i] = row i of the matrix . source[m], wherever logits[m][i] is within `margin` of the largest.

    `largest`: of the threads, see `find_largest`. `source` is float32. `chosen`: a private row of `width` + 16 int32.
    Threads divide the columns.
    """
    arguments = (
        *(rows.address, rows.units, rows.row_bytes, *source.fields, logits.address, logits.stride, width),
        *(largest.address, largest.thread_stride, float_bits(margin), *chosen.fields, 8 * count),
    )

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        address, units, stride = values.integers(3)
        sources, targets, columns = values.rows(), RowsValue(e, *values.integers(2)), values.integer()
        parts, less = RowsValue(e, *values.integers(2)), values.float()
        lists, row_count = values.rows(), e.load(I64, step, values.integer())
        threads, numbers = word(e, step, Word.THREADS), lists.row(e.integer(0))
        lanes = e.constant(I32X16, range(LANES))
        pieces = e.div(e.add(columns, _PIECE - 1), _PIECE)

        def row(m: Value, _: list[Value]) -> None:
            def compare(part: Value, best: list[Value]) -> list[Value]:
                return [e.max(best[0], e.load(F32, parts.row(part), e.mul(m, 4)))]

            best = e.loop(threads, [e.constant(F32, float("-inf"))], compare)[0]
            logits_row, x, least = targets.row(m), sources.row(m), e.splat(e.sub(best, less), LANES)

            def piece(turn: Value, carried: list[Value]) -> list[Value]:
                first = e.mul(e.add(e.mul(turn, threads), thread), _PIECE)
                last = e.min(e.add(first, _PIECE), columns)

                def vector(at: Value, inner: list[Value]) -> list[Value]:
                    high = e.compare(">=", e.load(F32X16, logits_row, e.mul(at, 4)), least)
                    number = e.add(lanes, e.splat(e.convert(at, I32), LANES))
                    return [store_some(e, high, [(number, numbers)], inner[0])]

                return e.loop(last, carried, vector, start=first, step=LANES)

            turns = e.div(e.add(pieces, e.sub(threads, 1)), threads)
            total = e.loop(turns, [e.integer(0)], piece)[0]

            def one(k: Value, _: list[Value]) -> None:
                following = e.min(e.add(k, _AHEAD), e.sub(total, 1))
                number, ahead = (load_index(e, numbers, i) for i in (k, following))
                run, later = (e.at(address, e.mul(i, stride)) for i in (number, ahead))
                e.store(emit_product(e, rows.codes, run, later, x, units), logits_row, e.mul(number, 4))

            e.loop(total, [], one)

        e.loop(row_count, [], row)

    return Operation(KernelSource("exact_logits", rows.codes.name, emit), arguments, Kind.HEAD)
