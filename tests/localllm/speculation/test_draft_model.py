"""A draft model that is the target itself guesses everything right; what it guessed wrong is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integer_executor import IntegerExecutor

from localllm import LLM
from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType, dequantize, open_gguf
from localllm.gguf_io.writer import write_gguf
from localllm.kernels.executor import Device
from localllm.speculation import NOTHING
from localllm.speculation.draft_model import DraftModel, ModelDrafter, draft_device

PROMPT = [7, 3, 250, 9, 14, 3, 3]


def sure(content: int, token: int, position: int) -> Any:
    """Logits [300] of a model that always knows what comes next, from all that it sees."""
    logits = np.zeros(300, np.float32)
    logits[content % 300] = 20
    return logits


def model(context: int = 256, parallel: int = 2) -> DraftModel:
    return DraftModel(IntegerExecutor(script=sure, max_rows=4), None, context, parallel)


def text(count: int) -> list[int]:
    """What the model says behind the prompt, one token a time."""
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(ModelDrafter(model()).draft(tokens, 1).tokens[0])
    return tokens[len(PROMPT) :]


def test_guesses_are_what_the_model_says() -> None:
    drafter = ModelDrafter(model())
    draft = drafter.draft(PROMPT, 6)
    assert list(draft.tokens) == text(6)
    assert draft.is_chain
    assert len(set(draft.grades)) == 1


@pytest.mark.parametrize("right", [0, 1, 3, 5])
def test_wrong_guesses_leave_no_trace(right: int) -> None:
    drafter = ModelDrafter(model())
    tokens = list(PROMPT)
    for turn in range(6):
        draft = drafter.draft(tokens, 5)
        assert draft.tokens == ModelDrafter(model()).draft(tokens, 5).tokens
        tokens += [*draft.tokens[:right], 100 + turn]


def test_sequences_are_apart_and_give_their_pages_back() -> None:
    shared = model()
    first, second = ModelDrafter(shared), ModelDrafter(shared)
    assert first.draft(PROMPT, 4).tokens == ModelDrafter(model()).draft(PROMPT, 4).tokens
    assert second.draft(PROMPT[:3], 4).tokens == ModelDrafter(model()).draft(PROMPT[:3], 4).tokens
    assert first.draft([*PROMPT, 8], 4).tokens == ModelDrafter(model()).draft([*PROMPT, 8], 4).tokens
    first.close()
    second.close()
    second.close()
    assert shared.cache.usage().held == 0
    shared.close()
    assert shared.executor.closed  # type: ignore[attr-defined]


def test_beyond_its_context_it_is_silent() -> None:
    shared = model(context=16)
    drafter = ModelDrafter(shared)
    assert len(drafter.draft(PROMPT, 4)) == 4
    assert drafter.draft(PROMPT * 2, 4) == NOTHING
    assert shared.cache.usage().held == 0


def test_an_unsure_model_says_nothing() -> None:
    shared = DraftModel(IntegerExecutor(), None, 64, 1)
    assert ModelDrafter(shared).draft(PROMPT, 4) == NOTHING


@pytest.mark.parametrize(
    ("choice", "target", "expected"),
    [
        ("small", "cpu", ("small", "cpu")),
        ("small:q4", "hybrid", ("small:q4", "auto")),
        ("small@cuda", "hybrid", ("small", "cuda")),
        ("small@cpu", "cuda", ("small", "cpu")),
        ("file@home.gguf", "cpu", ("file@home.gguf", "cpu")),
        ("@cpu", "cuda", ("@cpu", "cuda")),
    ],
)
def test_a_draft_model_may_run_elsewhere(choice: str, target: Device, expected: tuple[str, Device]) -> None:
    assert draft_device(choice, target) == expected


def test_a_model_that_drafts_for_itself_on_another_device() -> None:
    path = str(Path(__file__).parents[2] / "data" / "models" / "llama_gqa_tied_f16.gguf")
    options: dict[str, Any] = {"device": "cpu", "threads": 1, "context": 128}
    with (
        LLM(path, speculate="off", **options) as plain,
        LLM(path, speculate=f"model:{path}@reference", **options) as two,
    ):
        expected = plain.generate([5, 9, 13, 2], max_tokens=40, ignore_eos=True, temperature=0.0)
        found = two.generate([5, 9, 13, 2], max_tokens=40, ignore_eos=True, temperature=0.0)
    assert found.ids == expected.ids
    assert found.usage.accepted_tokens > 0


def test_a_table_with_more_rows_than_the_targets_is_refused(tmp_path: Path) -> None:
    """Its guesses could be tokens that the target has no row for."""
    path = Path(__file__).parents[2] / "data" / "models" / "llama_gqa_tied_f16.gguf"
    with open_gguf(path) as file:
        metadata: dict[str, Any] = {key: file.metadata.get_raw(key) for key in file.metadata}
        tensors: dict[str, Any] = {
            name: (tensor.quant_type, tensor.shape, bytes(tensor.data)) for name, tensor in file.tensors.items()
        }
        table = np.asarray(dequantize(file.tensors["token_embd.weight"]), np.float32)
    longer = np.concatenate([table, 1000 * table[:1], -1000 * table[:1]])  # one of the two is always the likeliest
    tensors["token_embd.weight"] = QuantType.F32, longer.shape, longer
    write_gguf(tmp_path / "longer.gguf", metadata, tensors)
    with pytest.raises(ConfigurationError, match="vocabularies differ"):
        LLM(str(path), device="cpu", speculate=f"model:{tmp_path / 'longer.gguf'}")
