"""Calibrations of small models: within their budget, and with the cost that is found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localllm.errors import RequestError
from localllm.gguf_io import open_gguf
from localllm.kernels.spec import ModelSpec
from localllm.kernels.turbo import Scores
from localllm.models import load_spec
from localllm.turbo.calibrate import calibrate
from localllm.turbo.cost import cost_between, logits_in


def _ids(spec: ModelSpec, count: int = 200) -> list[int]:
    return [int(i) for i in np.random.default_rng(3).integers(0, spec.vocabulary_size, count)]


def _spec(data_folder: Path, name: str) -> ModelSpec:
    return load_spec(open_gguf(data_folder / "models" / f"{name}.gguf"))


@pytest.mark.parametrize("name", ["llama_relu", "qwen2"])
def test_the_cost_that_is_stored_is_found_again(name: str, data_folder: Path) -> None:
    spec = _spec(data_folder, name)
    ids = _ids(spec)
    records = [calibrate(spec, ids, model="x", budget=budget, threads=1) for budget in (0.001, 0.2)]
    judged = ids[100:200]
    exact = logits_in(spec, judged, "exact", None, 2)
    for record in records:
        changed = logits_in(spec, judged, "turbo", record.turbo, 2)
        assert cost_between(exact, changed, judged) == record.cost
        assert record.cost.divergence <= np.log1p(record.budget) or not record.facts
        assert len(record.turbo.layers) == len(spec.layers)
        for index, facts in record.facts.items():
            assert record.turbo.layers[index] is not None
            assert 0 <= facts.fired <= facts.kept <= 1
    assert records[0].cost.divergence <= records[1].cost.divergence
    if name == "qwen2":  # what a guess misses is zero only with ReLU
        assert all(facts.scores is Scores.GATE for record in records for facts in record.facts.values())


@pytest.mark.parametrize("name", ["powerinfer_llama", "powerinfer_bamboo", "powerinfer_falcon"])
def test_predictors_of_a_file_are_used_and_measured(name: str, data_folder: Path) -> None:
    spec = _spec(data_folder, name)
    ids = _ids(spec, 130)
    all_kept = calibrate(spec, ids, model="x", threshold=-1e9, threads=1)
    assert [facts.scores for facts in all_kept.facts.values()] == [Scores.STORED] * len(spec.layers)
    assert all_kept.cost.divergence < 1e-3
    none_kept = calibrate(spec, ids, model="x", threshold=1e9, threads=1)
    assert none_kept.cost.divergence > 10 * all_kept.cost.divergence


def test_too_little_text_is_an_error(data_folder: Path) -> None:
    spec = _spec(data_folder, "llama_relu")
    with pytest.raises(RequestError, match="128"):
        calibrate(spec, [1] * 100, model="x")


def test_a_real_model_skips_neurons_and_tokens(relu_path: Path) -> None:
    from localllm.profiles.text import TEXT
    from localllm.tokenizer import Tokenizer

    with open_gguf(relu_path) as file:
        spec = load_spec(file)
        spec = replace(spec, layers=spec.layers[:3])  # the others would take a minute
        ids = Tokenizer.from_gguf(file).encode(TEXT)[:140]
        record = calibrate(spec, ids, model="x", budget=0.05)
    assert len(record.facts) == len(spec.layers)
    assert record.turbo.shortlist is not None
    assert record.cost.divergence <= np.log1p(0.05)
    assert np.mean([facts.fired for facts in record.facts.values()]) < 0.2
