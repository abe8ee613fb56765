"""Operations: what a step is made of. An operation is a kernel and the int64 fields of its record.

Each kernel's file has two functions side by side: one that builds the Operation (its arguments are the fields), and one
that emits the code (it reads them in the same order). Field 0 is the kernel's address, so arguments start at field 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from .atomics import atomic_add
from .ir_types import F32, I32, I64, Value
from .run_loop import BARRIER_FIELD, CLAIM_FIELD, KIND_FIELD, RECORD_WORDS, word
from .step_state import Word

if TYPE_CHECKING:
    import numpy.typing as npt

    from .compile import Kernel, KernelSource
    from .emit import Emitter

ARGUMENTS = CLAIM_FIELD - 1
_CLAIMED_PART = 2  # of the work, one in two units is claimed in small pieces when a thread has time
_PIECES = 32  # of the work for each thread
CLAIMED_ROWS = 64  # fewer are done too soon for it to matter which thread does them
MANY_THREADS = 4  # so many claim pieces of large matrices with few rows too


class Kind(IntEnum):
    """The lines of the profile."""

    EMBED = 0
    NORM = 1
    QUERY_KEY_VALUE = 2
    ROTATE = 3
    ATTENTION = 4
    ATTENTION_OUTPUT = 5
    GATE_UP = 6
    DOWN = 7
    ROUTER = 8
    EXPERTS = 9
    HEAD = 10
    WAIT = 11  # for the other half of a hybrid


@dataclass(frozen=True, slots=True)
class Rows:
    """A buffer of rows. `thread_stride` bytes lie between the copies that threads have of it; 0: all share one."""

    address: int
    stride: int  # bytes between rows
    thread_stride: int = 0
    refinements: int = 0  # that lie behind each row of records, see activations

    def at(self, offset: int) -> Rows:
        """The same rows, `offset` bytes further to the right."""
        return Rows(self.address + offset, self.stride, self.thread_stride)

    @property
    def fields(self) -> tuple[int, int, int]:
        """As record fields, for `RowsValue`."""
        return self.address, self.stride, self.thread_stride


@dataclass(frozen=True, slots=True)
class Share:
    """Which rows an operation covers: as many as a word of the state says; `all_threads`: every thread does all."""

    count: Word
    all_threads: bool = False

    @property
    def fields(self) -> tuple[int, int]:
        """As record fields, for `row_range`."""
        return int(self.count), int(self.all_threads)


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the table. `barrier`: all threads wait for each other after it."""

    source: KernelSource
    arguments: tuple[int, ...]
    kind: Kind
    barrier: bool = True


def float_bits(value: float) -> int:
    """A float32 constant as a record field, for `float_field`."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def build_table(operations: Sequence[Operation], kernels: Callable[[KernelSource], Kernel]) -> npt.NDArray[np.int64]:
    """The operation table that the threads walk. The last operation always ends with a barrier."""
    table = np.zeros((len(operations), RECORD_WORDS), np.int64)
    for row, operation in zip(table, operations, strict=True):
        if len(operation.arguments) > ARGUMENTS:
            raise ValueError(f"{operation.source.name} has more than {ARGUMENTS} arguments")
        row[0] = kernels(operation.source).address
        row[1 : 1 + len(operation.arguments)] = operation.arguments
        row[KIND_FIELD] = operation.kind
        row[BARRIER_FIELD] = operation.barrier
    table[-1, BARRIER_FIELD] = 1
    return table


class Arguments:
    """Reads the arguments of a record in order."""

    __slots__ = ("_emitter", "_next", "_record", "_thread")

    def __init__(self, emitter: Emitter, record: Value, thread: Value) -> None:
        self._emitter = emitter
        self._record = record
        self._thread = thread
        self._next = 1

    def integer(self) -> Value:
        """An int64."""
        value = self._emitter.field(self._record, self._next)
        self._next += 1
        return value

    def integers(self, count: int) -> list[Value]:
        """Several int64."""
        return [self.integer() for _ in range(count)]

    def float(self) -> Value:
        """A float32 scalar stored by `float_bits`."""
        value = self._emitter.load(F32, self._record, 8 * self._next)
        self._next += 1
        return value

    def rows(self) -> RowsValue:
        """A `Rows` buffer, seen by this thread."""
        address, stride, thread_stride = self.integers(3)
        e = self._emitter
        return RowsValue(e, e.add(address, e.mul(self._thread, thread_stride)), stride)

    def share(self, step: Value) -> tuple[Value, Value]:
        """The range of rows that this thread does, of a `Share`."""
        count, everything = self._share(step)
        start, stop = portion(self._emitter, count, step, self._thread)
        select = self._emitter.select
        return select(everything, 0, start), select(everything, count, stop)

    def each_row(self, step: Value) -> Callable[[Callable[[Value], None]], None]:
        """What calls `body(row)` for the rows that this thread does, of a `Share`; see `shares`."""
        e = self._emitter
        count, everything = self._share(step)

        def each(body: Callable[[Value], None]) -> None:
            def some(start: Value, stop: Value) -> None:
                e.loop(stop, [], lambda m, _: body(m), start=start)

            shares(e, self._record, step, self._thread, count, e.compare(">=", count, CLAIMED_ROWS), some, everything)

        return each

    def _share(self, step: Value) -> tuple[Value, Value]:
        e = self._emitter
        index, all_threads = self.integers(2)
        return e.load(I64, step, e.mul(index, 8)), e.compare("!=", all_threads, 0)


@dataclass(frozen=True, slots=True)
class RowsValue:
    """A `Rows` buffer inside a kernel."""

    emitter: Emitter
    address: Value
    stride: Value

    def row(self, index: Value) -> Value:
        """Pointer to a row."""
        return self.emitter.at(self.address, self.emitter.mul(index, self.stride))


def portion(e: Emitter, count: Value, step: Value, thread: Value) -> tuple[Value, Value]:
    """The contiguous part [start, stop) of `count` units that belongs to this thread."""
    threads = word(e, step, Word.THREADS)
    start = e.div(e.mul(count, thread), threads)
    return start, e.div(e.mul(count, e.add(thread, 1)), threads)


def number_of(e: Emitter, step: Value, row_list: int) -> Callable[[Value], Value]:
    """What gives the number of the m-th row: m, or with `row_list` the m-th int64 where that state word points to."""
    if not row_list:
        return lambda m: m
    numbers = word(e, step, row_list)
    return lambda m: e.load(I64, numbers, e.mul(m, 8))


def shares(
    e: Emitter,
    record: Value,
    step: Value,
    thread: Value,
    count: Value,
    worth_claiming: Value,
    body: Callable[[Value, Value], None],
    everything: Value | None = None,
) -> None:
    """Call `body(start, stop)` for all parts of `count` units that this thread does; every unit is done once.

    Where it is not `worth_claiming` that is one contiguous part. Where it is, half of the units are divided so, and the
    rest is claimed piece by piece: a core that the machine's other programs slow down does less, and nobody waits.
    If `everything` holds, every thread does all units.
    """
    threads = word(e, step, Word.THREADS)
    claims = e.bit_and(worth_claiming, e.compare(">", threads, 1))
    part = e.div(count, e.mul(threads, _CLAIMED_PART))
    piece = e.max(e.div(count, e.mul(threads, _PIECES)), 1)
    first, last = portion(e, count, step, thread)
    if everything is not None:
        claims = e.bit_and(claims, e.bit_xor(everything, 1))
        first, last = e.select(everything, 0, first), e.select(everything, count, last)
    bounds = e.scratch(16)
    e.store(e.select(claims, e.mul(part, thread), first), bounds)
    e.store(e.select(claims, e.mul(part, e.add(thread, 1)), last), bounds, 8)

    def more(carried: list[Value]) -> Value:
        return e.compare("!=", carried[0], 0)

    def one(_: list[Value]) -> list[Value]:
        body(e.load(I64, bounds), e.load(I64, bounds, 8))
        e.store(e.integer(0), bounds)
        e.store(e.integer(0), bounds, 8)
        with e.when(claims):
            start = e.add(e.mul(part, threads), e.mul(piece, atomic_add(e, 1, record, 8 * CLAIM_FIELD)))
            e.store(start, bounds)
            e.store(e.min(e.add(start, piece), count), bounds, 8)
        return [e.convert(e.compare("<", e.load(I64, bounds), e.load(I64, bounds, 8)), I64, signed=False)]

    e.repeat_while([e.integer(1)], more, one)


def load_index(e: Emitter, address: Value, index: Value) -> Value:
    """An int32 of an array as int64."""
    return e.convert(e.load(I32, address, e.mul(index, 4)), I64)
