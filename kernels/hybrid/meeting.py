"""Operations with which the CPU meets the other half: wait for its flag, raise one's own, and add up both sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.atomics import atomic_load, atomic_store
from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.operation import Arguments, Kind, Operation
from localllm.kernels.cpu.run_loop import emit_clock, emit_spin, word
from localllm.kernels.cpu.step_state import LINE, MAX_QUEUES, Word

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.ir_types import Value

    from .exchange import Exchange


def wait_for(exchange: Exchange, side: str, layer: int) -> Operation:
    """Every thread waits until `side` has raised its flag of a layer in this step, or until one half has failed."""
    own = "cpu" if side == "device" else "device"
    arguments = (exchange.flag(side, layer), exchange.address("failed"), layer + 1, _stamp(exchange, own, layer, 0))

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        flag, failed, mark, stamp = Arguments(e, record, thread).integers(4)
        wanted = word(e, step, Word.STEP_NUMBER)

        def done() -> Value:
            raised = e.compare("==", atomic_load(e, flag), wanted)
            return e.bit_or(raised, e.compare("!=", atomic_load(e, failed), 0))

        met = emit_spin(e, step, done, word(e, step, Word.PATIENCE))
        with e.when(e.compare("==", e.convert(met, stamp.type, signed=False), 0)):
            atomic_store(e, mark, failed)
        with e.when(e.compare("==", thread, 0)):
            e.store(emit_clock(e), stamp)

    return Operation(KernelSource("wait_for", "", emit), arguments, Kind.WAIT, barrier=False)


def raise_flag(exchange: Exchange, side: str, layer: int) -> Operation:
    """Tell the other half that what all threads wrote before the last barrier is there."""
    arguments = (exchange.flag(side, layer), _stamp(exchange, side, layer, 1))

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        flag, stamp = Arguments(e, record, thread).integers(2)
        with e.when(e.compare("==", thread, 0)):
            for queue in range(MAX_QUEUES):  # nobody takes work between this flag and the other half's next one
                e.store(e.integer(0), step, 8 * (Word.QUEUES + LINE * queue))
            atomic_store(e, word(e, step, Word.STEP_NUMBER), flag)
            e.store(emit_clock(e), stamp)

    return Operation(KernelSource("raise_flag", "", emit), arguments, Kind.WAIT, barrier=False)


def _stamp(exchange: Exchange, side: str, layer: int, index: int) -> int:
    return exchange.address(f"{side} times") + 8 * (2 * layer + index)
