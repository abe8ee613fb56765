"""Some inputs of each row, side by side, as matrix kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .activation_format import RECORDS, emit_store, row_bytes
from .compile import KernelSource
from .ir_types import F32, F32X16, Value
from .operation import Arguments, Kind, Operation, Rows, Share, load_index

if TYPE_CHECKING:
    from .emit import Emitter

BLOCK = 32
PICKED_BYTES = row_bytes(RECORDS, 1)


def pick_inputs(*, source: Rows, numbers: int, target: Rows, share: Share, kind: Kind, barrier: bool) -> Operation:
    """target[m] = the 32 values of float32 source[m] whose int32 numbers lie at the address `numbers`, as a record."""
    arguments = (*source.fields, numbers, *target.fields, *share.fields)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        sources, indices, targets = values.rows(), values.integer(), values.rows()
        start, stop = values.share(step)
        picked = e.scratch(4 * BLOCK)

        def row(m: Value, _: list[Value]) -> None:
            x = sources.row(m)

            def one(i: Value, _: list[Value]) -> None:
                e.store(e.load(F32, x, e.mul(load_index(e, indices, i), 4)), picked, e.mul(i, 4))

            e.loop(BLOCK, [], one)
            low, high = e.load(F32X16, picked), e.load(F32X16, picked, 64)
            emit_store(e, RECORDS, targets.row(m), e.integer(0), low, high)

        e.loop(stop, [], row, start=start)

    return Operation(KernelSource("pick_inputs", "", emit), arguments, kind, barrier)
