"""Gates of one row, asking meanwhile for the records of the neurons that were found to fire.

A core waits for records that lie apart, for it has only so many requests under way; while it streams gates there is
room for some. So a thread notes which neurons of its tiles fire, and asks for a pair of lines of their records with
each block of the tiles that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32X16, I32, I32X16, I64, Value
from localllm.kernels.cpu.normalise import emit_activation
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, load_index, portion

from .active import LANES, store_some
from .record_rows import SECOND_LEVEL
from .records import LINE

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.linear import Matrix
    from localllm.kernels.spec import Activation

    from .neurons import NeuronRecords


def asking_gates(
    matrix: Matrix,
    records: NeuronRecords,
    *,
    activation: Activation,
    source: Rows,
    target: Rows,
    noted: Rows,
    thresholds: int = 0,
) -> Operation:
    """target = source @ weight.T + bias of one row, bit for bit as `linear` does; see the module.

    `noted`: a row of int32 for each thread, as many as neurons and another 16. `thresholds` as in `compact`.
    """
    arguments = (
        *(matrix.address, matrix.tiles, matrix.tile_bytes, matrix.blocks, matrix.bias),
        *(*source.fields, *target.fields, *noted.fields, records.records, thresholds, source.refinements),
    )
    layout, size = matrix.layout, records.form.size
    pairs = -(-size // (2 * LINE))
    refined, biased = bool(source.refinements), bool(matrix.bias)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        address, tiles, tile_bytes, blocks, bias = values.integers(5)
        x, out, numbers = (values.rows().row(e.integer(0)) for _ in range(3))
        records_at, least_at, refinements = values.integers(3)
        lanes = e.constant(I32X16, range(LANES))
        cursor = e.scratch(16)  # pairs of lines that were asked for, and those that may be
        for at in (0, 8):
            e.store(e.integer(0), cursor, at)

        def ask() -> None:
            done, known = e.load(I64, cursor), e.load(I64, cursor, 8)
            with e.when(e.compare("<", done, known)):
                number = load_index(e, numbers, e.div(done, pairs))
                line = e.add(e.mul(number, size), e.mul(e.remainder(done, pairs), 2 * LINE))
                for k in range(2):
                    e.prefetch(e.pointer(records_at), line, k * LINE, locality=SECOND_LEVEL)
                e.store(e.add(done, 1), cursor)

        def tile(i: Value, found: list[Value]) -> list[Value]:
            at = e.pointer(e.add(address, e.mul(i, tile_bytes)))
            total = layout.emit_dot(e, at, blocks, [x], refinements if refined else 0, beside=ask)[0]
            if biased:
                total = e.add(total, e.load(F32X16, bias, e.mul(i, 64)))
            e.store(total, out, e.mul(i, 64))
            number = e.add(lanes, e.splat(e.convert(e.mul(i, LANES), I32), LANES))
            if thresholds:
                size_of = e.abs(emit_activation(e, activation, total, None))
                fires = e.compare(">", size_of, e.load(F32X16, e.pointer(least_at), e.mul(i, 64)))
            else:
                fires = e.compare(">", total, 0.0)
            count = store_some(e, fires, [(number, numbers)], found[0])
            e.store(e.mul(count, pairs), cursor, 8)
            return [count]

        first, last = portion(e, tiles, step, thread)
        e.loop(last, [e.integer(0)], tile, start=first)

    key = f"{layout.name} {size} {refined} {biased} {activation.value if thresholds else ''}"
    return Operation(KernelSource("asking_gates", key, emit), arguments, Kind.GATE_UP)
