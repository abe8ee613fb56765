"""Who runs when: prompts beside answers, fair turns, priorities, few pages; and what may be plugged in."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from integer_executor import IntegerExecutor

from localllm.cache import PoolSizes
from localllm.completion import collect
from localllm.engine import Engine, Generation, NextTokenLogprobs, Request
from localllm.engine.budget import LEAST, LONGEST_STEP, StepBudget
from localllm.errors import ContextLengthError, RequestError
from localllm.events import Finished
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.step import Step
from localllm.sampling import SamplingParameters
from scripts import GatedExecutor, complete, saying

MakeEngine = Callable[..., Engine]


def order_of(executor: IntegerExecutor) -> list[int]:
    """First tokens of prompts, in the order in which they began."""
    return [int(t) for step in executor.steps for t, p in zip(step.tokens, step.positions, strict=True) if p == 0]


def test_a_long_prompt_goes_in_pieces_beside_a_running_answer(make_engine: MakeEngine) -> None:
    executor = GatedExecutor(max_rows=32)
    engine = make_engine(executor, parallel=2, prefix_cache=False)
    answer = engine.submit(Request([1] * 20, SamplingParameters(max_tokens=30, ignore_eos=True)))
    executor.release(3)
    for _ in range(4):
        assert executor.entered.acquire(timeout=60)
    prompt = engine.submit(Request([2] * 200, SamplingParameters(max_tokens=1, ignore_eos=True)))
    executor.release(100)
    assert len(collect(prompt).ids) == 1
    assert len(collect(answer).ids) == 30
    mixed = [step for step in executor.steps if step.sequences[-1] == 1]
    assert len(mixed) >= 200 // 32
    assert all(step.sequences.tolist().count(0) == 1 for step in mixed)  # the answer advanced in every one of them


@given(decode=st.floats(1e-4, 0.5), row=st.floats(1e-6, 0.1), most=st.integers(1, 512))
def test_a_prompt_slows_a_running_answer_by_a_bounded_factor(decode: float, row: float, most: int) -> None:
    budget = StepBudget(most)
    for _ in range(30):
        budget.observe(1, 0, decode)
        rows = budget.rows(decoding=True)
        budget.observe(1, rows, decode + rows * row)
    rows = budget.rows(decoding=True)
    assert 1 <= rows <= most
    assert rows <= LEAST or decode + rows * row <= 3.1 * decode
    alone = budget.rows(decoding=False)
    assert rows <= alone or alone <= LEAST
    assert alone <= LEAST or alone * row <= 1.1 * LONGEST_STEP


def test_a_short_prompt_does_not_wait_for_a_long_one(make_engine: MakeEngine) -> None:
    executor = GatedExecutor(max_rows=16)
    engine = make_engine(executor, parallel=2)
    long = engine.submit(Request([1] * 200, SamplingParameters(max_tokens=1, ignore_eos=True)))
    assert executor.entered.acquire(timeout=60)
    short = engine.submit(Request([2] * 20, SamplingParameters(max_tokens=1, ignore_eos=True)))
    executor.release(100)
    collect(short)
    collect(long)
    begun = [index for index, step in enumerate(executor.steps) if 2 in step.tokens]
    assert begun[0] == 1
    assert len(executor.steps) > 10


def test_clients_take_turns_and_higher_priorities_go_first(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    first = engine.submit(Request([1] * 3, SamplingParameters(max_tokens=1)))
    assert executor.entered.acquire(timeout=60)
    plan = [
        (10, "a", 0),
        (11, "a", 0),
        (12, "a", 0),
        (20, "b", 0),
        (21, "b", 0),
        (30, "c", 0),
        (40, "c", 5),
        (50, "a", -1),
    ]
    generations = [
        engine.submit(Request([token] * 3, SamplingParameters(max_tokens=1), client=client, priority=priority))
        for token, client, priority in plan
    ]
    executor.release(100)
    for generation in [first, *generations]:
        collect(generation)
    assert order_of(executor) == [1, 40, 10, 20, 30, 11, 21, 12, 50]


def test_many_answers_to_one_call_leave_a_slot_to_others(make_engine: MakeEngine) -> None:
    """What has all slots gives one up at once; its answers go on where they were, and come out as if alone."""

    class Watching(GatedExecutor):
        def forward(self, step: Step) -> npt.NDArray[np.float32]:
            seen.append((bool(others) and all(other.done for other in others), many.done))
            return super().forward(step)

    seen: list[tuple[bool, bool]] = []
    others: list[Generation] = []
    executor = Watching()
    engine = make_engine(executor, parallel=4)
    parameters = SamplingParameters(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)
    many = engine.submit(Request([1] * 20, parameters, n=20))
    executor.release(3)
    for _ in range(4):
        assert executor.entered.acquire(timeout=60)
    assert engine.usage().running == 4
    others += [engine.submit(Request([token] * 20, parameters)) for token in (2, 3, 4, 5)]
    executor.release(1000)
    alone = [collect(make_engine().submit(Request([token] * 20, parameters))).ids for token in (2, 3, 4, 5)]
    assert [collect(other).ids for other in others] == alone
    found: dict[int, list[int]] = {}
    for index, event in many.merged():
        found.setdefault(index, []).extend(getattr(event, "ids", ()))
    solo: dict[int, list[int]] = {}
    for index, event in make_engine(parallel=20).submit(Request([1] * 20, parameters, n=20)).merged():
        solo.setdefault(index, []).extend(getattr(event, "ids", ()))
    assert found == solo
    assert (True, False) in seen  # the four were all answered before the twenty


def test_the_requests_of_one_call_have_one_turn(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    first = engine.submit(Request([1] * 3, SamplingParameters(max_tokens=1)))
    assert executor.entered.acquire(timeout=60)
    plan = [(10, "many"), (11, "many"), (12, "many"), (20, ""), (30, "")]
    generations = [
        engine.submit(Request([token] * 3, SamplingParameters(max_tokens=1), call=call)) for token, call in plan
    ]
    executor.release(100)
    for generation in [first, *generations]:
        collect(generation)
    assert order_of(executor) == [1, 10, 20, 30, 11, 12]


def test_no_call_starves_while_others_keep_coming(make_engine: MakeEngine) -> None:
    """A new call comes with every step: each waits for at most one answer of the call that has many."""

    class Inviting(GatedExecutor):
        def forward(self, step: Step) -> npt.NDArray[np.float32]:
            if len(others) < 40:
                others.append(engine.submit(Request([2] * 20, parameters)))
            return super().forward(step)

    others: list[Generation] = []
    parameters = SamplingParameters(max_tokens=1)
    executor = Inviting()
    engine = make_engine(executor, prefix_cache=False)
    many = engine.submit(Request([1] * 20, parameters, n=4))
    low = engine.submit(Request([3] * 20, parameters, priority=-1))
    executor.release(1000)
    for generation in (low, *others):
        collect(generation)
    order = order_of(executor)
    assert order.count(1) == 4
    assert order[:10].count(1) == 4
    assert (order[-1], order.count(3)) == (3, 1)
    assert many.done


def test_a_higher_priority_takes_the_slot_and_the_other_goes_on_later(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor)
    low = engine.submit(Request([1] * 30, SamplingParameters(max_tokens=20, ignore_eos=True)))
    executor.release(5)
    for _ in range(6):
        assert executor.entered.acquire(timeout=60)
    high = engine.submit(Request([2] * 30, SamplingParameters(max_tokens=5, ignore_eos=True), priority=1))
    executor.release(100)
    collect(high)
    assert collect(low).ids == complete(make_engine(), [1] * 30, max_tokens=20, ignore_eos=True).ids
    runs = [int(step.tokens[0]) for step in executor.steps]
    assert runs.index(2) == 6
    rows = sum(len(step.tokens) for step in executor.steps)
    assert rows == 30 + 19 + 30 + 4  # what was computed before was still in the cache


def test_requests_wait_for_pages(make_engine: MakeEngine) -> None:
    executor = IntegerExecutor()
    engine = make_engine(executor, parallel=8, pool=PoolSizes((9,)))
    generations = [
        engine.submit(Request([token] * 60, SamplingParameters(max_tokens=2, ignore_eos=True))) for token in range(5)
    ]
    assert [len(collect(generation).ids) for generation in generations] == [2] * 5
    assert max(len(step.groups[0].pages) for step in executor.steps) == 2


def test_concurrent_equal_prompts_end_up_on_the_same_pages(make_engine: MakeEngine) -> None:
    executor = GatedExecutor()
    engine = make_engine(executor, parallel=4)
    parameters = SamplingParameters(max_tokens=20, temperature=1.0, seed=1, ignore_eos=True)
    generation = engine.submit(Request([7] * 70, parameters, n=4))
    executor.release(10)
    for _ in range(11):
        assert executor.entered.acquire(timeout=60)
    assert engine.usage().pages.held <= 4 + 4 * 2
    executor.release(100)
    assert sum(len(list(event.ids)) for _, event in generation.merged() if hasattr(event, "ids")) == 80


# ---- what may be plugged in


class Alternating:
    """Only a, then only b, and so on, `length` tokens."""

    def __init__(self, length: int) -> None:
        self.left = length

    def allowed(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(300, bool)
        mask[ord("ab"[self.left % 2])] = True
        return mask

    def accept(self, token: int) -> None:
        self.left -= 1

    def complete(self) -> bool:
        return self.left == 0


def test_a_grammar_rules_each_answer_by_itself(make_engine: MakeEngine) -> None:
    engine = make_engine(parallel=2)
    generation = engine.submit(
        Request([1] * 20, SamplingParameters(max_tokens=50), n=2, constraint=lambda: Alternating(5))
    )
    texts = ["", ""]
    reasons = []
    for index, event in generation.merged():
        texts[index] += getattr(event, "text", "")
        reasons += [reason] if (reason := getattr(event, "reason", None)) else []
    assert texts == ["babab"] * 2
    assert reasons == ["stop", "stop"]


def test_a_grammar_that_fails_fails_its_request(make_engine: MakeEngine) -> None:
    class Broken(Alternating):
        def allowed(self) -> npt.NDArray[np.bool_]:
            if self.left < 3:
                raise RequestError("the grammar is stuck")
            return super().allowed()

    engine = make_engine()
    generation = engine.submit(Request([1] * 20, SamplingParameters(max_tokens=50), constraint=lambda: Broken(5)))
    with pytest.raises(RequestError, match="grammar is stuck"):
        collect(generation)


def test_a_fault_in_what_a_request_brought_along_ends_only_that_request(make_engine: MakeEngine) -> None:
    class Faulty(Alternating):
        def accept(self, token: int) -> None:
            raise ZeroDivisionError

    engine = make_engine(parallel=4)
    other = engine.submit(Request([2] * 20, SamplingParameters(max_tokens=20, ignore_eos=True)))
    bad = engine.submit(Request([1] * 20, SamplingParameters(max_tokens=5), n=2, constraint=lambda: Faulty(5)))
    ends = [event for _, event in bad.merged() if isinstance(event, Finished)]
    assert [end.reason for end in ends] == ["error", "error"]
    assert "could not be continued" in str(ends[0].error)
    assert len(collect(other).ids) == 20
    assert engine.failure is None


def reference_logprobs(ids: list[int]) -> npt.NDArray[np.float64]:
    executor = IntegerExecutor()
    logits = logits_of(executor, ids).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("max_rows", [7, 64])
def test_scores_are_those_of_a_plain_pass(make_engine: MakeEngine, max_rows: int) -> None:
    ids = np.random.default_rng(3).integers(0, 300, 256).tolist()
    engine = make_engine(IntegerExecutor(max_rows=max_rows))
    for _ in range(2):  # the second time with a warm cache
        np.testing.assert_allclose(engine.score(ids), reference_logprobs(ids), atol=1e-5)
    assert engine.score([5]).shape == (0,)
    with pytest.raises(ContextLengthError):
        engine.score([5] * 257)


def test_scores_through_a_window_are_those_of_decoding(make_engine: MakeEngine) -> None:
    ids = np.random.default_rng(3).integers(0, 300, 200).tolist()
    at_once = make_engine(IntegerExecutor((None, 20), max_rows=64), window=64).score(ids)
    by_token = make_engine(IntegerExecutor((None, 20), max_rows=1), window=64).score(ids)
    np.testing.assert_array_equal(at_once, by_token)


def test_a_prompt_can_be_read_and_answered(make_engine: MakeEngine) -> None:
    ids = np.random.default_rng(3).integers(0, 256, 100).tolist()
    engine = make_engine()
    reader = NextTokenLogprobs(ids, top=2)
    answer = collect(engine.submit(Request(ids, SamplingParameters(max_tokens=5, ignore_eos=True), reader=reader)))
    np.testing.assert_allclose(reader.values, reference_logprobs(ids), atol=1e-5)
    assert all(len(best) == 2 and best[0][1] >= best[1][1] for best in reader.best)
    assert answer.ids == complete(make_engine(), ids, max_tokens=5, ignore_eos=True).ids


def test_embeddings_do_not_depend_on_what_else_runs(make_engine: MakeEngine) -> None:
    ids = np.random.default_rng(3).integers(0, 256, 100).tolist()
    alone = make_engine().embed(ids)
    engine = make_engine(IntegerExecutor(max_rows=16), parallel=3)
    running = [engine.submit(Request([t] * 30, SamplingParameters(max_tokens=40, ignore_eos=True))) for t in (1, 2)]
    np.testing.assert_allclose(engine.embed(ids), alone, rtol=1e-6)
    assert [len(collect(generation).ids) for generation in running] == [40, 40]


def test_the_executor_is_lent_between_requests(make_engine: MakeEngine) -> None:
    executor = saying(b"hello ", 3)
    engine = make_engine(executor, parallel=2)
    seen: list[object] = []

    def borrow() -> None:
        with engine.exclusive() as lent:
            assert engine.usage().running == 0
            seen.append(lent)
            lent.allocate_kv((1,), "f32", (0,))

    threads = [threading.Thread(target=borrow) for _ in range(3)]
    generations = []
    for thread in threads:
        generations.append(engine.submit(Request(list(b"abc"), SamplingParameters(max_tokens=12))))
        thread.start()
    assert {collect(generation).text for generation in generations} == {"hello hello "}
    for thread in threads:
        thread.join(60)
    assert seen == [executor] * 3
    with pytest.raises(ZeroDivisionError), engine.exclusive():
        raise ZeroDivisionError
    assert complete(engine, list(b"abc"), max_tokens=6).text == "hello "
