"""The chain: no-ops, ties, bans, seeds, frequencies and bad logits (edge values of real bug reports)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ExecutionError, RequestError
from localllm.sampling import Sampler, SamplingParameters, log_probabilities
from localllm.sampling.candidates import Candidates
from localllm.sampling.sampler import KNOWN

LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], dtype=np.float32))


def draws(count: int, logits: np.ndarray = LOGITS, **options: Any) -> list[int]:
    sampler = Sampler(SamplingParameters(**options), len(logits))
    return [sampler.sample(logits, []).token for _ in range(count)]


def chi_square(tokens: list[int], probabilities: np.ndarray) -> float:
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    used = expected > 0
    assert counts[~used].sum() == 0
    return float(((counts[used] - expected[used]) ** 2 / expected[used]).sum())


@pytest.mark.parametrize(
    ("options", "probabilities"),
    [
        ({}, [0.5, 0.25, 0.125, 0.0625, 0.0625]),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}, [0.5, 0.25, 0.125, 0.0625, 0.0625]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0, 0]),
        ({"min_p": 0.2}, [4 / 7, 2 / 7, 1 / 7, 0, 0]),
        ({"logit_bias": {0: -100}}, [0, 0.5, 0.25, 0.125, 0.125]),
        ({"logit_bias": {3: 100, 4: 100}}, [0, 0, 0, 0.5, 0.5]),
    ],
)
def test_frequencies_follow_the_distribution(options: dict[str, Any], probabilities: list[float]) -> None:
    tokens = draws(20_000, temperature=1.0, seed=7, **options)
    assert chi_square(tokens, np.array(probabilities)) < 25  # beyond the 99.99% point of 4 degrees of freedom


def test_temperature_reshapes_the_distribution() -> None:
    squared = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625]) ** 2
    assert chi_square(draws(20_000, temperature=0.5, seed=3), squared / squared.sum()) < 25


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.0}, {"temperature": 1e-9}])
def test_greedy_forms_take_the_lowest_id_of_the_best(options: dict[str, Any]) -> None:
    logits = np.array([1.0, 3.0, 3.0, 2.0], dtype=np.float32)
    tokens = set(draws(50, logits, seed=1, **options))
    assert tokens == {1} if options["temperature"] == 0 or "top_p" in options else tokens <= {1, 2}


def test_top_k_of_one_is_greedy_even_on_ties() -> None:
    assert set(draws(50, np.ones(6, dtype=np.float32), temperature=1.0, top_k=1, seed=0)) == {0}


@given(st.integers(0, 2**63 - 1), st.floats(0.1, 3))
def test_a_seed_gives_the_same_tokens(seed: int, temperature: float) -> None:
    assert draws(8, temperature=temperature, seed=seed) == draws(8, temperature=temperature, seed=seed)


def test_the_number_of_draws_does_not_depend_on_the_parameters() -> None:
    samplers = [
        Sampler(SamplingParameters(temperature=t, xtc_probability=x, seed=5), 5) for t in (0.0, 1.0) for x in (0.0, 0.5)
    ]
    for sampler in samplers:
        for _ in range(3):
            sampler.sample(LOGITS, [])
    assert len({float(sampler._random.random()) for sampler in samplers}) == 1


@dataclass(frozen=True, slots=True)
class WithOneMore(SamplingParameters):
    """As of somebody who adds a sampler and does not name its field in the sampler's shortcuts."""

    only_even: bool = False


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "min_p": 0.1}])
def test_a_new_sampler_is_never_passed_by(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def only_even(candidates: Candidates, threshold: float, probability: float, draw: float) -> Candidates:
        kept = candidates.ids % 2 == 0
        return Candidates(candidates.ids[kept], candidates.logits[kept])

    monkeypatch.setattr("localllm.sampling.sampler.xtc", only_even)  # stands at the end of the chain
    logits = np.array([1.0, 3.0, 2.9, 2.0], dtype=np.float32)
    sampler = Sampler(WithOneMore(only_even=True, seed=1, **options), 4)
    assert not sampler.is_plain_greedy
    assert {sampler.sample(logits, []).token for _ in range(30)} <= {0, 2}


def test_the_shortcuts_know_every_parameter() -> None:
    assert {item.name for item in fields(SamplingParameters)} == KNOWN


def test_seed_zero_is_a_seed_and_none_draws_one() -> None:
    assert Sampler(SamplingParameters(seed=0), 5).seed == 0
    assert Sampler(SamplingParameters(), 5).seed != Sampler(SamplingParameters(), 5).seed


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5, "logprobs": 2}])
@pytest.mark.parametrize("bad", [[math.nan, 1.0, 2.0], [math.inf, 1.0, 2.0], [-math.inf] * 3])
def test_bad_logits_are_an_error(bad: list[float], options: dict[str, Any]) -> None:
    with pytest.raises(ExecutionError, match="no usable logits"):
        Sampler(SamplingParameters(**options), 3).sample(np.array(bad, dtype=np.float32), [])


def test_banning_everything_is_an_error() -> None:
    with pytest.raises(RequestError, match="no token is left"):
        draws(1, logit_bias=dict.fromkeys(range(5), -100))


def test_a_mask_is_respected_even_when_greedy() -> None:
    sampler = Sampler(SamplingParameters(), 5)
    assert sampler.sample(LOGITS, [], np.array([False, False, True, True, False])).token == 2
    with pytest.raises(RequestError, match="no token is left"):
        sampler.sample(LOGITS, [], np.zeros(5, dtype=np.bool_))


def test_bias_outside_the_vocabulary_names_the_parameter() -> None:
    with pytest.raises(RequestError) as caught:
        Sampler(SamplingParameters(logit_bias={5: 1.0}), 5)
    assert caught.value.parameter == "logit_bias"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("typical_p", 2.0),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", ("a", "")),
        ("logprobs", 21),
        ("repetition_penalty", 0.0),
    ],
)
def test_values_out_of_range_name_the_parameter(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParameters(**{name: value})
    assert caught.value.parameter == name


def test_penalties_see_what_they_should() -> None:
    logits = np.zeros(4, dtype=np.float32)
    presence = Sampler(SamplingParameters(presence_penalty=1.0), 4, prompt_length=2)
    assert presence.sample(logits, [0, 1]).token == 0  # prompt tokens do not count
    assert presence.sample(logits, [0, 1, 0]).token == 1
    repetition = Sampler(SamplingParameters(repetition_penalty=2.0, penalty_last_n=1), 4)
    assert repetition.sample(logits + 1, [0, 1, 0]).token == 1


def test_logprobs_are_those_of_the_raw_logits_and_sorted() -> None:
    sampler = Sampler(SamplingParameters(temperature=2.0, top_k=1, logprobs=3), 5)
    sample = sampler.sample(LOGITS, [])
    assert sample.token == 0
    assert sample.logprob == pytest.approx(math.log(0.5), abs=1e-6)
    assert [token for token, _ in sample.top] == [0, 1, 2]
    logprob, top = log_probabilities(LOGITS, 4, 0)
    assert logprob == pytest.approx(math.log(0.0625), abs=1e-6)
    assert top == ()


def test_distribution_is_what_sample_draws_from() -> None:
    sampler = Sampler(SamplingParameters(temperature=1.0, top_k=2), 5)
    np.testing.assert_allclose(sampler.distribution(LOGITS, []), [2 / 3, 1 / 3, 0, 0, 0], rtol=1e-6)
    greedy = Sampler(SamplingParameters(), 5).distribution(LOGITS, [])
    assert greedy.tolist() == [1, 0, 0, 0, 0]
