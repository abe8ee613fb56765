"""Medusa heads from a file, against the formula and beside a model."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm import LLM
from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType, Tensor, dequantize, open_gguf
from localllm.models import load_spec
from localllm.speculation import NOTHING
from localllm.speculation.made_for import NAME
from localllm.speculation.medusa import MedusaDrafter, MedusaHeads

from .test_heads import HIDDEN, STEPS, TOKENS, VOCABULARY, embeddings, in_numpy, save

MODEL = Path(__file__).parents[2] / "data" / "models" / "llama_gqa_tied_f16.gguf"
Floats = npt.NDArray[np.float32]


def weights(*, shared: bool = True, hidden: int = HIDDEN, output: Floats | None = None) -> dict[str, Floats]:
    random = np.random.default_rng(1)
    made = {"speculator.output.weight": random.normal(0, 1, (len(VOCABULARY), hidden)) if output is None else output}
    for step in range(STEPS):
        made[f"speculator.medusa.{step}.weight"] = random.normal(0, hidden**-0.5, (hidden, hidden))
        made[f"speculator.medusa.{step}.bias"] = random.normal(0, 1, (hidden,))
        if not shared:
            made[f"speculator.medusa.{step}.output.weight"] = random.normal(0, 1, (len(VOCABULARY), hidden))
    if not shared:
        del made["speculator.output.weight"]
    return {name: values.astype(np.float32) for name, values in made.items()}


def load(path: Path) -> MedusaHeads:
    with open_gguf(path) as file:
        return MedusaHeads.load(file, embeddings(), in_numpy)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("trees", [True, False])
def test_guesses_are_those_of_the_formula(tmp_path: Path, shared: bool, trees: bool) -> None:
    w = weights(shared=shared)
    drafter = MedusaDrafter(load(save(tmp_path / "heads.gguf", w)), trees=trees)
    random, lengths = np.random.default_rng(3), set()
    for _ in range(40):
        hidden = random.normal(0, 1, HIDDEN).astype(np.float32)
        draft = drafter.draft([5, 1], 15, np.stack([-hidden, hidden]))
        depths = draft.depths()
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            step = depths[node] - 1
            x = w[f"speculator.medusa.{step}.weight"] @ hidden + w[f"speculator.medusa.{step}.bias"]
            output = w.get("speculator.output.weight", w.get(f"speculator.medusa.{step}.output.weight"))
            assert output is not None
            logits = output @ (hidden + x / (1 + np.exp(-x)))
            rank = list(VOCABULARY[np.argsort(-logits)]).index(token)
            assert rank == (0 if node < max(depths) else 1)
            assert parent == step - 1
            chance = np.exp(logits - logits.max())
            assert draft.grades[node] % 10 == min(9, int(10 * sorted(chance / chance.sum())[-1 - rank]))
        assert len(draft) == max(depths) * (2 if trees else 1)
        assert draft.is_chain is (not trees)
        assert len(drafter.draft([5, 1], 2, hidden[None])) <= 2
        lengths.add(max(depths))
    assert max(lengths) > 1


def test_without_a_vector_nothing_is_guessed(tmp_path: Path) -> None:
    drafter = MedusaDrafter(load(save(tmp_path / "heads.gguf", weights())), trees=True)
    assert drafter.draft([1], 4, None) == NOTHING
    assert drafter.draft([1], 0, np.zeros((1, HIDDEN), np.float32)) == NOTHING
    assert drafter.draft([1], 4, np.full((1, HIDDEN), np.nan, np.float32)) == NOTHING


def test_the_largest_weights_overflow_nowhere(tmp_path: Path) -> None:
    largest = {name: np.full_like(each, -9e3) for name, each in weights().items()}
    drafter = MedusaDrafter(load(save(tmp_path / "heads.gguf", largest)), trees=False)
    assert drafter.draft([1], 1, np.ones((1, HIDDEN), np.float32)).tokens == (VOCABULARY[0],)


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        ({}, {"general.architecture": "llama"}, "holds no heads"),
        ({"speculator.medusa.1.weight": np.zeros((HIDDEN, 3), np.float32)}, {}, "speculator.medusa.1.weight should be"),
        ({"speculator.medusa.2.bias": np.zeros(3, np.float32)}, {}, "speculator.medusa.2.bias should be"),
        ({"speculator.output.weight": np.zeros((3, HIDDEN), np.float32)}, {}, "speculator.output.weight should be"),
        ({"speculator.medusa.0.bias": np.full(HIDDEN, np.nan, np.float32)}, {}, "damaged: speculator.medusa.0.bias"),
        ({}, {"speculator.vocabulary": VOCABULARY + TOKENS}, "tokens that the model lacks"),
        ({}, {"speculator.steps": STEPS + 1}, "should be"),
    ],
)
def test_heads_of_another_model_are_refused(
    tmp_path: Path, change: dict[str, Floats], metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(save(tmp_path / "heads.gguf", weights() | change, **metadata))


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.1}])
def test_the_text_is_that_of_plain_decoding_with_trees(tmp_path: Path, device: Any, sampling: dict[str, Any]) -> None:
    """Both choices of each head and what lookup says, as trees."""
    spec = load_spec(open_gguf(MODEL))
    table = np.asarray(dequantize(spec.embed.table), np.float32)
    path = save(
        tmp_path / "heads.gguf",
        weights(hidden=spec.hidden_size, output=table),
        **{"speculator.vocabulary": np.arange(len(table), dtype=np.int32)},
    )
    prompt, options = [5, 9, 13, 2, 5, 9, 40, 7], {"device": device, "context": 256}
    with LLM(str(MODEL), speculate="off", **options) as plain:
        expected = plain.generate(prompt, max_tokens=80, ignore_eos=True, **sampling)
    with LLM(str(MODEL), speculate=f"heads:{path}", **options) as guessing:
        found = guessing.generate(prompt, max_tokens=80, ignore_eos=True, **sampling)
    assert found.ids == expected.ids
    assert found.usage.drafted_tokens > 0


def test_what_the_trainer_saves_is_what_it_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "scripts"))
    trainer = importlib.import_module("train_heads")
    hidden, tokens = 32, torch.arange(64) % 7
    table = torch.from_numpy(np.random.default_rng(5).normal(0, 1, (7, hidden)).astype(np.float32))
    data = {"hidden": table[tokens[:60]], "tokens": torch.stack([tokens[1 + i : 61 + i] for i in range(3)], -1)}
    heads = trainer.Medusa(2, hidden, table)
    trainer.train(heads, data, table, torch.arange(7), 0.5, 16)
    path = tmp_path / "heads.gguf"
    trainer.save(str(path), heads, torch.arange(7), {NAME: "a model"})
    embedded = Tensor("token_embd.weight", QuantType.F32, (7, hidden), table.numpy().view(np.uint8))
    with open_gguf(path) as file:
        loaded = MedusaHeads.load(file, embedded, in_numpy)
    states = heads.states(table[:1], [table, table])
    for step, state in enumerate(states):
        expected = (state @ heads.output.T)[0].detach().numpy()
        np.testing.assert_allclose(loaded.logits(step, table[0].numpy()), expected, rtol=0.05, atol=0.1)
