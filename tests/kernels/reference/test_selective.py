"""H2O and SparQ in the reference executor against their papers' algorithms written down once more, with masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.reference.heavy_hitters import KeyScores, attend_heavy_hitters
from localllm.kernels.reference.query_sparse import attend_query_sparse
from localllm.kernels.registry import open_executor
from localllm.kernels.selective import HeavyHitters, QuerySparse, SelectivePolicy
from localllm.kernels.single_sequence import allocate_for, chunks, logits_of, simple_step
from localllm.kernels.spec import Attention, ModelSpec
from localllm.kernels.step import TreeMask
from localllm.models import load_spec

Floats = npt.NDArray[np.float64]
TOKENS = np.random.default_rng(6).integers(0, 90, 90)


@pytest.fixture(scope="module")
def spec(data_folder: Path) -> Iterator[ModelSpec]:
    with open_gguf(data_folder / "models" / "llama_gqa_tied_f16.gguf") as file:
        yield load_spec(file)


def _random(block: Attention, rows: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(8)
    query = 3 * random.standard_normal((rows, block.heads, block.key_dim))
    key = random.standard_normal((rows, block.kv_heads, block.key_dim))
    return query, key, random.standard_normal((rows, block.kv_heads, block.value_dim))


def _softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return result


def _h2o_with_masks(block: Attention, policy: HeavyHitters, rotated: tuple[Floats, Floats, Floats]) -> Floats:
    """Nothing is ever overwritten: each KV head has a set of the tokens that are left."""
    query, key, value = rotated
    group = block.heads // block.kv_heads
    out = np.zeros((len(query), block.heads, block.value_dim))
    for kv_head in range(block.kv_heads):
        left: list[int] = []
        got = np.zeros(len(query))
        for row in range(len(query)):
            if len(left) == policy.tokens:
                old = [token for token in left if token <= row - policy.recent]
                left.remove(min(old, key=lambda token: got[token]))
            left.append(row)
            for head in range(kv_head * group, (kv_head + 1) * group):
                shares = _softmax(key[left, kv_head] @ query[row, head] * block.scale)
                got[left] += shares
                out[row, head] = shares @ value[left, kv_head]
    return out


@pytest.mark.parametrize(("tokens", "recent"), [(32, 16), (20, 1), (16, 15), (200, 10)])
def test_h2o_keeps_what_the_paper_keeps(tokens: int, recent: int, spec: ModelSpec) -> None:
    block, policy = spec.layers[0].attention, HeavyHitters(tokens, recent)
    assert isinstance(block, Attention)
    rotated = _random(block, 80)
    executor = ReferenceExecutor(spec, ExecutorOptions(selective=policy), dtype=np.float64)
    allocate_for(executor, 80, "f32", tokens)
    stored = executor._pages().layers[0]
    scores = KeyScores(len(stored.keys), block.kv_heads)
    outputs = []
    for start, stop in chunks(0, 80, 30, capacity=tokens):
        step = simple_step(executor.layout, TOKENS[start:stop], start, capacity=tokens)
        part = tuple(x[start:stop] for x in rotated)
        outputs.append(attend_heavy_hitters(policy, block, step, step.groups[0], stored, scores, part))
    np.testing.assert_allclose(np.concatenate(outputs), _h2o_with_masks(block, policy, rotated), atol=1e-12)


def _sparq(block: Attention, policy: QuerySparse, query: Floats, key: Floats, value: Floats) -> Floats:
    """One row over one KV head's keys [L, d], step by step as in the paper."""
    components = set(sorted(range(block.key_dim), key=lambda i: -np.abs(query[:, i]).sum())[: policy.components])
    mask = np.array([i in components for i in range(block.key_dim)])
    estimates = []
    for own in query:
        share = np.abs(own[mask]).sum() / np.abs(own).sum()
        estimates.append(_softmax(key @ np.where(mask, own, 0) * block.scale / np.sqrt(share)))
    total = np.sum(estimates, axis=0)
    ranked = sorted(range(len(key)), key=lambda i: (i < len(key) - policy.recent, -total[i]))[: policy.tokens]
    result = []
    for own, estimate in zip(query, estimates, strict=True):
        covered = estimate[ranked].sum()
        exact = _softmax(key[ranked] @ own * block.scale) @ value[ranked]
        result.append(covered * exact + (1 - covered) * value.mean(axis=0))
    return np.array(result)


@pytest.mark.parametrize("policy", [QuerySparse(4, 12, 3), QuerySparse(1, 16, 0), QuerySparse(8, 9, 9)])
def test_sparq_reads_what_the_paper_reads(policy: QuerySparse, spec: ModelSpec) -> None:
    block = spec.layers[0].attention
    assert isinstance(block, Attention)
    query, key, value = _random(block, 40)
    visible = np.arange(40) <= np.arange(40)[:, None]
    actual = attend_query_sparse(policy, block, query, key, value, visible)
    group = block.heads // block.kv_heads
    for row in range(policy.tokens, 40):
        for kv_head in range(block.kv_heads):
            heads = slice(kv_head * group, (kv_head + 1) * group)
            seen = slice(0, row + 1)
            expected = _sparq(block, policy, query[row, heads], key[seen, kv_head], value[seen, kv_head])
            np.testing.assert_allclose(actual[row, heads], expected, atol=1e-12)


@pytest.mark.parametrize("policy", [HeavyHitters(96, 48), QuerySparse(1, 96, 0)])
def test_nothing_is_lost_while_there_is_room(policy: SelectivePolicy, spec: ModelSpec) -> None:
    capacity = policy.tokens if isinstance(policy, HeavyHitters) else None
    selective = ReferenceExecutor(spec, ExecutorOptions(selective=policy), dtype=np.float64)
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    np.testing.assert_allclose(logits_of(selective, TOKENS, capacity=capacity), expected, atol=1e-5)


@pytest.mark.parametrize("policy", [HeavyHitters(32, 16), QuerySparse(4, 24, 8)])
def test_the_same_in_any_chunks(policy: SelectivePolicy, spec: ModelSpec) -> None:
    capacity = policy.tokens if isinstance(policy, HeavyHitters) else None
    executor = ReferenceExecutor(spec, ExecutorOptions(selective=policy), dtype=np.float64)
    expected = logits_of(executor, TOKENS, capacity=capacity)
    np.testing.assert_allclose(logits_of(executor, TOKENS, chunk=7, capacity=capacity), expected, atol=1e-5)


def test_what_cannot_be_done_is_an_error(spec: ModelSpec) -> None:
    options = ExecutorOptions(selective=HeavyHitters(32, 16))
    with pytest.raises(UnsupportedModelError, match="GPU"):
        open_executor(spec, "cuda", options)
    executor = ReferenceExecutor(spec, options)
    with pytest.raises(UnsupportedModelError, match="float pages"):
        executor.allocate_kv((4,), "q8", (9,))
    executor.allocate_kv((4,), "f32")
    step = simple_step(executor.layout, TOKENS[:3], capacity=32)
    with pytest.raises(ExecutionError, match="trees"):
        executor.forward(replace(step, tree=TreeMask(np.eye(3, dtype=np.bool_))))
    latent = replace(spec, layers=tuple(replace(x, attention=replace(x.attention, window=9)) for x in spec.layers))
    with pytest.raises(UnsupportedModelError, match="window"):
        ReferenceExecutor(latent, options)
