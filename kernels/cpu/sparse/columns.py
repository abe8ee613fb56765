"""Down columns of the neurons that fire: target = residual + scale * (sum of hidden[k] * column[k] + bias).

Three forms: in a file's usual down matrix blocks run along the neurons, so a group of neurons shares a scale vector,
one number an output; a transposed matrix (PowerInfer's files) has scales along each column; plain floats have none.
The sum of an output runs over the neurons in rising order, group by group, whatever the threads and the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import decompose, dequantize
from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32, F32X16, I64, Value
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, RowsValue, float_bits, load_index, portion
from localllm.kernels.cpu.run_loop import word
from localllm.kernels.cpu.step_state import Word
from localllm.kernels.cpu.vector_math import load_half

from .active import ActiveLists, ActiveValue
from .codes import UNIT, VECTORS, CodeKind, Codes, emit_unit, pack_codes, parts_of, units_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.gguf_io import Tensor
    from localllm.kernels.cpu.emit import Emitter

    Bytes = npt.NDArray[np.uint8]

_CHUNK_BYTES = 1 << 18  # of columns that stay in the second-level cache while all rows pass over them
_UNITS_PER_THREAD = 4
_AHEAD = 8


class ScaleForm(Enum):
    """What a scale belongs to."""

    NONE = "none"
    OUTPUT = "output"  # an output and a group of neurons
    NEURON = "neuron"  # a neuron and 32 or 16 outputs


@dataclass(frozen=True, slots=True)
class NeuronColumns:
    """A matrix with a run for each neuron over `outputs` outputs; `blocks` of 32 neurons. Addresses, 0: none.

    Scales of outputs are [groups, units * 32], float16 or float32, those of neurons float32 [neurons, groups].
    """

    codes: Codes
    form: ScaleForm
    columns: int
    scales: int
    minimums: int
    outputs: int
    blocks: int
    bias: int = 0

    @property
    def units(self) -> int:
        """Units of a column."""
        return units_of(self.outputs)


@dataclass(frozen=True, slots=True)
class ColumnSizes:
    """Bytes of the three regions."""

    columns: int
    scales: int
    minimums: int


def form_of(codes: Codes, transposed: bool) -> ScaleForm:
    """Where the scales are."""
    if not codes.group:
        return ScaleForm.NONE
    return ScaleForm.NEURON if transposed else ScaleForm.OUTPUT


def sizes_of(codes: Codes, form: ScaleForm, outputs: int, neurons: int) -> ColumnSizes:
    """How much memory the matrix takes; neurons are padded to whole blocks of 32."""
    padded, units = units_of(neurons) * UNIT, units_of(outputs)
    scales = 0
    if form is ScaleForm.OUTPUT:
        scales = padded // codes.group * units * UNIT * (2 if codes.half_scales else 4)
    elif form is ScaleForm.NEURON:
        scales = 4 * padded * units * UNIT // codes.group
    return ColumnSizes(padded * units * codes.kind.value, scales, scales if codes.minimum else 0)


def pack_columns(
    codes: Codes, tensor: Tensor, transposed: bool, columns: Bytes, scales: Bytes, minimums: Bytes
) -> None:
    """Fill the three regions from a matrix (outputs, neurons), or (neurons, outputs) if `transposed`."""
    outputs, neurons = (tensor.columns, tensor.rows) if transposed else (tensor.rows, tensor.columns)
    units, padded = units_of(outputs), units_of(neurons) * UNIT
    runs = columns.reshape(padded, units, codes.kind.value)
    numbers = np.float16 if codes.half_scales and not transposed else np.float32
    if transposed:
        for start in range(0, neurons, 256):
            stop = min(start + 256, neurons)
            parts = parts_of(codes, tensor.row_slice(start, stop))
            runs[start:stop] = parts.units
            for target, part in ((scales, parts.scales), (minimums, parts.minimums)):
                if part is not None:
                    target.view(np.float32).reshape(padded, -1)[start:stop] = part
        runs[neurons:] = 0
        return
    for unit in range(units):
        start, stop = unit * UNIT, min((unit + 1) * UNIT, outputs)
        rows = tensor.row_slice(start, stop)
        turned, found_scales, found_minimums = _turned(codes, rows, padded)
        runs[:, unit] = turned
        for target, part in ((scales, found_scales), (minimums, found_minimums)):
            if part is not None:
                vectors = target.view(numbers).reshape(-1, units, UNIT)
                vectors[:, unit] = 0
                vectors[:, unit, : stop - start] = part.T


def _turned(
    codes: Codes, rows: Tensor, padded: int
) -> tuple[Bytes, npt.NDArray[np.float32] | None, npt.NDArray[np.float32] | None]:
    """At most 32 outputs: units uint8 [padded neurons, kind.value], scales and minimums [outputs, groups]."""
    if not codes.group:
        values = np.zeros((padded, UNIT), np.float16 if codes.kind is CodeKind.HALVES else np.float32)
        values[: rows.columns, : rows.rows] = dequantize(rows).T
        return values.view(np.uint8), None, None
    found = decompose(rows)
    quants = np.zeros((padded, UNIT), np.int8)
    quants[: rows.columns, : rows.rows] = found.quants.T
    return pack_codes(codes, quants), found.scales, found.minimums


def down_columns(
    matrix: NeuronColumns,
    *,
    active: ActiveLists,
    hidden: Rows | None,
    sums: Rows,
    target: Rows,
    residual: Rows | None,
    scale: float,
    width: int,
    count: Word,
    kind: Kind,
) -> Operation:
    """target[m] = residual[m] + scale * (down @ hidden[m] + bias) for `width` columns, a multiple of 16.

    Without `hidden` the activations of the lists are what is multiplied. `sums` (float32 rows of whole units)
    is for the sums on their way. Threads divide the outputs, and rows if needed.
    """
    base = residual or Rows(0, 0)
    own = hidden is None
    buffers = (hidden or Rows(0, 0), sums, target)
    if any(rows.thread_stride for rows in buffers):
        raise ValueError("threads write parts of the same rows")
    arguments = (
        *(matrix.columns, matrix.scales, matrix.minimums, matrix.bias, matrix.units),
        *(*active.fields, *(field for rows in buffers for field in (rows.address, rows.stride)), *base.fields),
        *(float_bits(scale), width, 8 * count),
    )
    codes, form = matrix.codes, matrix.form

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        kernel = _Down(e, codes, form, own, values)
        row_count = e.load(I64, step, values.integer())
        wanted = e.mul(word(e, step, Word.THREADS), _UNITS_PER_THREAD)
        parts = e.div(e.add(wanted, e.sub(kernel.units, 1)), kernel.units)
        parts = e.min(e.max(parts, 1), row_count)
        start, stop = portion(e, e.mul(parts, kernel.units), step, thread)

        def part(index: Value, _: list[Value]) -> None:
            before = e.mul(index, kernel.units)
            first, last = e.max(e.sub(start, before), 0), e.min(e.sub(stop, before), kernel.units)
            low, high = (e.div(e.mul(row_count, e.add(index, k)), parts) for k in range(2))
            kernel.piece(first, last, low, high, e.compare("==", row_count, 1))

        e.loop(e.div(e.add(stop, e.sub(kernel.units, 1)), kernel.units), [], part, start=e.div(start, kernel.units))

    return Operation(KernelSource("down_columns", f"{codes.name} {form.value} {own}", emit), arguments, kind)


class _Down:
    """The kernel for a range of units and rows."""

    def __init__(self, e: Emitter, codes: Codes, form: ScaleForm, own: bool, values: Arguments) -> None:
        self.e, self.codes, self.form, self.own = e, codes, form, own
        self.columns, self.scales, self.minimums, self.bias, self.units = values.integers(5)
        self.active = ActiveValue(e, values)
        self.hidden, self.sums, self.target = (RowsValue(e, *values.integers(2)) for _ in range(3))
        self.residual = values.rows()
        self.factor, self.width = e.splat(values.float(), 16), values.integer()
        self.column_bytes = e.mul(self.units, codes.kind.value)
        self.group = codes.group if form is ScaleForm.OUTPUT else UNIT  # neurons that are summed up together
        self.at_once = 8 if e.isa.name == "avx512vnni" else 2  # units whose sums are in registers
        self.scale_bytes = 2 if codes.half_scales else 4

    def piece(self, first: Value, last: Value, low: Value, high: Value, alone: Value) -> None:
        """Units [first, last) of rows [low, high)."""
        e = self.e
        groups = e.mul(self.active.blocks, UNIT // self.group)
        unit_bytes = self.codes.kind.value * self.group
        in_cache = e.max(e.div(_CHUNK_BYTES // unit_bytes, e.max(e.sub(last, first), 1)), 1)
        chunk = e.select(alone, groups, in_cache)
        zero = e.constant(F32X16, 0.0)

        def clear(m: Value, _: list[Value]) -> None:
            row = self.sums.row(m)
            e.loop(e.mul(last, 128), [], lambda at, _: e.store(zero, row, at), start=e.mul(first, 128), step=64)

        def neurons(start: Value, _: list[Value]) -> None:
            stop = e.min(e.add(start, chunk), groups)

            def row(m: Value, _: list[Value]) -> None:
                e.loop(stop, [], lambda group, _: self._group(m, group, first, last), start=start)

            e.loop(high, [], row, start=low)

        e.loop(high, [], clear, start=low)
        e.loop(groups, [], neurons, step=chunk)
        e.loop(high, [], lambda m, _: self._finish(m, first, last), start=low)

    def _group(self, m: Value, group: Value, first: Value, last: Value) -> None:
        """Add what the neurons of a group give to the sums of row m."""
        e = self.e
        edges, per_group = self.active.starts(m), self.group // 16
        start, stop = (load_index(e, edges, e.mul(e.add(group, k), per_group)) for k in range(2))
        with e.when(e.compare(">", stop, start)):
            count = e.div(e.sub(last, first), self.at_once)
            middle = e.add(first, e.mul(count, self.at_once))

            def units(size: int) -> Callable[[Value, list[Value]], None]:
                return lambda unit, _: self._units(m, group, start, stop, unit, size)

            e.loop(middle, [], units(self.at_once), start=first, step=self.at_once)
            e.loop(last, [], units(1), start=middle)

    def _units(self, m: Value, group: Value, start: Value, stop: Value, unit: Value, size: int) -> None:
        e, codes = self.e, self.codes
        numbers = self.active.numbers(m)
        hidden = self.active.values(m) if self.own else self.hidden.row(m)
        offset = e.mul(unit, codes.kind.value)
        shared_minimum = codes.minimum and self.form is ScaleForm.OUTPUT

        def one(k: Value, carried: list[Value]) -> list[Value]:
            number, ahead = (load_index(e, numbers, e.add(k, i)) for i in (0, _AHEAD))
            column, later = (e.at(self.columns, e.mul(i, self.column_bytes), offset) for i in (number, ahead))
            for line in range(0, codes.kind.value * size, 64):
                e.prefetch(later, line)
            h = e.load_splat(F32, 16, hidden, e.mul(k, 4))
            totals = carried[: VECTORS * size]
            for u in range(size):
                weights = emit_unit(e, codes, e.at(column, codes.kind.value * u))
                self._add(totals, u, weights, h, number, e.add(unit, u))
            return [*totals, e.add(carried[-1], h)] if shared_minimum else totals

        zeros = [e.constant(F32X16, 0.0)] * (VECTORS * size + shared_minimum)
        totals = e.loop(stop, zeros, one, start=start)
        for i in range(VECTORS * size):
            at = e.add(e.mul(unit, 4 * UNIT), 64 * i)
            value = e.load(F32X16, self.sums.row(m), at)
            if self.form is ScaleForm.OUTPUT:
                where = e.add(e.mul(e.add(e.mul(group, self.units), unit), UNIT), 16 * i)
                value = e.fma(self._scale(self.scales, where), totals[i], value)
                if shared_minimum:
                    value = e.fma(self._scale(self.minimums, where), totals[-1], value)
            else:
                value = e.add(value, totals[i])
            e.store(value, self.sums.row(m), at)

    def _add(self, totals: list[Value], u: int, weights: list[Value], h: Value, number: Value, unit: Value) -> None:
        """totals += h * column for one unit."""
        e, codes = self.e, self.codes
        per_unit = UNIT // codes.group if self.form is ScaleForm.NEURON else 0
        for v, weight in enumerate(weights):
            factor, i = h, VECTORS * u + v
            if per_unit:
                groups = e.add(e.mul(e.add(e.mul(number, self.units), unit), per_unit), v * per_unit // VECTORS)
                factor = e.mul(h, e.load_splat(F32, 16, self.scales, e.mul(groups, 4)))
                if codes.minimum:
                    totals[i] = e.fma(h, e.load_splat(F32, 16, self.minimums, e.mul(groups, 4)), totals[i])
            totals[i] = e.fma(factor, weight, totals[i])

    def _scale(self, base: Value, index: Value) -> Value:
        address = self.e.at(base, self.e.mul(index, self.scale_bytes))
        return load_half(self.e, 16, address) if self.codes.half_scales else self.e.load(F32X16, address)

    def _finish(self, m: Value, first: Value, last: Value) -> None:
        """Sums to target."""
        e, zeros = self.e, self.e.scratch(64)
        e.store(e.constant(F32X16, 0.0), zeros)
        has_bias, has_residual = (e.compare("!=", a, 0) for a in (self.bias, self.residual.stride))

        def vector(at: Value, _: list[Value]) -> None:
            offset = e.mul(at, 4)
            value = e.load(F32X16, self.sums.row(m), offset)
            bias = e.load(F32X16, e.select(has_bias, e.at(self.bias, offset), zeros))
            old = e.load(F32X16, e.select(has_residual, e.at(self.residual.row(m), offset), zeros))
            e.store(e.fma(e.add(value, bias), self.factor, old), self.target.row(m), offset)

        stop = e.min(e.mul(last, UNIT), self.width)
        e.loop(stop, [], vector, start=e.mul(first, UNIT), step=16)
