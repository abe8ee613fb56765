"""Which neurons fire: a gate's positive values, compacted to a list for each row, and counted for a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32X16, I16, I32, I32X16, I64, Value
from localllm.kernels.cpu.normalise import emit_activation
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, Share, load_index, portion

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.linear import ExpertRows
    from localllm.kernels.cpu.step_state import Word
    from localllm.kernels.spec import Activation

LANES = 16
BLOCK = 32


@dataclass(frozen=True, slots=True)
class ActiveLists:
    """For each row the neurons that fire, in rising order: int32 numbers and float32 activations.

    A row holds `starts` (for every 16 neurons where they begin in the list, and one entry more: where the list ends),
    then the numbers, then the activations; `blocks` of 32 neurons.
    """

    rows: Rows
    blocks: int

    @property
    def fields(self) -> tuple[int, ...]:
        """As record fields, for `ActiveValue`."""
        return (*self.rows.fields, self.blocks)


class ActiveValue:
    """`ActiveLists` inside a kernel."""

    def __init__(self, e: Emitter, arguments: Arguments) -> None:
        self._e = e
        self._rows, self.blocks = arguments.rows(), arguments.integer()
        self._starts_bytes = e.mul(e.add(e.div(self.blocks, 8), 2), 64)
        self._list_bytes = e.mul(e.add(self.blocks, 1), 4 * BLOCK)

    def starts(self, m: Value) -> Value:
        """Pointer to a row's starts."""
        return self._rows.row(m)

    def numbers(self, m: Value) -> Value:
        """Pointer to a row's numbers."""
        return self._e.at(self._rows.row(m), self._starts_bytes)

    def values(self, m: Value) -> Value:
        """Pointer to a row's activations."""
        return self._e.at(self.numbers(m), self._list_bytes)


def active_bytes(blocks: int) -> int:
    """Bytes of a row. Whole vectors are stored, so a block more than needed fits behind the last number."""
    return 64 * (blocks // 8 + 2) + 2 * 4 * BLOCK * (blocks + 1)


def compact(
    activation: Activation | None,
    *,
    gate: Rows,
    active: ActiveLists,
    share: Share,
    kind: Kind,
    barrier: bool,
    thresholds: int = 0,
) -> Operation:
    """The list of positive gates and their activations.

    `thresholds`, the address of a float32 for each neuron: of gates whose activation is larger than it in magnitude.
    Without an activation `gate` are scores, and the list has those that are larger; the values are 1.
    """
    arguments = (*gate.fields, *active.fields, *share.fields, thresholds)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        gates, lists = values.rows(), ActiveValue(e, values)
        start, stop = values.share(step)
        least_at = values.integer()
        vectors = e.mul(lists.blocks, 2)
        lanes = e.constant(I32X16, range(LANES))

        def row(m: Value, _: list[Value]) -> None:
            source, starts, numbers, kept = gates.row(m), lists.starts(m), lists.numbers(m), lists.values(m)

            def vector(i: Value, carried: list[Value]) -> list[Value]:
                position = carried[0]
                e.store(e.convert(position, I32), starts, e.mul(i, 4))
                value = e.load(F32X16, source, e.mul(i, 64))
                number = e.add(lanes, e.splat(e.convert(e.mul(i, LANES), I32), LANES))
                result = e.constant(F32X16, 1.0) if activation is None else emit_activation(e, activation, value, None)
                if thresholds:
                    compared = value if activation is None else e.abs(result)
                    fires = e.compare(">", compared, e.load(F32X16, e.pointer(least_at), e.mul(i, 64)))
                else:
                    fires = e.compare(">", value, 0.0)
                return [store_some(e, fires, [(number, numbers), (result, kept)], position)]

            total = e.loop(vectors, [e.integer(0)], vector)[0]
            e.store(e.convert(total, I32), starts, e.mul(vectors, 4))

        e.loop(stop, [], row, start=start)

    key = f"{activation and activation.value} {bool(thresholds)}"
    return Operation(KernelSource("compact", key, emit), arguments, kind, barrier)


def keep_firing(
    activation: Activation,
    *,
    gate: Rows,
    guessed: ActiveLists,
    active: ActiveLists,
    share: Share,
    kind: Kind,
    barrier: bool,
) -> Operation:
    """Those of the guessed lists that fire; `gate`: float32 gates in the order of these lists."""
    arguments = (*gate.fields, *guessed.fields, *active.fields, *share.fields)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        gates, before, after = values.rows(), ActiveValue(e, values), ActiveValue(e, values)
        start, stop = values.share(step)
        vectors = e.mul(after.blocks, 2)
        lanes = e.constant(I32X16, range(LANES))

        def row(m: Value, _: list[Value]) -> None:
            source, edges, numbers = gates.row(m), before.starts(m), before.numbers(m)
            starts, targets = after.starts(m), (after.numbers(m), after.values(m))

            def vector(i: Value, carried: list[Value]) -> list[Value]:
                position = carried[0]
                e.store(e.convert(position, I32), starts, e.mul(i, 4))
                first, last = (load_index(e, edges, e.add(i, k)) for k in range(2))
                value = e.load(F32X16, source, e.mul(first, 4))
                here = e.compare("<", lanes, e.splat(e.convert(e.sub(last, first), I32), LANES))
                fires = e.bit_and(e.compare(">", value, 0.0), here)
                number = e.load(I32X16, numbers, e.mul(first, 4))
                result = emit_activation(e, activation, value, None)
                return [store_some(e, fires, list(zip((number, result), targets, strict=True)), position)]

            total = e.loop(vectors, [e.integer(0)], vector)[0]
            e.store(e.convert(total, I32), starts, e.mul(vectors, 4))

        e.loop(stop, [], row, start=start)

    return Operation(KernelSource("keep_firing", activation.value, emit), arguments, kind, barrier)


def store_some(e: Emitter, chosen: Value, pairs: list[tuple[Value, Value]], position: Value) -> Value:
    """Store the chosen lanes of vectors one after the other from `position` on; returns the position after them."""
    offset = e.mul(position, 4)
    if e.isa.name == "avx512vnni":
        for value, target in pairs:
            kind = "f32" if value.type == F32X16 else "i32"
            packed = e.call(f"llvm.x86.avx512.mask.compress.v16{kind}", value.type, value, value, chosen)
            e.store(packed, target, offset)
        bits = e.intrinsic("ctpop", e.bitcast(chosen, I16))
        return e.add(position, e.convert(bits, I64, signed=False))
    for lane in range(LANES):  # stored always, kept only if the position moves on
        for value, target in pairs:
            e.store(e.lane(value, lane), target, e.mul(position, 4))
        position = e.add(position, e.convert(e.lane(chosen, lane), I64, signed=False))
    return position


def count_active(*, active: ActiveLists, counts: int, count: Word, kind: Kind) -> Operation:
    """counts[neuron] += rows in which it fires; int64 at the address `counts`. Threads divide the neurons."""
    arguments = (*active.fields, counts, 8 * count)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        lists, target, count_offset = ActiveValue(e, values), *values.integers(2)
        rows = e.load(I64, step, count_offset)
        start, stop = portion(e, lists.blocks, step, thread)

        def row(m: Value, _: list[Value]) -> None:
            starts, numbers = lists.starts(m), lists.numbers(m)

            def one(k: Value, _: list[Value]) -> None:
                address = e.at(target, e.mul(load_index(e, numbers, k), 8))
                e.store(e.add(e.load(I64, address), 1), address)

            first, last = (load_index(e, starts, e.mul(edge, 2)) for edge in (start, stop))
            e.loop(last, [], one, start=first)

        e.loop(rows, [], row)

    return Operation(KernelSource("count_active", "", emit), arguments, kind, barrier=True)


def count_experts(*, sorted_rows: ExpertRows, counts: int, experts: int) -> Operation:
    """counts[expert] += rows that chose it; int64 at the address `counts`. The first thread does it."""
    arguments = (sorted_rows.starts, counts, experts)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        starts, target, number = Arguments(e, record, thread).integers(3)

        def one(i: Value, _: list[Value]) -> None:
            at = e.mul(i, 8)
            rows = e.sub(e.load(I64, starts, at, 8), e.load(I64, starts, at))
            e.store(e.add(e.load(I64, target, at), rows), target, at)

        with e.when(e.compare("==", thread, 0)):
            e.loop(number, [], one)

    return Operation(KernelSource("count_experts", "", emit), arguments, Kind.ROUTER, barrier=False)
