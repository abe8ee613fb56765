"""Which of the chosen experts are in a half: as an operation of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32, I64
from localllm.kernels.cpu.operation import Arguments, Kind, Operation
from localllm.kernels.cpu.step_state import Word

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.experts import Choice
    from localllm.kernels.cpu.ir_types import Value


def divide_choice(
    *,
    chosen: int,
    weights: int,
    top_k: int,
    table: int,
    absent: int,
    own: Choice,
    copies: tuple[int, int] | None,
    uses: int = 0,
) -> Operation:
    """own.chosen = table[chosen], with weight 0 for those that are `absent`; `copies`: where the others read them.

    All are addresses: int64 experts and float32 weights [rows, top_k], int64 table [experts], and, if choices are to be
    counted, int64 `uses` [experts]. One thread does it.
    """
    counts = uses != 0
    arguments = (chosen, weights, table, absent, own.chosen, own.weights, *(copies or (0, 0)), uses)
    publishes = copies is not None

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, source_weights, numbers, missing, target, target_weights, *others, counters = Arguments(
            e, record, thread
        ).integers(9)

        def one(i: Value, _: list[Value]) -> None:
            expert, weight = e.load(I64, source, e.mul(i, 8)), e.load(F32, source_weights, e.mul(i, 4))
            if publishes:
                e.store(expert, others[0], e.mul(i, 8))
                e.store(weight, others[1], e.mul(i, 4))
            if counts:
                used = e.mul(expert, 8)
                e.store(e.add(e.load(I64, counters, used), 1), counters, used)
            number = e.load(I64, numbers, e.mul(expert, 8))
            e.store(number, target, e.mul(i, 8))
            e.store(e.select(e.compare("==", number, missing), 0.0, weight), target_weights, e.mul(i, 4))

        with e.when(e.compare("==", thread, 0)):
            e.loop(e.mul(e.field(step, Word.ROWS), top_k), [], one)

    return Operation(KernelSource("divide_choice", f"{top_k} {publishes} {counts}", emit), arguments, Kind.ROUTER)


def drop_absent(*, active: int, absent: int) -> Operation:
    """Take the number behind the last expert off the list of those that have slots."""
    arguments = (active, absent)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        numbers, missing = Arguments(e, record, thread).integers(2)
        with e.when(e.compare("==", thread, 0)):
            count = e.load(I64, numbers)
            with (
                e.when(e.compare(">", count, 0)),
                e.when(e.compare("==", e.load(I64, numbers, e.mul(count, 8)), missing)),
            ):
                e.store(e.sub(count, 1), numbers)

    return Operation(KernelSource("drop_absent", "", emit), arguments, Kind.ROUTER)
