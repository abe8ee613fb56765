"""Heads from a file, against the formula."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType, Tensor, dequantize, open_gguf
from localllm.gguf_io.writer import write_gguf
from localllm.speculation import NOTHING
from localllm.speculation.draft import sure
from localllm.speculation.heads import Heads, HeadsDrafter

HIDDEN, INNER, TOKENS, STEPS = 8, 12, 40, 3
VOCABULARY = np.arange(0, TOKENS, 2, dtype=np.int32)
Floats = npt.NDArray[np.float32]


def weights() -> dict[str, Floats]:
    random = np.random.default_rng(1)
    made = {"speculator.output.weight": random.normal(0, 3, (len(VOCABULARY), HIDDEN))}
    for step in range(STEPS):
        made[f"speculator.{step}.up.weight"] = random.normal(0, 1, (INNER, 2 * HIDDEN))
        made[f"speculator.{step}.up.bias"] = random.normal(0, 1, (INNER,))
        made[f"speculator.{step}.down.weight"] = random.normal(0, 1, (HIDDEN, INNER))
    return {name: values.astype(np.float32) for name, values in made.items()}


def embeddings() -> Tensor:
    values = np.random.default_rng(2).normal(0, 1, (TOKENS, HIDDEN)).astype(np.float32)
    return Tensor("token_embd.weight", QuantType.F32, values.shape, values.view(np.uint8))


def in_numpy(tensor: Tensor) -> Callable[[Floats], Floats]:
    matrix = dequantize(tensor).astype(np.float32)
    return lambda vector: matrix @ vector


def save(path: Path, tensors: dict[str, Floats], **metadata: Any) -> Path:
    values: dict[str, Any] = {
        "general.architecture": "localllm-speculator",
        "speculator.steps": STEPS,
        "speculator.vocabulary": VOCABULARY,
    } | metadata
    write_gguf(path, values, {name: (QuantType.F32, each.shape, each) for name, each in tensors.items()})
    return path


def load(path: Path) -> Heads:
    with open_gguf(path) as file:
        return Heads.load(file, embeddings(), in_numpy)


def unit(x: Floats) -> Floats:
    result: Floats = x / np.sqrt((x**2).mean() + 1e-6)
    return result


def test_guesses_are_those_of_the_formula(tmp_path: Path) -> None:
    w = weights()
    drafter = HeadsDrafter(load(save(tmp_path / "heads.gguf", w)))
    table = dequantize(embeddings()).astype(np.float32)
    random, seen = np.random.default_rng(3), set()
    for token in range(TOKENS):
        hidden = random.normal(0, 1, HIDDEN).astype(np.float32)
        draft = drafter.draft([5, token], 8, np.stack([-hidden, hidden]))
        state, last = hidden, token
        for step in range(len(draft)):
            x = w[f"speculator.{step}.up.weight"] @ np.concatenate([unit(state), unit(table[last])])
            x = x + w[f"speculator.{step}.up.bias"]
            state = state + w[f"speculator.{step}.down.weight"] @ (x / (1 + np.exp(-x)))
            last = int(VOCABULARY[np.argmax(w["speculator.output.weight"] @ state)])
            assert draft.tokens[step] == last
            assert draft.grades[step] // 10 == sure(0.5, step) // 10  # of its own kind
        seen.add(draft.parents)
        assert draft.is_chain
        assert drafter.draft([5, token], 1, hidden[None]).tokens == draft.tokens[:1]
    assert (-1, 0, 1) in seen


def test_without_a_vector_nothing_is_guessed(tmp_path: Path) -> None:
    drafter = HeadsDrafter(load(save(tmp_path / "heads.gguf", weights())))
    assert drafter.draft([1], 4, None) == NOTHING
    assert drafter.draft([1], 4, np.full((1, HIDDEN), np.nan, np.float32)) == NOTHING


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        ({}, {"general.architecture": "llama"}, "holds no heads"),
        ({"speculator.1.down.weight": np.zeros((HIDDEN, 3), np.float32)}, {}, "speculator.1.down.weight should be"),
        ({"speculator.output.weight": np.zeros((3, HIDDEN), np.float32)}, {}, "speculator.output.weight should be"),
        ({}, {"speculator.vocabulary": VOCABULARY + TOKENS}, "tokens that the model lacks"),
        ({}, {"speculator.steps": STEPS + 1}, "should be"),
    ],
)
def test_heads_of_another_model_are_refused(
    tmp_path: Path, change: dict[str, Floats], metadata: dict[str, Any], message: str
) -> None:
    path = save(tmp_path / "heads.gguf", weights() | change, **metadata)
    with pytest.raises(ConfigurationError, match=message):
        load(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30])
@pytest.mark.parametrize("name", ["speculator.output.weight", "speculator.1.up.bias"])
def test_numbers_that_no_weights_have_are_refused(tmp_path: Path, name: str, value: float) -> None:
    tensors = weights()
    tensors[name].flat[2] = value
    with pytest.raises(ConfigurationError, match=f"damaged: {name}"):
        load(save(tmp_path / "heads.gguf", tensors))


def test_the_largest_weights_overflow_nowhere(tmp_path: Path) -> None:
    largest = {name: np.full_like(each, -9e3) for name, each in weights().items()}
    drafter = HeadsDrafter(load(save(tmp_path / "heads.gguf", largest)))
    assert drafter.draft([1, 2], 1, np.ones((1, HIDDEN), np.float32)).tokens == (VOCABULARY[0],)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy: that is what is wrong with them
def test_guesses_that_are_no_numbers_are_none(tmp_path: Path) -> None:
    tensors = {name: values * np.float32(9e3 / np.abs(values).max()) for name, values in weights().items()}
    drafter = HeadsDrafter(load(save(tmp_path / "heads.gguf", tensors)))
    for value in (1.0, 1e30, 3e38):
        draft = drafter.draft([1, 2], 3, np.full((1, HIDDEN), value, np.float32))
        assert all(token in VOCABULARY for token in draft.tokens)
