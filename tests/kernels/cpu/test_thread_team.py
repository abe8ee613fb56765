"""Threads that meet at barriers, park and wake up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from localllm.kernels.cpu.compile import KernelCompiler, KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import I64, Value
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.run_loop import BARRIER_FIELD, RECORD_WORDS
from localllm.kernels.cpu.step_state import Word
from localllm.kernels.cpu.thread_team import ThreadTeam

OPERATIONS = 40


def _emit_check(e: Emitter, record: Value, step: Value, thread: Value) -> None:
    """Each thread adds one to its own counter and notes if another thread is not at the same operation."""
    counters, errors = e.fields(record, 2, start=1)
    own = e.at(counters, e.mul(thread, 64))
    mine = e.add(e.load(I64, own), 1)
    e.store(mine, own)

    def look(other: Value, _: list[Value]) -> None:
        theirs = e.load(I64, counters, e.mul(other, 64))
        behind = e.compare("<", theirs, e.sub(mine, 1))
        with e.when(behind):
            e.store(e.integer(1), errors)

    e.loop(e.field(step, Word.THREADS), [], look)


class Bench:
    """A team whose table does nothing but check that all threads keep step."""

    def __init__(self, threads: int) -> None:
        compiler = KernelCompiler(choose_isa())
        kernel = compiler.compile(KernelSource("keep_step", "", _emit_check))
        self.team = ThreadTeam(compiler, threads)
        self.counters = np.zeros((threads, 8), np.int64)
        self.errors = np.zeros(1, np.int64)
        self.table: npt.NDArray[np.int64] = np.zeros((OPERATIONS, RECORD_WORDS), np.int64)
        self.table[:, 0] = kernel.address
        self.table[:, 1] = self.counters.ctypes.data
        self.table[:, 2] = self.errors.ctypes.data
        self.table[:, BARRIER_FIELD] = 1
        self.team.words[Word.OPERATIONS] = self.table.ctypes.data
        self.team.words[Word.OPERATION_COUNT] = OPERATIONS

    def run(self, threads: int) -> None:
        """A step; all threads must have done all operations, each after the others finished the one before."""
        self.counters[:] = 0
        self.team.run(threads)
        assert self.counters[:threads, 0].tolist() == [OPERATIONS] * threads
        assert not self.counters[threads:].any()
        assert not self.errors[0]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(4)
    yield made
    made.team.close()


def test_threads_keep_step_whatever_their_number(bench: Bench) -> None:
    for threads in np.random.default_rng(1).integers(1, 5, 60):
        bench.run(int(threads))


def test_parked_threads_wake_up(bench: Bench) -> None:
    for pause in (0.0, 0.05, 0.001, 0.002, 0.003, 0.004, 0.05, 0.0025):
        time.sleep(pause)
        bench.run(4)


def test_a_team_can_be_closed_at_any_time(bench: Bench) -> None:
    bench.run(3)
    bench.team.close()
    bench.team.close()
    parked = Bench(2)
    parked.run(2)
    time.sleep(0.1)
    parked.team.close()
    Bench(2).team.close()


def test_an_impossible_number_of_threads() -> None:
    with pytest.raises(ValueError, match="threads"):
        ThreadTeam(KernelCompiler(choose_isa()), 0)
