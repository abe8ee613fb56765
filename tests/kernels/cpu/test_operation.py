"""How the work of an operation is divided among threads."""

from __future__ import annotations

import numpy as np
import pytest

from localllm.kernels.cpu.compile import Kernel, KernelCompiler, KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import I64, Value
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.operation import shares
from localllm.kernels.cpu.run_loop import CLAIM_FIELD, RECORD_WORDS
from localllm.kernels.cpu.step_state import Word


def emit_count(e: Emitter, record: Value, step: Value, thread: Value) -> None:
    """Count in an int64 array how often each unit is done (record: array, units, worth claiming, everything)."""
    counts, units, claimed, everything = e.fields(record, 4)

    def some(start: Value, stop: Value) -> None:
        def unit(number: Value, _: list[Value]) -> None:
            address = e.at(counts, e.mul(number, 8))
            e.store(e.add(e.load(I64, address), 1), address)

        e.loop(stop, [], unit, start=start)

    flags = (e.compare("!=", flag, 0) for flag in (claimed, everything))
    worth_claiming, all_of_it = flags
    shares(e, record, step, thread, units, worth_claiming, some, all_of_it)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return KernelCompiler(choose_isa(), tmp_path_factory.mktemp("kernels")).compile(
        KernelSource("count", "", emit_count)
    )


def counts_of(kernel: Kernel, units: int, threads: int, *, claimed: bool, everything: bool) -> list[int]:
    counts, record, words = (np.zeros(size, np.int64) for size in (units + 1, RECORD_WORDS, Word.SIZE))
    record[:4] = counts.ctypes.data, units, claimed, everything
    words[Word.THREADS] = threads
    for thread in reversed(range(threads)):
        kernel.call(record.ctypes.data, words.ctypes.data, thread)
    assert (record[CLAIM_FIELD] > 0) == (claimed and threads > 1 and not everything)
    assert counts[-1] == 0
    return [int(count) for count in counts[:-1]]


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("claimed", [False, True])
def test_every_unit_is_done_once(kernel: Kernel, threads: int, claimed: bool) -> None:
    for units in (0, 1, 2, 5, 31, 36, 64, 97, 1000):
        assert counts_of(kernel, units, threads, claimed=claimed, everything=False) == [1] * units


def test_or_by_every_thread(kernel: Kernel) -> None:
    for claimed in (False, True):
        assert counts_of(kernel, 70, 3, claimed=claimed, everything=True) == [3] * 70


def test_a_late_thread_finds_the_rest_done(kernel: Kernel) -> None:
    """The first of two threads does its half of a half and all that is claimed; the other's part stays."""
    counts, record, words = (np.zeros(size, np.int64) for size in (100, RECORD_WORDS, Word.SIZE))
    record[:4] = counts.ctypes.data, 100, 1, 0
    words[Word.THREADS] = 2
    kernel.call(record.ctypes.data, words.ctypes.data, 0)
    assert counts.tolist() == [1] * 25 + [0] * 25 + [1] * 50
