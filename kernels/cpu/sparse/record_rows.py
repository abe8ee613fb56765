"""The product of a row of a record with a row of levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.ir_types import F32, F32X16, I8, I32X16, Value, vector

from .dot import emit_dot, emit_nibbles, emit_shifted, emit_whole, high_exponent
from .levels import BLOCK, HEADER, SUMS, unit_bytes, unit_sizes
from .records import LINE, emit_load_scales, scale_bytes

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter

    from .records import RecordRow

SECOND_LEVEL = 2  # a request that fills the first level occupies the core longer: 12 instead of 17 GB/s


def emit_row(e: Emitter, row: RecordRow, record: Value, levels: Value, later: Value, asked: range) -> Value:
    """The product of a record's row and a row of levels; asks for lines `asked` of the record `later` on the way."""
    codes = row.codes
    sizes, zero = unit_sizes(row.blocks), e.constant(F32X16, 0.0)
    first_line, lines = asked.start, len(asked)
    many = sizes.count(16)
    step, exponent = scale_bytes(codes), high_exponent(e)

    def unit(size: int, codes_at: Value, number: Value | int, inputs: Value, totals: list[Value]) -> list[Value]:
        """`number`: of blocks before."""
        raws = [e.load(vector(I8, min(16 * size, 64)), codes_at, 64 * r) for r in range(max(1, size // 4))]
        pairs: list[tuple[Value, ...]] = [emit_nibbles(e, raw) for raw in raws]
        sums_of = e.load(I32X16, inputs)
        nothing = e.constant(I32X16, 0)
        start = nothing if codes.minimum else sums_of
        if size == 2:  # one vector holds both
            low, high = pairs[0]
            pairs = [(e.concatenate(low, emit_shifted(e, high, exponent)),)]
        chains = [[nothing, start], [nothing, nothing]]
        place = 0
        for pair in pairs:
            for h, nibbles in enumerate(pair):
                for level in range(2):
                    vector_of = e.load(vector(I8, 64), inputs, SUMS + 128 * place + 64 * level)
                    chains[h][level] = emit_dot(e, chains[h][level], nibbles, vector_of)
                place += 1
        whole = emit_whole(e, chains[0])
        if len(pairs[0]) == 2:
            whole = e.add(whole, e.shift_right(emit_whole(e, chains[1]), exponent, signed=True))

        def spread(base: int) -> Value:
            at = e.add(e.mul(e.integer(number), step), base)
            if size == 16:
                return emit_load_scales(e, codes, 16, e.at(record, at), 0)
            few = emit_load_scales(e, codes, size, e.at(record, at), 0)
            return e.shuffle(few, [lane % size for lane in range(16)])

        result = [e.fma(spread(row.scales), e.convert(whole, F32), totals[0])]
        if codes.minimum:
            result.append(e.fma(spread(row.minimums), e.convert(sums_of, F32), totals[1]))
        return result

    totals = [zero] * (1 + codes.minimum)
    per_unit = -(-lines // len(sizes))

    def ask(number: Value | int) -> None:
        first = e.add(e.mul(e.integer(number), per_unit * LINE), first_line * LINE)
        for line in range(per_unit):
            e.prefetch(later, first, line * LINE, locality=SECOND_LEVEL)

    def full(i: Value, carried: list[Value]) -> list[Value]:
        ask(i)
        codes_at = e.at(record, row.start, e.mul(i, 16 * BLOCK // 2))
        return unit(16, codes_at, e.mul(i, 16), e.at(levels, HEADER, e.mul(i, unit_bytes(16))), carried)

    if many > 2:
        totals = e.loop(many, totals, full)
    else:
        for i in range(many):
            totals = full(e.integer(i), totals)
    done, at = 16 * many, HEADER + many * unit_bytes(16)
    for index, size in enumerate(sizes[many:]):
        ask(many + index)
        totals = unit(size, e.at(record, row.start + done * BLOCK // 2), done, e.at(levels, at), totals)
        done, at = done + size, at + unit_bytes(size)
    total = totals[0] if len(totals) == 1 else e.add(*totals)
    return e.mul(e.horizontal_sum(total), e.load(F32, levels))
