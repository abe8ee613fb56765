"""Up rows of the neurons that fire: hidden[k] = activation[k] * (row[k] . x + bias), in float32.

Every product is computed alike, whichever thread does it and whatever else is in the step. With many rows of x the
neurons are taken a chunk at a time, so that a chunk's weights are read from memory once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32, F32X16, I64, Value
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, load_index, portion

from .active import ActiveLists, ActiveValue
from .codes import UNIT, VECTORS, Codes, emit_unit, parts_of, units_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.gguf_io import Tensor
    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.step_state import Word

    Bytes = npt.NDArray[np.uint8]

_CHUNK_BYTES = 1 << 19  # of weights that stay in the second-level cache while all rows pass over them
_AHEAD = 8
_ALIGNMENT = 64
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class NeuronRows:
    """A matrix with a run for each neuron: its units, then float32 scales, then minimums."""

    codes: Codes
    address: int
    units: int
    bias: int = 0  # address of float32, 0: none

    @property
    def row_bytes(self) -> int:
        """Between neurons."""
        return row_bytes(self.codes, self.units)


def _groups(codes: Codes, units: int) -> int:
    return units * UNIT // codes.group if codes.group else 0


def row_bytes(codes: Codes, units: int) -> int:
    """Bytes of a neuron's run, on whole cache lines."""
    size = units * codes.kind.value + 4 * _groups(codes, units) * (1 + codes.minimum)
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def pack_rows(codes: Codes, tensor: Tensor, target: Bytes) -> None:
    """Fill uint8 [neurons * row_bytes]."""
    units = units_of(tensor.columns)
    runs = target.reshape(tensor.rows, row_bytes(codes, units))
    for start in range(0, tensor.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, tensor.rows)
        parts = parts_of(codes, tensor.row_slice(start, stop))
        pieces = [parts.units.reshape(stop - start, -1)]
        pieces += [p.astype(np.float32).view(np.uint8) for p in (parts.scales, parts.minimums) if p is not None]
        run = np.concatenate(pieces, axis=1)
        runs[start:stop, : run.shape[1]] = run
        runs[start:stop, run.shape[1] :] = 0


def up_rows(
    rows: NeuronRows,
    *,
    source: Rows,
    active: ActiveLists,
    hidden: Rows,
    positive: bool,
    count: Word,
    kind: Kind,
) -> Operation:
    """hidden[m][k] = values[m][k] * (row of numbers[m][k] . source[m] + bias); `positive`: a negative sum counts as 0.

    `source` is float32. Threads divide the list of each row.
    """
    arguments = (
        *(rows.address, rows.units, rows.row_bytes, rows.bias),
        *(*source.fields, *active.fields, *hidden.fields, 8 * count),
    )
    codes, biased = rows.codes, bool(rows.bias)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        address, units, stride, bias = values.integers(4)
        sources, lists, targets = values.rows(), ActiveValue(e, values), values.rows()
        row_count, block_count = e.load(I64, step, values.integer()), lists.blocks
        in_cache = e.max(e.div(_CHUNK_BYTES // UNIT, stride), 1)
        chunk = e.select(e.compare("==", row_count, 1), block_count, in_cache)

        def neurons(first: Value, _: list[Value]) -> None:
            after = e.min(e.add(first, chunk), block_count)

            def row(m: Value, _: list[Value]) -> None:
                starts, numbers, kept = lists.starts(m), lists.numbers(m), lists.values(m)
                x, hidden_row = sources.row(m), targets.row(m)
                total = load_index(e, starts, e.mul(block_count, 2))
                low, high = portion(e, total, step, thread)
                low = e.max(low, load_index(e, starts, e.mul(first, 2)))
                high = e.min(high, load_index(e, starts, e.mul(after, 2)))

                def one(k: Value, _: list[Value]) -> None:
                    number = load_index(e, numbers, k)
                    ahead = load_index(e, numbers, e.add(k, _AHEAD))  # beyond the list: some neuron or other
                    run, later = (e.at(address, e.mul(i, stride)) for i in (number, ahead))
                    value = emit_product(e, codes, run, later, x, units)
                    if biased:
                        value = e.add(value, e.load(F32, bias, e.mul(number, 4)))
                    if positive:
                        value = e.max(value, 0.0)
                    at = e.mul(k, 4)
                    e.store(e.mul(e.load(F32, kept, at), value), hidden_row, at)

                e.loop(high, [], one, start=low)

            e.loop(row_count, [], row)

        e.loop(block_count, [], neurons, step=chunk)

    source_code = KernelSource("up_rows", f"{codes.name} {biased} {positive}", emit)
    return Operation(source_code, arguments, kind)


def emit_product(e: Emitter, codes: Codes, run: Value, later: Value, x: Value, units: Value) -> Value:
    """run . x; asks for the run `later` on the way."""
    unit_bytes = codes.kind.value
    scales = e.at(run, e.mul(units, unit_bytes))
    per_unit = UNIT // codes.group if codes.group else 0
    minimums = e.at(scales, e.mul(units, 4 * per_unit))
    line = unit_bytes + 4 * per_unit * (1 + codes.minimum)  # bytes of a run that a unit stands for

    def unit(i: Value, totals: list[Value]) -> list[Value]:
        for part in range(0, line, 64):
            e.prefetch(later, e.mul(i, line), part)
        weights = emit_unit(e, codes, e.at(run, e.mul(i, unit_bytes)))
        inputs = [e.load(F32X16, x, e.mul(i, 4 * UNIT), 64 * k) for k in range(VECTORS)]
        if not per_unit:
            return [e.fma(w, a, total) for w, a, total in zip(weights, inputs, totals, strict=True)]

        def splat(base: Value, group: int) -> Value:
            return e.load_splat(F32, 16, base, e.mul(i, 4 * per_unit), 4 * group)

        if per_unit == 1:
            product = e.fma(weights[1], inputs[1], e.mul(weights[0], inputs[0]))
            first = e.fma(splat(scales, 0), product, totals[0])
            if not codes.minimum:
                return [first, totals[1]]
            return [first, e.fma(splat(minimums, 0), e.add(*inputs), totals[1])]
        result = []
        for k, total in enumerate(totals):
            total = e.fma(splat(scales, k), e.mul(weights[k], inputs[k]), total)
            result.append(e.fma(splat(minimums, k), inputs[k], total) if codes.minimum else total)
        return result

    return e.horizontal_sum(e.add(*e.loop(units, [e.constant(F32X16, 0.0)] * VECTORS, unit)))
