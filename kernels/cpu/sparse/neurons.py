"""Up rows and down columns of the neurons that fire, one visit to each neuron's record.

The neurons that fire in a row are divided into parts of equal number (whole blocks of 32 neurons), whatever the threads
and other rows, each with a sum of its own; the sums of the parts are added in order. So few rows divide the parts among
threads, many rows are divided themselves, and the result is the same bit for bit. Equal ranges of all neurons would not
do: in a half whose neurons are sorted by hotness the first sixteenth has a fifth of those that fire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32, F32X16, I64, Value
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, RowsValue, load_index, portion
from localllm.kernels.cpu.run_loop import word
from localllm.kernels.cpu.step_state import Word

from .active import ActiveLists, ActiveValue
from .codes import UNIT
from .part_sums import FEW_ROWS
from .record_columns import Columns
from .record_rows import emit_row
from .records import LINE

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter

    from .records import RecordForm

_MOST_PARTS, _BLOCKS_PER_PART = 16, 6
_RUN_BYTES = 1 << 20  # of records: what a run needs of them is in the second-level cache when its turn comes


@dataclass(frozen=True, slots=True)
class NeuronRecords:
    """A layer's neurons in memory: addresses of the records, the down scales and minimums, the up biases (0: none)."""

    form: RecordForm
    records: int
    scales: int
    minimums: int
    bias: int
    blocks: int  # of 32 neurons

    @property
    def parts(self) -> int:
        """Parts of the neurons."""
        return max(1, min(_MOST_PARTS, self.blocks // _BLOCKS_PER_PART))

    @property
    def run_blocks(self) -> int:
        """Blocks whose rows are computed before their columns are added: at most half of a part."""
        return max(1, min(_RUN_BYTES // (self.form.size * UNIT), self.blocks // self.parts // 2))

    @property
    def outputs(self) -> int:
        """Padded."""
        return self.form.units * UNIT


def sum_rows(records: NeuronRecords, max_rows: int) -> int:
    """Rows of `records.outputs` floats that the sums need."""
    return max(max_rows, FEW_ROWS * records.parts)


def active_neurons(
    records: NeuronRecords,
    *,
    source: Rows | None,
    active: ActiveLists,
    sums: Rows,
    part_sum: Rows,
    positive: bool,
    count: Word,
    kind: Kind,
) -> Operation:
    """The sums over the active neurons of value * (up row . source + bias) * down column, for `add_sums`.

    `source` are levels; None if there is no up row. `part_sum`: a row for each thread. `positive`: a negative up
    counts as 0.
    """
    form = records.form
    base = source or Rows(0, 0)
    arguments = (
        *(records.records, records.scales, records.minimums, records.bias, records.parts),
        *(*base.fields, *active.fields, sums.address, sums.stride, *part_sum.fields, 8 * count),
    )
    biased, run_blocks, halvings = bool(records.bias), records.run_blocks, records.blocks.bit_length()

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        kernel = _Neurons(e, form, run_blocks, halvings, values, biased, positive)
        rows, threads = e.load(I64, step, values.integer()), word(e, step, Word.THREADS)
        few = e.compare("<=", rows, FEW_ROWS)
        with e.either(few) as (then, otherwise):
            with then:
                kernel.few(rows, thread, threads)
            with otherwise:
                kernel.many(*portion(e, rows, step, thread))

    key = f"{form} {run_blocks} {halvings} {biased} {positive}"
    return Operation(KernelSource("active_neurons", key, emit), arguments, kind)


def emit_edge(e: Emitter, starts: Value, blocks: Value, part: Value, parts: Value, halvings: int) -> Value:
    """The block of 32 neurons at which a part begins, and the one before it ends.

    It is the first that has a share of `part` / `parts` of the row's active neurons before it, by its `starts`.
    `halvings` of the blocks leave one.
    """
    wanted = e.div(e.mul(load_index(e, starts, e.mul(blocks, 2)), part), parts)

    def halve(_: Value, found: list[Value]) -> list[Value]:
        low, high = found
        middle = e.div(e.add(low, high), 2)
        before = e.compare("<", load_index(e, starts, e.mul(middle, 2)), wanted)
        return [e.select(before, e.add(middle, 1), low), e.select(before, high, middle)]

    return e.loop(halvings, [e.integer(0), blocks], halve)[0]


class _Neurons:
    """The kernel for a part of the neurons and a row."""

    def __init__(
        self,
        e: Emitter,
        form: RecordForm,
        run_blocks: int,
        halvings: int,
        values: Arguments,
        biased: bool,
        positive: bool,
    ) -> None:
        self.e, self.form, self.biased, self.positive = e, form, biased, positive
        self.records, scales, minimums, self.bias, self.parts = values.integers(5)
        self.sources, self.active = values.rows(), ActiveValue(e, values)
        self.sums, self.part_sum = RowsValue(e, *values.integers(2)), values.rows()
        self.run_blocks, self.halvings = run_blocks, halvings
        self.columns = Columns(e, form, self.run_blocks, scales, minimums)

    def few(self, rows: Value, thread: Value, threads: Value) -> None:
        """This thread's parts of all rows."""
        e = self.e

        def part(p: Value, _: list[Value]) -> None:
            owner = e.div(e.mul(p, threads), self.parts)

            def row(m: Value, _: list[Value]) -> None:
                self._part(m, p, self.sums.row(e.add(e.mul(m, self.parts), p)))

            with e.when(e.compare("==", owner, thread)):
                e.loop(rows, [], row)

        e.loop(self.parts, [], part)

    def many(self, first: Value, last: Value) -> None:
        """All parts of some rows; a part stays in the cache while the rows pass over it."""
        e, size = self.e, 4 * UNIT * self.form.units
        own = self.part_sum.row(e.integer(0))

        def part(p: Value, _: list[Value]) -> None:
            def row(m: Value, _: list[Value]) -> None:
                self._part(m, p, own)
                total, fresh = self.sums.row(m), e.compare("==", p, 0)

                def add(at: Value, _: list[Value]) -> None:
                    old = e.select(fresh, e.constant(F32X16, 0.0), e.load(F32X16, total, at))
                    e.store(e.add(old, e.load(F32X16, own, at)), total, at)

                e.loop(size, [], add, step=64)

            e.loop(last, [], row, start=first)

        e.loop(self.parts, [], part)

    def _part(self, m: Value, part: Value, total: Value) -> None:
        """total = what the neurons of a part give to row m, a run of blocks at a time."""
        e = self.e
        zero = e.constant(F32X16, 0.0)
        e.loop(4 * UNIT * self.form.units, [], lambda at, _: e.store(zero, total, at), step=64)
        edges = self.active.starts(m)
        begin, last = (
            emit_edge(e, edges, self.active.blocks, e.add(part, k), self.parts, self.halvings) for k in range(2)
        )

        def run(first: Value, _: list[Value]) -> None:
            after = e.min(e.add(first, self.run_blocks), last)
            start, stop = (load_index(e, edges, e.mul(block, 2)) for block in (first, after))
            with e.when(e.compare(">", stop, start)):
                count = e.sub(stop, start)
                e.loop(stop, [], lambda k, _: self._neuron(m, k, e.sub(k, start), count), start=start)
                self.columns.add(edges, first, after, start, total)

        e.loop(last, [], run, start=begin, step=self.run_blocks)

    def _neuron(self, m: Value, k: Value, place: Value, count: Value) -> None:
        """hidden[place] = value * (up row . x), pointers[place] = the record; asks for a row of the next run."""
        e, form = self.e, self.form
        numbers, kept = self.active.numbers(m), self.active.values(m)
        number, ahead = (load_index(e, numbers, i) for i in (k, e.add(k, count)))  # beyond the list: some or other
        here, later = (e.at(self.records, e.mul(i, form.size)) for i in (number, ahead))
        for record, pointers in ((here, self.columns.pointers), (later, self.columns.later)):
            e.store(e.address(record), pointers, e.mul(place, 8))
        value = e.load(F32, kept, e.mul(k, 4))
        if form.row is not None:
            asked = range(form.column_bytes // LINE, form.size // LINE)
            product = emit_row(e, form.row, here, self.sources.row(m), later, asked)
            if self.biased:
                product = e.add(product, e.load(F32, self.bias, e.mul(number, 4)))
            if self.positive:
                product = e.max(product, 0.0)
            value = e.mul(value, product)
        e.store(value, self.columns.hidden, e.mul(place, 4))
