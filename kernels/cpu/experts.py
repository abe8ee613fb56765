"""Mixtures of experts: choose experts for each row, sort the rows by expert, add up what the experts give.

Rows x `top_k` *slots* are sorted by expert, within an expert by row, so the order of every sum is fixed. Expert
matrices then run over the slots of one expert after the other (see `linear`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.spec import Gating

from .compile import KernelSource
from .ir_types import F32, F32X16, I32, I32X16, I64, Value
from .linear import ExpertRows
from .operation import Arguments, Kind, Operation, Rows, Share, float_bits
from .page_types import padded
from .step_state import Word
from .vector_math import exp, sigmoid

if TYPE_CHECKING:
    from .emit import Emitter

_LOWEST = -3.0e38
_SMALLEST_SUM = 6.103515625e-5  # chosen weights are divided by no less than this


@dataclass(frozen=True, slots=True)
class Routing:
    """How a mixture chooses. If `biased`, `bias` is the address of padded float32 that count for the choice only."""

    experts: int
    top_k: int
    gating: Gating
    normalise: bool
    weight_scale: float
    bias: int = 0
    biased: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Addresses of what routing leaves behind, in shared memory."""

    chosen: int  # int64 [rows, top_k]
    weights: int  # float32 [rows, top_k]
    slots: int  # int64 [rows, top_k]: where (row, rank) is in the sorted order
    rows: int  # int64 [slots]: the row of each slot
    sorted: ExpertRows


def choose_experts(routing: Routing, *, logits: Rows, choice: Choice, share: Share) -> Operation:
    """For each row the best experts and their weights, out of router logits of whole tiles."""
    arguments = (
        *logits.fields,
        choice.chosen,
        choice.weights,
        routing.bias,
        float_bits(routing.weight_scale),
        *share.fields,
    )
    width = padded(routing.experts)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        rows, chosen, weights, bias_address, weight_scale = values.rows(), *values.integers(3), values.float()
        each_row = values.each_row(step)
        scores, selection = e.scratch(4 * width), e.scratch(4 * width)

        def row(m: Value) -> None:
            _emit_scores(e, routing, rows.row(m), scores)
            for i in range(0, width, 16):
                value = e.load(F32X16, scores, 4 * i)
                if routing.biased:
                    value = e.add(value, e.load(F32X16, bias_address, 4 * i))
                if i + 16 > routing.experts:
                    inside = e.lane_mask(16, e.integer(routing.experts - i))
                    value = e.select(inside, value, _LOWEST)
                e.store(value, selection, 4 * i)
            own_weights = e.at(weights, e.mul(m, 4 * routing.top_k))

            def choose(rank: Value, _: list[Value]) -> None:
                best = _emit_best(e, selection, width)
                e.store(e.constant(F32, _LOWEST), selection, e.mul(best, 4))
                e.store(best, chosen, e.mul(e.add(e.mul(m, routing.top_k), rank), 8))
                e.store(e.load(F32, scores, e.mul(best, 4)), own_weights, e.mul(rank, 4))

            e.loop(routing.top_k, [], choose)
            _emit_weights(e, routing, own_weights, weight_scale)

        each_row(row)

    routing_key = f"{routing.experts} {routing.top_k} {routing.gating.value} {routing.normalise} {routing.biased}"
    return Operation(KernelSource("choose_experts", routing_key, emit), arguments, Kind.ROUTER)


def _emit_scores(e: Emitter, routing: Routing, logits: Value, scores: Value) -> None:
    """Softmax or sigmoid of all logits, or the logits themselves."""
    pieces = []
    for i in range(0, padded(routing.experts), 16):
        value = e.load(F32X16, logits, 4 * i)
        if i + 16 > routing.experts:
            value = e.select(e.lane_mask(16, e.integer(routing.experts - i)), value, _LOWEST)
        pieces.append(value)
    if routing.gating is Gating.SIGMOID:
        pieces = [sigmoid(e, value) for value in pieces]
    elif routing.gating is Gating.SOFTMAX:
        largest = pieces[0]
        for value in pieces[1:]:
            largest = e.max(largest, value)
        spread = e.splat(e.horizontal_max(largest), 16)
        total = e.constant(F32X16, 0.0)
        for i, value in enumerate(pieces):
            pieces[i] = e.select(e.compare(">", value, _LOWEST), exp(e, e.sub(value, spread)), 0.0)
            total = e.add(total, pieces[i])
        factor = e.splat(e.div(1.0, e.horizontal_sum(total)), 16)
        pieces = [e.mul(value, factor) for value in pieces]
    for i, value in enumerate(pieces):
        e.store(value, scores, 64 * i)


def _emit_best(e: Emitter, selection: Value, width: int) -> Value:
    """Index of the largest score; of equal ones the first."""
    numbers = e.constant(I32X16, range(16))

    def look(i: Value, carried: list[Value]) -> list[Value]:
        best, index = carried
        value = e.load(F32X16, selection, e.mul(i, 4))
        larger = e.compare(">", value, best)
        here = e.add(numbers, e.splat(e.convert(i, I32), 16))
        return [e.select(larger, value, best), e.select(larger, here, index)]

    best, index = e.loop(width, [e.constant(F32X16, -3.3e38), numbers], look, step=16)
    largest = e.splat(e.horizontal_max(best), 16)
    candidates = e.select(e.compare("==", best, largest), index, width - 1)
    return e.convert(e.horizontal_min(candidates), I64)


def _emit_weights(e: Emitter, routing: Routing, weights: Value, scale: Value) -> None:
    """Chosen scores to weights, in place; scalars, since there are few."""
    values = [e.load(F32, weights, 4 * k) for k in range(routing.top_k)]
    if routing.gating is Gating.SOFTMAX_CHOSEN:
        largest = values[0]  # the first one chosen, unless a bias led the choice
        for value in values[1:]:
            largest = e.max(largest, value)
        values = [e.lane(exp(e, e.splat(e.sub(value, largest), 4)), 0) for value in values]
        total = _sum(e, values)
        values = [e.div(value, total) for value in values]
    if routing.normalise:
        total = e.max(_sum(e, values), _SMALLEST_SUM)
        values = [e.div(value, total) for value in values]
    for k, value in enumerate(values):
        e.store(e.mul(value, scale), weights, 4 * k)


def _sum(e: Emitter, values: list[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = e.add(total, value)
    return total


def sort_by_expert(routing: Routing, *, choice: Choice) -> Operation:
    """A counting sort of the slots by expert; one thread does it while the others wait."""
    arguments = (choice.chosen, choice.slots, choice.rows, choice.sorted.active, choice.sorted.starts)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        chosen, slots, rows, active, starts = Arguments(e, record, thread).integers(5)
        with e.when(e.compare("==", thread, 0)):
            count = e.mul(e.field(step, Word.ROWS), routing.top_k)
            e.store(count, step, 8 * Word.EXPERT_ROWS)
            zero = e.integer(0)
            e.loop(routing.experts + 1, [], lambda i, _: e.store(zero, starts, e.mul(i, 8)))

            def tally(i: Value, _: list[Value]) -> None:
                expert = e.load(I64, chosen, e.mul(i, 8))
                address = e.at(starts, e.mul(expert, 8), 8)
                e.store(e.add(e.load(I64, address), 1), address)

            e.loop(count, [], tally)

            def sum_up(i: Value, carried: list[Value]) -> list[Value]:
                before, found = carried
                address = e.at(starts, e.mul(i, 8), 8)
                own = e.load(I64, address)
                with e.when(e.compare(">", own, 0)):
                    e.store(i, active, e.mul(found, 8), 8)
                e.store(before, starts, e.mul(i, 8))  # the next free place, moved on below
                return [e.add(before, own), e.add(found, e.select(e.compare(">", own, 0), e.integer(1), 0))]

            # `starts[i + 1]` is read before `starts[i + 1]` is overwritten in the next round.
            total = e.loop(routing.experts, [zero, zero], sum_up)
            e.store(total[1], active)
            e.store(total[0], starts, 8 * routing.experts)

            def place(i: Value, _: list[Value]) -> None:
                address = e.at(starts, e.mul(e.load(I64, chosen, e.mul(i, 8)), 8))
                slot = e.load(I64, address)
                e.store(e.add(slot, 1), address)
                e.store(slot, slots, e.mul(i, 8))
                e.store(e.div(i, routing.top_k), rows, e.mul(slot, 8))

            e.loop(count, [], place)

            def back(i: Value, _: list[Value]) -> None:  # each start has moved to the next one's place
                at = e.sub(routing.experts - 1, i)
                e.store(e.load(I64, starts, e.mul(at, 8)), starts, e.mul(at, 8), 8)

            e.loop(routing.experts, [], back)
            e.store(zero, starts)

    key = f"{routing.experts} {routing.top_k}"
    return Operation(KernelSource("sort_by_expert", key, emit), arguments, Kind.ROUTER)


def combine_experts(
    routing: Routing,
    *,
    choice: Choice,
    outputs: Rows,
    shared: Rows | None,
    shared_gate: Rows | None,
    residual: Rows | None,
    target: Rows,
    columns: int,
    scale: float,
    share: Share,
    barrier: bool,
) -> Operation:
    """target[m] = residual[m] + scale * (sum of weight * outputs[slot] + sigmoid(shared_gate[m]) * shared[m])."""
    nothing = Rows(0, 0)
    arguments = (
        *(choice.weights, choice.slots, *outputs.fields, *(shared or nothing).fields, *(shared_gate or nothing).fields),
        *(*(residual or nothing).fields, *target.fields, columns, float_bits(scale), *share.fields),
    )
    present = (shared is not None, shared_gate is not None, residual is not None)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        weights, slots = values.integers(2)
        expert_rows, shared_rows, gate_rows, residuals, targets = (values.rows() for _ in range(5))
        width, factor = values.integer(), e.splat(values.float(), 16)
        each_row = values.each_row(step)

        def row(m: Value) -> None:
            gate = None
            if present[1]:
                gate = sigmoid(e, e.splat(e.load(F32, gate_rows.row(m)), 16))

            def piece(column: Value, _: list[Value]) -> None:
                offset = e.mul(column, 4)

                def add(rank: Value, total: list[Value]) -> list[Value]:
                    at = e.add(e.mul(m, routing.top_k), rank)
                    weight = e.load_splat(F32, 16, weights, e.mul(at, 4))
                    slot = e.load(I64, slots, e.mul(at, 8))
                    return [e.fma(weight, e.load(F32X16, expert_rows.row(slot), offset), total[0])]

                total = e.loop(routing.top_k, [e.constant(F32X16, 0.0)], add)[0]
                if present[0]:
                    value = e.load(F32X16, shared_rows.row(m), offset)
                    total = e.add(total, value) if gate is None else e.fma(value, gate, total)
                base = e.load(F32X16, residuals.row(m), offset) if present[2] else e.constant(F32X16, 0.0)
                e.store(e.fma(total, factor, base), targets.row(m), offset)

            e.loop(width, [], piece, step=16)

        each_row(row)

    return Operation(
        KernelSource("combine_experts", f"{routing.top_k} {present}", emit), arguments, Kind.EXPERTS, barrier
    )
