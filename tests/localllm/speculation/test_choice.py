"""What a user may choose, on a real file."""

from __future__ import annotations

from pathlib import Path

import pytest

from localllm.errors import ConfigurationError, LocalLLMError
from localllm.gguf_io import open_gguf
from localllm.llm import LLM
from localllm.models import load_spec
from localllm.speculation import NOTHING, Target


@pytest.fixture
def model(shared_fixtures: Path) -> Path:
    return shared_fixtures / "golden" / "arch" / "llama_gqa_tied.gguf"


@pytest.mark.parametrize("choice", ["auto", "lookup", "model"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_the_same(model: Path, choice: str, temperature: float) -> None:
    sampling = {"max_tokens": 40, "temperature": temperature, "seed": 3, "ignore_eos": True, "logit_bias": {65: 8.0}}
    with LLM(model, device="reference", context=128, speculate="off") as llm:
        plain = llm.generate("hello hello hello", **sampling)
    name = f"model:{model}" if choice == "model" else choice
    with LLM(model, device="reference", context=128, speculate=name) as llm:
        guessed = llm.generate("hello hello hello", **sampling)
    assert guessed.ids == plain.ids
    assert plain.usage.drafted_tokens == 0
    assert guessed.usage.accepted_tokens <= guessed.usage.drafted_tokens


@pytest.mark.parametrize("choice", ["", "model", "model:", "heads:", "trees", "Auto"])
def test_other_words_are_refused(model: Path, choice: str) -> None:
    with pytest.raises(ConfigurationError, match="is not known"):
        LLM(model, device="reference", speculate=choice)


def test_files_that_do_not_fit_are_refused(model: Path, shared_fixtures: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no heads"):
        LLM(model, device="reference", speculate=f"heads:{model}")
    with pytest.raises(LocalLLMError):
        LLM(model, device="reference", speculate="heads:/nowhere.gguf")
    with pytest.raises(LocalLLMError):
        LLM(model, device="reference", speculate="model:/nowhere.gguf")


def test_the_file_may_lie_in_the_home_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    with pytest.raises(LocalLLMError, match=str(tmp_path / "missing.gguf")):
        LLM(model, device="reference", speculate="heads:~/missing.gguf")


def test_lookup_remembers_as_much_text_as_the_model_sees(model: Path) -> None:
    with open_gguf(model) as file:
        drafter = Target(file, load_spec(file), "reference", None, 64, 1).lookups()()
    text = [*range(200), 5, 6]  # 5 and 6 were there 195 tokens ago
    assert drafter.draft(text[:200], 3) == NOTHING
    assert drafter.draft(text, 3) == NOTHING
    assert drafter.draft([*text, 190, 191], 3).tokens == (192, 193, 194)
