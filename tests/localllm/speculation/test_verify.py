"""Sampled text with guesses is distributed as without: chi-square tests over the processed distribution."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.sampling import Sampler, SamplingParameters
from localllm.speculation import Draft, chain, verify

VOCABULARY, ROUNDS = 12, 1000
LOGITS: npt.NDArray[np.float32] = (
    np.random.default_rng(3).normal(0, 1.5, (VOCABULARY + 1, VOCABULARY)).astype(np.float32)
)
ALLOWED = np.arange(VOCABULARY) % 3 != 1
PROMPT = [3, 3, 7]
TREE = Draft((4, 9, 2, 0, 9), (-1, 0, -1, 2, 2), (0,) * 5)


def row_after(history: list[int]) -> npt.NDArray[np.float32]:
    """A model that looks at the last token."""
    row: npt.NDArray[np.float32] = LOGITS[history[-1]]
    return row


def answer(draft: Draft, parameters: dict[str, Any], seed: int, mask: npt.NDArray[np.bool_] | None) -> list[int]:
    """Two tokens or more: the guesses verified, and plain steps until there are two."""
    sampler = Sampler(SamplingParameters(seed=seed, **parameters), VOCABULARY, prompt_length=len(PROMPT))
    history = list(PROMPT)
    rows = [row_after(history)]
    for token in draft.tokens:
        rows.append(LOGITS[token])

    def choose(row: int) -> int:
        token = sampler.sample(rows[row], history, mask).token
        history.append(token)
        return token

    path = verify(draft, choose)
    assert [draft.tokens[node] for node in path] == history[len(PROMPT) : len(PROMPT) + len(path)]
    while len(history) < len(PROMPT) + 2:
        history.append(sampler.sample(row_after(history), history, mask).token)
    return history[len(PROMPT) :]


def expected(parameters: dict[str, Any], mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.float64]:
    """[first, second] probabilities of the processed distributions."""
    sampler = Sampler(SamplingParameters(seed=0, **parameters), VOCABULARY, prompt_length=len(PROMPT))
    first = sampler.distribution(row_after(PROMPT), PROMPT, mask)
    second = [sampler.distribution(LOGITS[token], [*PROMPT, token], mask) for token in range(VOCABULARY)]
    joint: npt.NDArray[np.float64] = first[:, None] * np.array(second)
    return joint


@pytest.mark.parametrize("draft", [chain([int(LOGITS[7].argmax()), 9], 0), TREE], ids=str)
@pytest.mark.parametrize(
    ("parameters", "mask"),
    [
        ({"temperature": 1.0}, None),
        ({"temperature": 0.8, "top_k": 5, "top_p": 0.9}, None),
        ({"temperature": 1.3, "min_p": 0.05, "repetition_penalty": 1.4, "frequency_penalty": 0.5}, None),
        ({"temperature": 1.0}, ALLOWED),
    ],
)
def test_sampled_pairs_have_the_distribution_of_plain_sampling(
    draft: Draft, parameters: dict[str, Any], mask: npt.NDArray[np.bool_] | None
) -> None:
    counts = Counter(tuple(answer(draft, parameters, seed, mask)[:2]) for seed in range(ROUNDS))
    joint = expected(parameters, mask)
    assert all(joint[pair] > 0 for pair in counts)
    common = joint * ROUNDS >= 5
    observed = np.array([[counts[i, j] for j in range(VOCABULARY)] for i in range(VOCABULARY)])
    bins_seen = np.append(observed[common], ROUNDS - observed[common].sum())
    bins_expected = np.append(joint[common], 1 - joint[common].sum()) * ROUNDS
    kept = bins_expected > 1e-9
    statistic = ((bins_seen - bins_expected)[kept] ** 2 / bins_expected[kept]).sum()
    freedom = kept.sum() - 1
    assert statistic < freedom + 4.5 * np.sqrt(2 * freedom)  # far beyond the 99.99% point of chi-square


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_seed_gives_the_same_text_with_any_guesses(temperature: float) -> None:
    for seed in range(30):
        texts = [answer(draft, {"temperature": temperature}, seed, None) for draft in (Draft(), chain([4, 9], 0), TREE)]
        assert len({tuple(text[:2]) for text in texts}) == 1


def test_a_text_that_ends_takes_no_more_guesses() -> None:
    rows: list[int] = []

    def choose(row: int) -> int | None:
        rows.append(row)
        return None if len(rows) == 2 else 4 if row == 0 else 9

    assert verify(chain([4, 9, 9], 0), choose) == [0]
    assert rows == [0, 1]
