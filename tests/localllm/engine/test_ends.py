"""How answers end: stop strings and end tokens (bug report 5), limits (14), long prompts (19), endless windows (35)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from byte_tokenizer import END_OF_TURN, EOS, word
from integer_executor import IntegerExecutor

from localllm.engine import Engine, Request
from localllm.errors import ConfigurationError, ContextLengthError, RequestError
from localllm.events import Finished, TextDelta
from localllm.sampling import SamplingParameters
from scripts import complete, saying

MakeEngine = Callable[..., Engine]
ABC = list(b"A B C")


def test_a_stop_string_over_several_tokens_ends_the_text_before_it(make_engine: MakeEngine) -> None:
    script = [*b" L M", word(" O"), word(" P Q"), word(" R"), *b" and so on"]
    engine = make_engine(saying(script, len(ABC)))
    for stop in (("O P Q",), ("x", "O P Q"), ("```", "\n\n", "x", "y", "O P Q")):
        answer = complete(engine, ABC, max_tokens=20, stop=stop)
        assert (answer.text, answer.finish_reason, answer.stop_text) == (" L M ", "stop", "O P Q")
        assert answer.usage.completion_tokens == 6
    assert complete(engine, ABC, max_tokens=7, stop=("M O",)).text == " L "
    assert complete(engine, ABC, max_tokens=3, stop=("A B", "B C")).text == " L "  # the prompt's text never matches
    assert complete(engine, ABC, max_tokens=7).text == " L M O P Q R"


def test_nothing_of_a_stop_string_is_ever_shown(make_engine: MakeEngine) -> None:
    engine = make_engine(saying([*b"one ", word("```"), *b"two"], len(ABC)))
    events = list(engine.submit(Request(ABC, SamplingParameters(max_tokens=20, stop=("e ``",)))))
    shown = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(shown) == "on"
    assert not any("e" in text for text in shown)


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_every_end_token_ends(make_engine: MakeEngine, end: int) -> None:
    engine = make_engine(saying([*b"yes", end, *b"no"], len(ABC)))
    answer = complete(engine, ABC, max_tokens=20)
    assert (answer.text, answer.finish_reason) == ("yes", "stop")
    assert answer.ids == (*b"yes", end)
    assert answer.usage.completion_tokens == 4


def test_an_end_token_at_the_limit_is_an_end(make_engine: MakeEngine) -> None:
    engine = make_engine(saying([*b"yes", EOS, *b"no"], len(ABC)))
    assert complete(engine, ABC, max_tokens=4).finish_reason == "stop"
    assert complete(engine, ABC, max_tokens=3).finish_reason == "length"


def test_ends_can_be_ignored_all_of_them(make_engine: MakeEngine) -> None:
    engine = make_engine(saying([EOS, END_OF_TURN], len(ABC)))
    answer = complete(engine, ABC, max_tokens=9, ignore_eos=True)
    assert answer.finish_reason == "length"
    assert not {EOS, END_OF_TURN} & set(answer.ids)


@pytest.mark.parametrize(("limit", "count"), [(3, 3), (1, 1), (0, 0)])
def test_the_limit_is_exact(make_engine: MakeEngine, limit: int, count: int) -> None:
    answer = complete(make_engine(saying(b"0123456789", len(ABC))), ABC, max_tokens=limit)
    assert (answer.text, answer.finish_reason) == ("0123456789"[:count], "length")
    assert answer.usage.completion_tokens == len(answer.ids) == count


def test_a_character_cut_by_the_limit_is_the_same_everywhere(make_engine: MakeEngine) -> None:
    engine = make_engine(saying("ab😀".encode(), len(ABC)))
    assert complete(engine, ABC, max_tokens=4).text == "ab\ufffd"
    assert complete(engine, ABC, max_tokens=6).text == "ab😀"


@pytest.mark.parametrize(("prompt", "answer"), [(1, 63), (62, 2), (63, 1)])
def test_a_full_context_ends_with_length(make_engine: MakeEngine, prompt: int, answer: int) -> None:
    engine = make_engine(context=64)
    for limit in (None, 1000):
        completion = complete(engine, [5] * prompt, max_tokens=limit, ignore_eos=True)
        assert completion.finish_reason == "length"
        assert len(completion.ids) == answer


@pytest.mark.parametrize("prompt", [64, 65, 1000])
def test_a_prompt_without_room_for_an_answer_is_refused_before_anything_runs(
    make_engine: MakeEngine, prompt: int
) -> None:
    executor = IntegerExecutor()
    engine = make_engine(executor, context=64)
    with pytest.raises(ContextLengthError, match=f"{prompt} tokens.*64 tokens"):
        engine.submit(Request([5] * prompt))
    assert not executor.steps


@pytest.mark.parametrize("prompt", [63, 64, 65, 1000])
def test_a_window_takes_any_prompt_and_says_what_was_dropped(make_engine: MakeEngine, prompt: int) -> None:
    engine = make_engine(context=64, context_policy="window")
    generation = engine.submit(Request([5] * prompt, SamplingParameters(max_tokens=2, ignore_eos=True), sinks=20))
    *_, last = generation
    assert isinstance(last, Finished)
    assert last.reason == "length"
    assert last.usage.completion_tokens == 2
    state = generation.context_state()
    assert state.kept + state.evicted == prompt + 1
    assert state.kept <= 64
    assert last.usage.evicted_tokens == state.evicted
    assert (state.evicted > 0) == (prompt + 1 > 64)
    assert state.sunk == (32 if state.evicted else 0)


@pytest.mark.parametrize("sinks", [60, 63, 64, 100])
def test_sinks_that_fill_the_window_are_refused_at_the_start(make_engine: MakeEngine, sinks: int) -> None:
    with pytest.raises(ConfigurationError, match="sink"):
        make_engine(context=64, window=64, sinks=sinks)


def test_a_system_prompt_that_fills_the_window_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(window=64)
    with pytest.raises(RequestError, match="must stay has 33 tokens"):
        engine.submit(Request([5] * 40, sinks=33))


def test_an_endless_answer_keeps_its_limit_and_costs_one_row_a_token(make_engine: MakeEngine) -> None:
    executor = saying(b"never ending ", len(ABC), windows=(None, 20))
    engine = make_engine(executor, window=64, sinks=4)
    answer = complete(engine, ABC, max_tokens=1000)
    assert answer.text == ("never ending " * 77)[:1000]
    assert sum(len(step.tokens) for step in executor.steps) == len(ABC) + 999
    most = max(int(step.groups[0].row_index.max()) for step in executor.steps)
    assert most == 63


def test_without_a_limit_there_is_one(make_engine: MakeEngine) -> None:
    engine = make_engine(saying(b"never ending ", len(ABC)), window=64, most_tokens=300)
    assert complete(engine, ABC).usage.completion_tokens == 300


def test_a_window_beyond_the_training_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigurationError, match="4097 tokens is more than the 4096"):
        make_engine(window=4097)


def test_an_empty_prompt_and_no_answers_are_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        Request([])
    with pytest.raises(RequestError, match="n must"):
        Request([1], n=0)
