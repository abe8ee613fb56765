"""The two small real models against an established implementation that ran on float32 weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of
from localllm.models import load_spec

pytestmark = pytest.mark.real_model


def _log_probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return result


def _distances(path: Path, cases: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
    """|log p - golden log p| of the ten best tokens of every step, the golden text fed as it is."""
    executor = ReferenceExecutor(load_spec(open_gguf(path)))
    found = []
    for case in cases:
        logs = _log_probabilities(logits_of(executor, case["prompt_ids"] + case["generated_ids"]))
        logs = logs[len(case["prompt_ids"]) - 1 :]
        for row, best in zip(logs, case["top10_logprobs"], strict=False):
            found += [abs(row[token] - value) for token, value in best]
    return np.array(found)


def _cases(shared_fixtures: Path, model: str, names: set[str]) -> list[dict[str, Any]]:
    document = json.loads((shared_fixtures / "golden" / "real" / f"{model}_greedy_f32w.json").read_text())
    return [case for case in document["cases"] if case["name"] in names]


def test_smollm2(smollm2_path: Path, shared_fixtures: Path) -> None:
    cases = _cases(shared_fixtures, "smollm2", {"plain_facts", "code"})
    assert len(cases) == 2
    assert _distances(smollm2_path, cases).max() < 1e-3


def test_gemma3(gemma3_path: Path, shared_fixtures: Path) -> None:
    cases = _cases(shared_fixtures, "gemma3", {"plain_facts"})
    assert len(cases) == 1
    distances = _distances(gemma3_path, cases)
    assert distances.max() < 1e-2
    assert np.median(distances) < 2e-3


def test_smollm2_perplexity(
    smollm2_path: Path, shared_fixtures: Path, record_property: Callable[[str, object], None]
) -> None:
    """First window of 512 tokens, second half scored."""
    golden = json.loads((shared_fixtures / "golden" / "real" / "perplexity.json").read_text())["models"]["smollm2"]
    window = golden["token_ids"][:512]
    logs = _log_probabilities(logits_of(ReferenceExecutor(load_spec(open_gguf(smollm2_path))), window))
    losses = [-logs[position - 1, window[position]] for position in range(257, 512)]
    expected = golden["f32_weights"]["running_ppl_after_chunk"][0]
    record_property("reference_perplexity_of_golden", float(np.exp(np.mean(losses)) / expected))
    assert abs(np.exp(np.mean(losses)) / expected - 1) < 1e-3
