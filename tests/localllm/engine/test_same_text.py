"""Same seed, same text (bug report 21): cold or warm cache, alone or in a batch, whatever is cut, evicted or redone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integer_executor import IntegerExecutor

from localllm.cache import PoolSizes
from localllm.completion import Completion, collect
from localllm.engine import Engine, Request
from localllm.errors import RequestError
from localllm.kernels.step import Step
from localllm.sampling import SamplingParameters
from localllm.speculation import AdaptiveSpeculation, Ask, Draft, Load, LookupDrafter, Proposal, chain
from localllm.speculation.draft import ROOT
from scripts import complete

MakeEngine = Callable[..., Engine]
PROMPT = np.random.default_rng(5).integers(0, 256, 75).tolist()
OTHERS = [np.random.default_rng(seed).integers(0, 256, 20 + 30 * seed).tolist() for seed in range(3)]
SAMPLED: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "seed": 42, "logprobs": 3, "ignore_eos": True}
QUANTISED: dict[str, Any] = {"window": 64, "kv_type": "q8", "pool": PoolSizes((30, 30), (40, 40), 32)}
GREEDY: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "logprobs": 1}


def essence(completion: Completion) -> tuple[object, ...]:
    return completion.text, completion.ids, completion.finish_reason, completion.logprobs


def alone(make: MakeEngine, prompt: list[int], parameters: dict[str, Any], **options: Any) -> tuple[object, ...]:
    """The text of a fresh engine that runs nothing else."""
    windows = options.pop("windows", (None,))
    return essence(complete(make(IntegerExecutor(windows), **options), prompt, **parameters))


@pytest.mark.parametrize("parameters", [SAMPLED, GREEDY])
@pytest.mark.parametrize("windows", [(None,), (None, 20)])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_three_times_with_other_prompts_between(
    make_engine: MakeEngine, parameters: dict[str, Any], windows: tuple[int | None, ...], prefix_cache: bool
) -> None:
    engine = make_engine(IntegerExecutor(windows), prefix_cache=prefix_cache)
    expected = alone(make_engine, PROMPT, parameters, windows=windows)
    for other in OTHERS:
        completion = complete(engine, PROMPT, **parameters)
        assert essence(completion) == expected
        assert (completion.usage.cached_tokens > 0) == (prefix_cache and other is not OTHERS[0])
        complete(engine, PROMPT[:40] + other, max_tokens=3)


@pytest.mark.parametrize("windows", [(None,), (None, 20)])
def test_beside_others_in_any_batch(make_engine: MakeEngine, windows: tuple[int | None, ...]) -> None:
    engine = make_engine(IntegerExecutor(windows, max_rows=32), parallel=4)
    prompts = [PROMPT, *OTHERS, PROMPT[:50], PROMPT]
    generations = [
        engine.submit(Request(prompt, SamplingParameters(**{**SAMPLED, "seed": seed})))
        for seed, prompt in enumerate(prompts)
    ]
    for seed, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        expected = alone(make_engine, prompt, {**SAMPLED, "seed": seed}, windows=windows)
        assert essence(collect(generation)) == expected


def test_when_pages_run_out_and_answers_are_redone(make_engine: MakeEngine) -> None:
    pages = 11  # two sequences need 8 each in the end
    engine = make_engine(pool=PoolSizes((pages,)), parallel=3)
    parameters = {**SAMPLED, "max_tokens": 50}
    prompts = [PROMPT, OTHERS[1], OTHERS[2]]
    generations = [engine.submit(Request(prompt, SamplingParameters(**parameters))) for prompt in prompts]
    for prompt, generation in zip(prompts, generations, strict=True):
        assert essence(collect(generation)) == alone(make_engine, prompt, parameters)


def test_answers_to_one_prompt_are_those_of_their_seeds(make_engine: MakeEngine) -> None:
    for parallel in (1, 2, 5):
        executor = IntegerExecutor()
        engine = make_engine(executor, parallel=parallel)
        generation = engine.submit(Request(PROMPT, SamplingParameters(**SAMPLED), n=4))
        events: dict[int, list[Any]] = {index: [] for index in range(4)}
        for index, event in generation.merged():
            events[index].append(event)
        for index in range(4):
            expected = alone(make_engine, PROMPT, {**SAMPLED, "seed": 42 + index})
            assert essence(collect(events[index])) == expected
        rows = sum(len(step.tokens) for step in executor.steps)
        assert rows <= len(PROMPT) + 4 * 40  # the prompt is computed once


@pytest.mark.parametrize("options", [{"window": 64}, {"window": 80, "sinks": 20}, QUANTISED], ids=str)
@pytest.mark.parametrize("parallel", [1, 3])
def test_several_answers_in_a_window_are_those_of_their_seeds(
    make_engine: MakeEngine, options: dict[str, Any], parallel: int
) -> None:
    """The prompt is longer than the window, or becomes so in the middle of its answers."""
    for prompt in (PROMPT, PROMPT[:50]):
        engine = make_engine(IntegerExecutor((None, 20)), parallel=parallel, **options)
        generation = engine.submit(Request(prompt, SamplingParameters(**SAMPLED), n=3))
        events: dict[int, list[Any]] = {index: [] for index in range(3)}
        for index, event in generation.merged():
            events[index].append(event)
        for index in range(3):
            own = {**SAMPLED, "seed": 42 + index}
            assert essence(collect(events[index])) == alone(make_engine, prompt, own, windows=(None, 20), **options)


@pytest.mark.parametrize("window", [64, 96])
def test_a_sliding_window_gives_one_text_however_the_prompt_is_cut(make_engine: MakeEngine, window: int) -> None:
    prompt = np.random.default_rng(9).integers(0, 256, 300).tolist()
    expected = alone(make_engine, prompt, SAMPLED, window=window, windows=(None, 20))
    for max_rows in (7, 16, 50):
        engine = make_engine(IntegerExecutor((None, 20), max_rows=max_rows), window=window, parallel=2)
        for _ in range(2):
            both = [engine.submit(Request(ids, SamplingParameters(**SAMPLED))) for ids in (prompt, OTHERS[0])]
            assert essence(collect(both[0])) == expected


def test_the_next_turn_of_an_endless_chat_computes_only_what_is_new(make_engine: MakeEngine) -> None:
    executor = IntegerExecutor()
    engine = make_engine(executor, window=64)
    prompt = np.random.default_rng(9).integers(0, 256, 300).tolist()
    first = complete(engine, prompt, **SAMPLED)
    executor.steps.clear()
    turn = [*prompt, *first.ids, 1, 2, 3]
    second = complete(engine, turn, **{**SAMPLED, "max_tokens": 1})
    assert second.usage.cached_tokens == len(turn) - 4  # the last token of an answer has no keys yet
    assert sum(len(step.tokens) for step in executor.steps) == 4
    assert essence(second) == alone(make_engine, turn, {**SAMPLED, "max_tokens": 1}, window=64)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_every_valid_seed_is_one(make_engine: MakeEngine, seed: int) -> None:
    engine = make_engine()
    texts = {complete(engine, PROMPT, **{**SAMPLED, "seed": seed}).text for _ in range(2)}
    assert len(texts) == 1
    assert texts != {complete(engine, PROMPT, **{**SAMPLED, "seed": seed ^ 1}).text}


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_other_seeds_are_refused(seed: int) -> None:
    with pytest.raises(RequestError, match="seed"):
        SamplingParameters(seed=seed)


def test_without_a_seed_texts_differ(make_engine: MakeEngine) -> None:
    engine = make_engine()
    texts = {complete(engine, PROMPT, **{**SAMPLED, "seed": None}).text for _ in range(4)}
    assert len(texts) > 1


class Oracle:
    """Speculation that guesses right, wrong, too much, or several ways at once, by turns; knows the text in advance."""

    wants_hidden, taps = True, ()

    def __init__(self, answer: list[int], *, trees: bool) -> None:
        self.hidden: dict[int, list[float]] = {}
        self.answer, self.trees, self.judged, self.turn, self.open = answer, trees, [0, 0], 0, 0

    def begin(self, *, drawn: bool = False) -> Oracle:
        self.open += 1
        return self

    def plan(self, asks: Sequence[Ask], load: Load, most: int) -> list[Draft]:
        assert load.tokens == 1
        return [self.guesses(ask.tokens, min(ask.most, most), ask.hidden) for ask in asks]

    def guesses(self, tokens: Any, most: int, hidden: Any) -> Draft:
        self.turn += 1
        self.hidden[len(tokens)] = hidden[-1].tolist()
        done = len(tokens) - len(PROMPT)
        guesses = self.answer[done : done + min(self.turn % 6, most)]
        if self.turn % 3 == 0 and guesses:
            guesses[-1] ^= 1
        line = chain(guesses, 0)
        if not self.trees or most < 2 * len(guesses) + 1 or self.turn % 4 == 0:
            return line
        wrong = [guess ^ 2 for guess in guesses]  # a line of wrong guesses first, the good one is a side branch
        count = len(wrong)
        parents = [*range(-1, count - 1), *(ROOT if parent == ROOT else parent + count for parent in line.parents)]
        return Draft((*wrong, *guesses), tuple(parents), (0,) * (2 * count))

    def propose(self, ask: Ask, least: float) -> Proposal:
        raise NotImplementedError  # it plans by itself

    take = propose

    def judge(self, draft: Draft, accepted: Any) -> None:
        self.judged[0] += len(draft)
        self.judged[1] += len(accepted)

    def observe(self, rows: int, seconds: float) -> None:
        assert rows >= 1
        assert seconds > 0

    def close(self) -> None:
        self.open -= 1


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    temperature=st.sampled_from([0.0, 0.7]),
    window=st.sampled_from([None, 64]),
    penalty=st.sampled_from([1.0, 1.3]),
    trees=st.booleans(),
    native=st.sampled_from([(None,), (None, 20)]),
    kv_type=st.sampled_from(["f16", "q8"]),
)
def test_guesses_change_the_speed_only(
    make_engine: MakeEngine,
    temperature: float,
    window: int | None,
    penalty: float,
    trees: bool,
    native: tuple[int | None, ...],
    kv_type: str,
) -> None:
    parameters = {**SAMPLED, "temperature": temperature, "repetition_penalty": penalty}
    options = {"window": window, "kv_type": kv_type}
    plain = complete(make_engine(IntegerExecutor(native), **options), PROMPT, **parameters)
    oracle = Oracle(list(plain.ids), trees=trees)
    executor = IntegerExecutor(native)
    engine = make_engine(executor, speculation=oracle, **options)
    guessed = complete(engine, PROMPT, **parameters)
    assert essence(guessed) == essence(plain)
    assert [guessed.usage.drafted_tokens, guessed.usage.accepted_tokens] == oracle.judged
    assert 0 < oracle.judged[1] < oracle.judged[0]
    assert len(executor.steps) < 35  # of 40 tokens
    assert oracle.open == 0
    silent = Oracle([], trees=False)
    complete(make_engine(IntegerExecutor(native), speculation=silent, **options), PROMPT, **parameters)
    assert oracle.hidden.items() <= silent.hidden.items()  # the vectors that guesses are made from


def test_heads_on_an_executor_without_hidden_vectors_are_missed_once(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Without(IntegerExecutor):
        def forward(self, step: Step) -> Any:
            return super().forward(replace(step, hidden=None))

    engine = make_engine(Without(), speculation=Oracle([], trees=False))
    assert essence(complete(engine, PROMPT, **SAMPLED)) == alone(make_engine, PROMPT, SAMPLED)
    assert caplog.text.count("no hidden vectors") == 1


def predictable(content: int, token: int, position: int) -> Any:
    """Logits [300] of a text whose next token mostly follows from the last one."""
    logits = np.random.default_rng(content).normal(0, 1, 300).astype(np.float32)
    logits[(token * 7 + 3) % 64] += 6
    return logits


class Steady(AdaptiveSpeculation):
    """On a machine where a row more costs next to nothing, whatever the clock says."""

    def observe(self, rows: int, seconds: float) -> None:
        super().observe(rows, 1 + rows / 100)


@pytest.mark.parametrize("parameters", [SAMPLED, GREEDY])
@pytest.mark.parametrize("pages", [None, 14])
def test_lookup_in_batches_that_are_preempted(
    make_engine: MakeEngine, parameters: dict[str, Any], pages: int | None
) -> None:
    prompts = [[(7 * start + 3) % 64 for start in range(seed, 60 + seed)] for seed in range(3)]
    options: dict[str, Any] = {} if pages is None else {"pool": PoolSizes((pages,))}
    speculation = Steady(lambda: (LookupDrafter(),))
    engine = make_engine(
        IntegerExecutor(script=predictable),
        parallel=3,
        speculation=speculation,
        **options,
    )
    generations = [
        engine.submit(Request(prompt, SamplingParameters(**{**parameters, "max_tokens": 60}))) for prompt in prompts
    ]
    drafted = 0
    for prompt, generation in zip(prompts, generations, strict=True):
        completion = collect(generation)
        plain = complete(make_engine(IntegerExecutor(script=predictable)), prompt, **{**parameters, "max_tokens": 60})
        assert essence(completion) == essence(plain)
        drafted += completion.usage.drafted_tokens
        assert 0 <= completion.usage.accepted_tokens <= completion.usage.drafted_tokens
    assert drafted > 0
