"""Logits of the golden files, in one batch and token by token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of, pages_for, simple_step
from localllm.models import load_spec

_OWN = Path(__file__).resolve().parents[2] / "data" / "models"
_SHARED = os.environ.get("LOCALLLM_FIXTURES")


def _models() -> list[Path]:
    """The files that travel with the repository, and all golden ones where LOCALLLM_FIXTURES says where they are."""
    shared = (
        []
        if _SHARED is None
        else [p for kind in ("arch", "quant") for p in Path(_SHARED, "golden", kind).glob("*.gguf")]
    )
    return sorted(_OWN.glob("*.gguf")) + sorted(shared)


@dataclass(frozen=True, slots=True)
class Golden:
    """A model file with its tokens and the exact logits of all of them.

    The logits that travel with the repository are float32, most of them with norms and angles in float32.
    """

    path: Path
    tokens: npt.NDArray[np.int32]
    logits: npt.NDArray[np.floating]


@pytest.fixture(params=_models(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def golden(request: pytest.FixtureRequest) -> Golden:
    path: Path = request.param
    with np.load(path.with_suffix(".npz")) as data:
        return Golden(path, data["tokens"], data["logits" if "logits" in data else "logits_exact"])


def test_logits_in_one_batch_and_token_by_token(golden: Golden) -> None:
    executor = ReferenceExecutor(load_spec(open_gguf(golden.path)))
    tokens, prefill = golden.tokens, 17 if len(golden.tokens) > 17 else 9
    np.testing.assert_allclose(logits_of(executor, tokens), golden.logits, rtol=0, atol=1e-4)
    executor.allocate_kv(pages_for(executor.layout, len(tokens)), "f32")
    rows = [executor.forward(simple_step(executor.layout, tokens[:prefill]))]
    for position in range(prefill, len(tokens)):
        rows.append(executor.forward(simple_step(executor.layout, tokens[position : position + 1], position)))
    np.testing.assert_allclose(np.concatenate(rows), golden.logits, rtol=0, atol=1e-4)


def test_logits_in_double_precision(golden: Golden) -> None:
    executor = ReferenceExecutor(load_spec(open_gguf(golden.path)), dtype=np.float64)
    executor.allocate_kv(pages_for(executor.layout, len(golden.tokens)), "f32")
    logits = executor.forward_exact(simple_step(executor.layout, golden.tokens))
    assert logits.dtype == np.float64
    np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=1e-6 if golden.logits.dtype == np.float64 else 2e-5)


def test_half_precision_cache_costs_little(golden: Golden) -> None:
    executor = ReferenceExecutor(load_spec(open_gguf(golden.path)))
    logits = logits_of(executor, golden.tokens, kv_type="f16")
    error = np.abs(logits - golden.logits)
    assert 0 < error.max() < 0.05 or np.median(error.max(axis=1)) < 0.02  # a router may flip in a few rows


def test_all_files_of_the_repository_are_here() -> None:
    assert len(list(_OWN.glob("*.gguf"))) >= 60
