"""The gates of the neurons that a guess names: hidden[k] = row of numbers[k] . x + bias, in integers.

A neuron's row is a record of its own: few are read, and those of most neurons that are read needlessly go no further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32, I64, Value
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, load_index, portion

from .active import ActiveLists, ActiveValue
from .record_rows import emit_row
from .records import LINE, RecordRow

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.step_state import Word

_AHEAD_BYTES = 1 << 14  # of rows that are asked for before they are read


@dataclass(frozen=True, slots=True)
class GateRows:
    """A matrix as a row for each neuron, on whole cache lines. `bias`: address of float32, 0: none."""

    row: RecordRow
    address: int
    bias: int = 0

    @property
    def stride(self) -> int:
        """Bytes from neuron to neuron."""
        return -(-self.row.end // LINE) * LINE


def guessed_gates(
    rows: GateRows, *, source: Rows, guessed: ActiveLists, hidden: Rows, count: Word, kind: Kind
) -> Operation:
    """The gates, float32 in the order of each row's list. `source` are levels. Threads divide the lists."""
    arguments = (rows.address, rows.bias, *source.fields, *guessed.fields, *hidden.fields, 8 * count)
    biased, stride, ahead = bool(rows.bias), rows.stride, max(2, _AHEAD_BYTES // rows.stride)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        address, bias = values.integers(2)
        sources, lists, targets = values.rows(), ActiveValue(e, values), values.rows()
        row_count = e.load(I64, step, values.integer())

        def row(m: Value, _: list[Value]) -> None:
            numbers, x, hidden_row = lists.numbers(m), sources.row(m), targets.row(m)
            total = load_index(e, lists.starts(m), e.mul(lists.blocks, 2))
            low, high = portion(e, total, step, thread)

            def one(k: Value, _: list[Value]) -> None:
                following = e.min(e.add(k, ahead), e.sub(high, 1))
                number, later = (load_index(e, numbers, i) for i in (k, following))
                here, there = (e.at(address, e.mul(i, stride)) for i in (number, later))
                value = emit_row(e, rows.row, here, x, there, range(stride // LINE))
                if biased:
                    value = e.add(value, e.load(F32, bias, e.mul(number, 4)))
                e.store(value, hidden_row, e.mul(k, 4))

            e.loop(high, [], one, start=low)

        e.loop(row_count, [], row)

    return Operation(KernelSource("guessed_gates", f"{rows.row} {biased}", emit), arguments, kind)
