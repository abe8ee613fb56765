"""The threads that run a step together, and the block of words that they share."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.executor import MOST_THREADS

from .compile import KernelSource
from .run_loop import emit_step, emit_wake, emit_worker
from .step_state import LINE, Word

if TYPE_CHECKING:
    from .compile import Kernel, KernelCompiler

SOURCES = (
    KernelSource("worker", "", emit_worker),
    KernelSource("wake", "", emit_wake),
    KernelSource("step", "", emit_step),
)
_SPIN_LIMIT = 40_000  # pauses, about two milliseconds: longer than sampling a token takes, so decoding never parks


class ThreadTeam:
    """One owner (the caller of `run`) and `threads` - 1 workers over one step state.

    Workers are started by the first step that needs them. They spin for about two milliseconds after a step, then sleep
    in the operating system. `close` ends them; so does the end of the object's life.
    """

    def __init__(self, compiler: KernelCompiler, threads: int) -> None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must be 1 to {MOST_THREADS}")
        self.threads = threads
        worker, wake, step = compiler.compile_all(SOURCES)
        self._step = step.call
        self._memory = np.zeros(Word.SIZE + LINE, np.int64)
        skip = -(self._memory.ctypes.data // 8) % LINE  # so that lines are cache lines
        self.words = self._memory[skip : skip + Word.SIZE]
        self.address = self.words.ctypes.data
        self.words[Word.SPIN_LIMIT] = _SPIN_LIMIT
        self.words[Word.YIELD] = _yield_address()
        self.words[Word.ACQUIRE] = _address(ctypes.pythonapi.PyThread_acquire_lock)
        self.words[Word.RELEASE] = _address(ctypes.pythonapi.PyThread_release_lock)
        self._workers: list[threading.Thread] = []
        self._end = weakref.finalize(self, _stop, wake, worker, self._memory, self.words, self._workers, threads)
        self._worker = worker

    def run(self, threads: int) -> None:
        """Walk the operation table of the state with `threads` threads; returns when all have finished."""
        while len(self._workers) < threads - 1:
            self._start_worker()
        self._step(0, self.address, threads)

    def _start_worker(self) -> None:
        number = len(self._workers) + 1
        allocate = ctypes.pythonapi.PyThread_allocate_lock
        allocate.restype = ctypes.c_void_p
        lock = allocate()
        acquire = ctypes.pythonapi.PyThread_acquire_lock
        acquire.argtypes = (ctypes.c_void_p, ctypes.c_int)
        acquire(lock, 0)
        self.words[Word.PARKED + number * LINE + 1] = lock
        thread = threading.Thread(
            target=self._worker.call, args=(0, self.address, number), name=f"localllm-{number}", daemon=True
        )
        thread.start()
        self._workers.append(thread)

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._end()


def _stop(
    wake: Kernel,
    worker: Kernel,
    memory: object,
    words: np.ndarray[tuple[int], np.dtype[np.int64]],
    workers: list[threading.Thread],
    threads: int,
) -> None:
    words[Word.STOP] = 1
    wake.call(0, words.ctypes.data, threads)
    free = ctypes.pythonapi.PyThread_free_lock
    free.argtypes = (ctypes.c_void_p,)
    for number, thread in enumerate(workers, start=1):
        thread.join()
        free(int(words[Word.PARKED + number * LINE + 1]))


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _yield_address() -> int:
    if os.name == "nt":
        return _address(ctypes.windll.kernel32.SwitchToThread)  # type: ignore[attr-defined,unused-ignore]
    return _address(ctypes.CDLL(None).sched_yield)
