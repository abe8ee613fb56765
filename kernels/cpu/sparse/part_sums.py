"""The sums of the parts of the neurons, added in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32X16, I64, Value
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, RowsValue, float_bits, portion

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.step_state import Word

FEW_ROWS = 8  # up to so many, each part has a sum of its own for each row; beyond, each row has one sum


def add_sums(
    *,
    sums: Rows,
    parts: int,
    bias: int,
    target: Rows,
    residual: Rows | None,
    scale: float,
    width: int,
    count: Word,
    kind: Kind,
) -> Operation:
    """target[m] = residual[m] + scale * (sum + bias) for `width` columns, a multiple of 16. Threads divide columns."""
    base = residual or Rows(0, 0)
    arguments = (
        *(sums.address, sums.stride, parts, bias, target.address, target.stride, *base.fields),
        *(float_bits(scale), width, 8 * count),
    )

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        part_rows = RowsValue(e, *values.integers(2))
        part_count, bias_at = values.integers(2)
        targets, residuals = RowsValue(e, *values.integers(2)), values.rows()
        factor, columns, rows = e.splat(values.float(), 16), values.integer(), e.load(I64, step, values.integer())
        zeros = e.scratch(64)
        e.store(e.constant(F32X16, 0.0), zeros)
        has_bias, has_residual = (e.compare("!=", a, 0) for a in (bias_at, residuals.stride))
        each = e.select(e.compare("<=", rows, FEW_ROWS), part_count, 1)
        first, last = portion(e, e.div(columns, 16), step, thread)

        def row(m: Value, _: list[Value]) -> None:
            before, target, old = e.mul(m, each), targets.row(m), residuals.row(m)

            def piece(i: Value, _: list[Value]) -> None:
                at = e.mul(i, 64)

                def part(p: Value, total: list[Value]) -> list[Value]:
                    return [e.add(total[0], e.load(F32X16, part_rows.row(e.add(before, p)), at))]

                total = e.loop(each, [e.constant(F32X16, 0.0)], part)[0]
                extra = e.load(F32X16, e.select(has_bias, e.at(bias_at, at), zeros))
                rest = e.load(F32X16, e.select(has_residual, e.at(old, at), zeros))
                e.store(e.fma(e.add(total, extra), factor, rest), target, at)

            e.loop(last, [], piece, start=first)

        e.loop(rows, [], row)

    return Operation(KernelSource("add_sums", "", emit), arguments, kind)
