"""The real models on the CPU: right answers, near the float32 reference, the same bits on one thread and two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm import LLM
from localllm.kernels.kv_layout import KVType

pytestmark = pytest.mark.real_model
NEAR_TIE = 0.4  # nats: where 8-bit activations may choose the other token


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def loaded(request: pytest.FixtureRequest) -> Any:
    """A model's name, the model on one thread and on two."""
    path = request.getfixturevalue(f"{request.param}_path")
    with LLM(path, device="cpu", threads=1) as one, LLM(path, device="cpu", threads=2) as two:
        yield request.param, one, two


def golden(folder: Path, name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((folder / "golden" / "real" / name).read_text(encoding="utf-8"))["cases"]
    return cases


def test_the_first_question_of_the_readme(smollm2_path: Path) -> None:
    with LLM(smollm2_path, device="cpu") as llm:
        answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=40)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_next_tokens_are_those_of_the_reference(
    loaded: Any, shared_fixtures: Path, record_property: Callable[[str, object], None]
) -> None:
    """Teacher-forced over the golden answers; the stored-weights reference is the yardstick for agreement."""
    name, llm, _ = loaded
    exact, stored = (golden(shared_fixtures, f"{name}_greedy{kind}.json") for kind in ("_f32w", ""))
    agreed = agreed_stored = compared = positions = 0
    divergence = []
    for case, other in zip(exact, stored, strict=True):
        prompt, answer = case["prompt_ids"], case["generated_ids"]
        if len(prompt) > 200:
            continue  # the long one is for the reference executor's own test
        logits = llm.logits(prompt + answer)[len(prompt) - 1 : -1].astype(np.float64)
        logs = logits - logits.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        same = next((i for i, (a, b) in enumerate(zip(answer, other["generated_ids"], strict=False)) if a != b), 10**9)
        for step, (row, best) in enumerate(zip(logs, case["top10_logprobs"], strict=True)):
            ids, expected = [int(i) for i, _ in best], np.array([p for _, p in best])
            positions += 1
            right = int(row.argmax()) == ids[0]
            agreed += right
            assert right or expected[0] - expected[1] < NEAR_TIE, f"{case['prompt']!r} step {step}"
            if step <= same and step < len(other["top10_logprobs"]):
                compared += right
                agreed_stored += int(other["top10_logprobs"][step][0][0]) == ids[0]
            rest, own_rest = 1 - np.exp(expected).sum(), 1 - np.exp(row[ids]).sum()
            terms = np.exp(expected) @ (expected - row[ids])
            divergence.append(terms + (rest * np.log(rest / own_rest) if rest > 1e-9 else 0.0))
    for figure, value in (("top1", agreed), ("positions", positions), ("divergence", np.mean(divergence))):
        record_property(f"{name}_{figure}", float(value))
    assert compared >= agreed_stored
    assert np.mean(divergence) <= 0.005


def test_perplexity_is_that_of_the_reference(
    loaded: Any, shared_fixtures: Path, record_property: Callable[[str, object], None]
) -> None:
    name, _, llm = loaded
    facts = json.loads((shared_fixtures / "golden" / "real" / "perplexity.json").read_text(encoding="utf-8"))
    value = llm.perplexity(facts["text"], context=512)
    record_property(f"{name}_perplexity", float(value))
    record_property(f"{name}_perplexity_of_golden", float(value / facts["models"][name]["f32_weights"]["ppl"]))
    assert value == pytest.approx(facts["models"][name]["f32_weights"]["ppl"], rel=0.01)


def test_threads_change_no_bit(loaded: Any) -> None:
    _, one, two = loaded
    ids = one.tokenizer.encode(
        "The lighthouse keeper climbed the stairs at dusk, as on every evening for thirty years."
    )
    assert np.array_equal(one.logits(ids), two.logits(ids))


def test_the_second_turn_computes_only_what_is_new(smollm2_path: Path) -> None:
    """The text and its log-probabilities are those of a model that has seen nothing before, bit for bit."""
    messages = [{"role": "user", "content": "Name three colours of a traffic light."}]
    sampling = {"max_tokens": 30, "temperature": 0.7, "seed": 4, "logprobs": 2}
    with LLM(smollm2_path, device="cpu", threads=1, speculate="off") as llm:
        first = llm.chat(messages, **sampling)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And in what order?"}]
        rows = llm.engine.usage().rows
        second = llm.chat(messages, **sampling)
        rows = llm.engine.usage().rows - rows
        known = first.usage.prompt_tokens + len(llm.tokenizer.encode(first.text, add_bos=False))
        assert second.usage.cached_tokens >= known - 1
        assert rows <= second.usage.prompt_tokens - known + second.usage.completion_tokens + 1
    with LLM(smollm2_path, device="cpu", threads=1, speculate="off") as fresh:
        again = fresh.chat(messages, **sampling)
    assert again.usage.cached_tokens == 0
    assert (again.text, again.ids, again.logprobs) == (second.text, second.ids, second.logprobs)


@pytest.mark.parametrize(("temperature", "kv"), [(0.0, "q8"), (0.4, "f16")])
def test_guesses_change_no_token(temperature: float, kv: KVType, smollm2_path: Path) -> None:
    """A letter that is mostly copied, with lookup and without."""
    letter = (
        "We can send you the blue chairs this week at the same price, or keep your order until the green ones arrive."
    )
    messages = [{"role": "user", "content": f"Repeat the following letter word for word:\n\n{letter}"}]
    answers = []
    for speculate in ("off", "lookup"):
        with LLM(smollm2_path, device="cpu", threads=2, context=512, kv=kv, speculate=speculate) as llm:
            answers.append(llm.chat(messages, max_tokens=40, temperature=temperature, seed=5, logprobs=1))
    plain, guessed = answers
    assert (guessed.ids, guessed.logprobs) == (plain.ids, plain.logprobs)
    assert guessed.usage.accepted_tokens > 10


@pytest.mark.parametrize("policy", [None, "sparq:16:64"])
def test_a_needle_in_a_haystack(policy: str | None, smollm2_path: Path) -> None:
    """A number that was said once, 500 tokens ago, is said again, also when a row reads 64 keys only."""
    from pydoc_data.topics import topics

    question = "\nRemember: the secret access code of the old lighthouse is"
    with LLM(smollm2_path, device="cpu", threads=1, context=1024, kv_policy=policy) as llm:
        hay = llm.tokenizer.encode(topics["assignment"])[:560]
        needle = llm.tokenizer.encode(f"{question} 40716.\n", add_bos=False)
        ids = [*hay[:60], *needle, *hay[60:], *llm.tokenizer.encode(question, add_bos=False)]
        answer = llm.generate(ids, max_tokens=8)
    assert answer.text.strip().startswith("40716")
