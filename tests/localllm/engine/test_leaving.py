"""Requests that go away or fail (bug report 20): within one step, with all their pages, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from integer_executor import IntegerExecutor

from localllm.completion import collect
from localllm.engine import Engine, EngineOptions, Generation, Request
from localllm.errors import ExecutionError, OutOfMemoryError
from localllm.events import Finished, TextDelta
from localllm.kernels.step import Step
from localllm.sampling import SamplingParameters
from scripts import GatedExecutor, Logits, complete, one_hot, saying

MakeEngine = Callable[..., Engine]
LONG = SamplingParameters(max_tokens=150, ignore_eos=True)


def finish_of(generation: Generation) -> Finished:
    *_, last = generation
    assert isinstance(last, Finished)
    return last


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def test_a_cancel_in_the_prompt_takes_effect_after_the_running_step(make_engine: MakeEngine) -> None:
    executor = GatedExecutor(max_rows=16)
    engine = make_engine(executor)
    generation = engine.submit(Request([1] * 200, LONG))
    assert executor.entered.acquire(timeout=60)
    generation.cancel()
    executor.release()
    finished = finish_of(generation)
    assert (finished.reason, finished.usage.completion_tokens) == ("cancelled", 0)
    assert len(executor.steps) == 1
    executor.release(20)
    assert complete(engine, [2] * 5, max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_a_cancel_in_the_answer_takes_effect_after_the_running_step(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    generation = engine.submit(Request([1] * 20, LONG))
    executor.release(5)
    for _ in range(6):
        assert executor.entered.acquire(timeout=60)
    generation.cancel()
    executor.release()
    finished = finish_of(generation)
    assert (finished.reason, len(executor.steps)) == ("cancelled", 6)
    assert finished.usage.completion_tokens <= 6


def test_a_cancelled_request_in_the_queue_never_starts(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    first = engine.submit(Request([1] * 20, SamplingParameters(max_tokens=3, ignore_eos=True)))
    queued = engine.submit(Request([2] * 20, LONG, n=2))
    assert executor.entered.acquire(timeout=60)
    queued.cancel()
    executor.release(10)
    assert {event.reason for _, event in queued.merged() if isinstance(event, Finished)} == {"cancelled"}
    assert finish_of(first).reason == "length"
    assert all(token == 1 for token in executor.steps[0].tokens)
    assert len(executor.steps) == 3


def test_a_deadline_is_kept_in_the_queue_and_while_running(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    running = engine.submit(Request([1] * 20, LONG, deadline=0.01))
    queued = engine.submit(Request([2] * 20, LONG, deadline=0.01))
    time.sleep(0.02)
    executor.release(3)
    for generation in (running, queued):
        finished = finish_of(generation)
        assert finished.reason == "cancelled"
        assert finished.error == "the deadline of 0.01 s passed"


def broken(prompt: int, token: int, value: float) -> Callable[[int, int, int], Logits]:
    """Logits that go bad after a certain token."""

    def script(content: int, seen: int, position: int) -> Logits:
        logits = one_hot(7)
        if seen == token:
            logits[:] = -np.inf if value == -np.inf else logits
            logits[3] = value
        return logits

    return script


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 15, 50])
def test_bad_logits_fail_their_own_request_and_are_not_kept(make_engine: MakeEngine, value: float, where: int) -> None:
    executor = IntegerExecutor(script=broken(51, 99, value), max_rows=16)
    engine = make_engine(executor, parallel=3)
    bad = [1] * 51
    bad[where] = 99
    parameters = SamplingParameters(max_tokens=5)
    others = [engine.submit(Request([token] * 30, parameters)) for token in (2, 3) if where == 50]
    generation = engine.submit(Request(bad, parameters))
    assert [collect(other).ids for other in others] == [(7,) * 5] * len(others)
    if where == 0:  # no output of that row is looked at
        assert collect(generation).ids == (7,) * 5
        return
    with pytest.raises(ExecutionError, match="usable"):  # 15: the last row of a step, 50: of the prompt
        collect(generation)
    again = engine.submit(Request([*bad[:where], 5, 5], SamplingParameters(max_tokens=1)))
    assert collect(again).usage.cached_tokens <= where // 16 * 16


class Failing(IntegerExecutor):
    """Fails at a certain step."""

    def __init__(self, at: int, error: BaseException) -> None:
        super().__init__()
        self.at, self.error = at, error
        self.go = threading.Event()

    def forward(self, step: Step) -> Logits:
        assert self.go.wait(60)
        if len(self.steps) == self.at:
            self.at = -1
            raise self.error
        return super().forward(step)


@pytest.mark.parametrize(
    "error", [RuntimeError("the card fell off the bus"), ExecutionError("a worker died"), SystemExit()]
)
def test_a_dead_executor_fails_everybody_and_nobody_hangs(error: BaseException) -> None:
    executor = Failing(3, error)
    engine = Engine(executor, byte_tokenizer(), EngineOptions(context=256, parallel=2))
    generations = [engine.submit(Request([1 + index] * 30, LONG, n=2)) for index in range(4)]
    executor.go.set()
    for generation in generations:
        reasons = [event for _, event in generation.merged() if isinstance(event, Finished)]
        assert [event.reason for event in reasons] == ["error", "error"]
        assert all("the engine stopped" in (event.error or "") for event in reasons)
    for call in (lambda: engine.submit(Request([1])), lambda: engine.exclusive().__enter__()):
        with pytest.raises(ExecutionError, match="the engine stopped"):
            call()
    engine.drain()
    engine.close()


def test_out_of_memory_ends_the_requests_of_that_step_only(make_engine: MakeEngine) -> None:
    executor = Failing(3, OutOfMemoryError("12 MiB more are needed"))
    executor.go.set()
    engine = make_engine(executor)
    with pytest.raises(OutOfMemoryError, match="12 MiB"):
        complete(engine, [1] * 30, max_tokens=50, ignore_eos=True)
    assert complete(engine, [1] * 30, max_tokens=5, ignore_eos=True).finish_reason == "length"


def test_too_few_pages_for_one_request_is_an_error_not_a_loop(make_engine: MakeEngine) -> None:
    from localllm.cache import PoolSizes

    engine = make_engine(pool=PoolSizes((3,)))
    with pytest.raises(OutOfMemoryError, match="too few pages"):
        complete(engine, [1] * 60, max_tokens=5)
    assert complete(engine, [1] * 30, max_tokens=5, ignore_eos=True).finish_reason == "length"


def test_closing_cancels_what_runs_and_waits(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    generations = [engine.submit(Request([1] * 20, LONG)) for _ in range(3)]
    assert executor.entered.acquire(timeout=60)
    closer = threading.Thread(target=engine.close)
    closer.start()
    executor.release(2)
    closer.join(60)
    assert [finish_of(generation).reason for generation in generations] == ["cancelled"] * 3
    with pytest.raises(ExecutionError, match="closing"):
        engine.submit(Request([1]))


def test_draining_finishes_what_is_there_and_takes_no_more(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    generations = [
        engine.submit(Request([1] * 20, SamplingParameters(max_tokens=4, ignore_eos=True))) for _ in range(3)
    ]
    drained = threading.Thread(target=engine.drain)
    drained.start()

    def refused() -> bool:
        try:
            engine.submit(Request([1], SamplingParameters(max_tokens=1))).cancel()
        except ExecutionError:
            return True
        return False

    wait_until(refused)
    executor.release(50)
    drained.join(60)
    assert not drained.is_alive()
    assert [finish_of(generation).reason for generation in generations] == ["length"] * 3


def test_asyncio_reads_many_and_a_cancelled_task_cancels_its_request(make_engine: MakeEngine) -> None:
    executor = saying(b"hello ", 20)
    engine = make_engine(executor, parallel=3)

    async def text(generation: Generation) -> str:
        parts = [event.text async for _, event in generation.stream() if isinstance(event, TextDelta)]
        return "".join(parts)

    async def scenario() -> list[Any]:
        parameters = SamplingParameters(max_tokens=60)
        generations = [engine.submit(Request([1] * 20, parameters)) for _ in range(4)]
        tasks = [asyncio.create_task(text(generation)) for generation in generations]
        endless = engine.submit(Request([2] * 20, LONG))
        doomed = asyncio.create_task(text(endless))
        results = await asyncio.gather(*tasks)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return [*results, endless.cancelled or endless.done]

    *texts, left = asyncio.run(scenario())
    assert texts == ["hello " * 10] * 4
    assert left


def test_an_idle_engine_sleeps(make_engine: MakeEngine) -> None:
    executor = IntegerExecutor()
    engine = make_engine(executor)
    complete(engine, [1] * 20, max_tokens=5)
    end = time.monotonic() + 60
    used = 1.0
    while used > 0.03 and time.monotonic() < end:
        before = time.process_time()
        time.sleep(0.3)
        used = time.process_time() - before
    assert used <= 0.03  # CPU seconds; a busy loop takes 0.3


def test_many_requests_with_random_ends_leave_nothing(make_engine: MakeEngine) -> None:
    from localllm.cache import PoolSizes

    random = np.random.default_rng(0)
    engine = make_engine(IntegerExecutor((None, 20), max_rows=32), parallel=6, pool=PoolSizes((40, 30)))
    threads = threading.active_count()
    generations = []
    for number in range(300):
        shared = random.integers(0, 3) * 16
        ids = [int(shared)] * int(shared) + random.integers(0, 256, random.integers(1, 60)).tolist()
        parameters = SamplingParameters(max_tokens=int(random.integers(0, 12)), temperature=0.5, seed=number)
        generation = engine.submit(Request(ids, parameters, n=int(random.integers(1, 4)), client=str(number % 3)))
        generations.append(generation)
        if random.random() < 0.3:
            generations[random.integers(0, len(generations))].cancel()
    for generation in generations:
        finishes = [index for index, event in generation.merged() if isinstance(event, Finished)]
        assert sorted(finishes) == list(range(len(finishes)))
    assert threading.active_count() == threads
    assert engine.usage().pages.held == 0


def test_a_closed_engine_frees_its_executor_without_the_garbage_collector() -> None:
    """Weights and KV are most of the memory: a model that is left must not wait for a collection of cycles."""
    executor = IntegerExecutor()
    engine = Engine(executor, byte_tokenizer(), EngineOptions(context=256))
    complete(engine, [1] * 20, max_tokens=5)
    engine.close()
    left = weakref.ref(executor)
    gc.collect()
    gc.disable()
    try:
        del engine, executor
        assert left() is None
    finally:
        gc.enable()
