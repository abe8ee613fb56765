"""H2O and SparQ on the CPU: as the reference computes them, and the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import KVType
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.selective import HeavyHitters, QuerySparse, SelectivePolicy
from localllm.kernels.single_sequence import logits_of, simple_step
from localllm.kernels.spec import Layer, ModelSpec
from localllm.kernels.step import TreeMask

TOKENS = np.random.default_rng(4).integers(0, 96, 400).astype(np.int32)
POLICIES: list[SelectivePolicy] = [
    HeavyHitters(40, 20),
    HeavyHitters(300, 7),
    QuerySparse(4, 30, 8),
    QuerySparse(9, 17, 0),
]


def _models(maker: Any) -> dict[str, ModelSpec]:
    wide = {"heads": 6, "kv_heads": 2}
    sharp = {"scale": 1.5}  # so that attention is uneven, as in real models
    return {
        "grouped with a window": maker.model(
            Layer(maker.attention(**wide, **sharp), maker.feed_forward()),
            Layer(maker.attention(**wide, window=40), maker.feed_forward()),
            Layer(maker.attention(**wide, **sharp), maker.feed_forward()),
        ),
        "odd sizes": maker.model(
            Layer(maker.attention(heads=3, kv_heads=3, dim=20, value_dim=12, **sharp), maker.feed_forward()),
        ),
        "one head for all": maker.model(
            Layer(maker.attention(heads=4, kv_heads=1, dim=48, softcap=20.0, **sharp), maker.feed_forward()),
        ),
    }


def _capacity(policy: SelectivePolicy) -> int | None:
    return policy.tokens if isinstance(policy, HeavyHitters) else None


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", ["grouped with a window", "odd sizes", "one head for all"])
def test_as_the_reference(name: str, policy: SelectivePolicy, spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())[name]
    executor = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=48, selective=policy))
    kv_type: KVType = "f16" if name == "odd sizes" else "f32"
    reference = ReferenceExecutor(spec, ExecutorOptions(selective=policy), dtype=np.float32)
    expected = logits_of(reference, TOKENS, kv_type=kv_type, capacity=_capacity(policy))
    actual = logits_of(executor, TOKENS, kv_type=kv_type, capacity=_capacity(policy))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-3)
    assert np.median(np.abs(actual - expected)) < 1e-5
    dense = logits_of(ReferenceExecutor(spec), TOKENS, kv_type=kv_type)
    assert np.abs(expected - dense).max() > 0.05
    executor.close()


@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2]], ids=str)
def test_rows_are_equal_however_they_are_grouped(policy: SelectivePolicy, spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())["grouped with a window"]
    executor = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=48, selective=policy))
    expected = logits_of(executor, TOKENS[:120], capacity=_capacity(policy))
    other = CpuExecutor(spec, ExecutorOptions(threads=3, max_rows=48, selective=policy))
    for chunk in (1, 7, 48):
        actual = logits_of(other, TOKENS[:120], chunk=chunk, capacity=_capacity(policy))
        np.testing.assert_array_equal(actual, expected)
    executor.close()
    other.close()


def test_written_pages_are_summed_anew(spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())["odd sizes"]
    executor = CpuExecutor(spec, ExecutorOptions(threads=1, max_rows=64, selective=QuerySparse(4, 20, 5)))
    expected = logits_of(executor, TOKENS[:100], kv_type="f16", chunk=50)[-1]
    saved = [executor.read_page(0, page) for page in range(7)]
    executor.allocate_kv((7,), "f16", (0,))
    for page, data in enumerate(saved):
        executor.write_page(0, page, data)
    again = executor.forward(simple_step(executor.layout, TOKENS[99:100], 99))
    np.testing.assert_array_equal(again[0], expected)
    executor.close()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_model_that_makes_nothing_but_nan_ends_with_nan(
    policy: SelectivePolicy, spec_maker: Callable[..., Any]
) -> None:
    maker = spec_maker()
    spec = maker.model(Layer(maker.attention(scale=float("nan")), maker.feed_forward()))
    executor = CpuExecutor(spec, ExecutorOptions(threads=1, max_rows=48, selective=policy))
    assert np.isnan(logits_of(executor, TOKENS[:330], capacity=_capacity(policy))[-1]).all()
    executor.close()


def test_what_cannot_be_done_is_an_error(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    options = ExecutorOptions(threads=1, max_rows=8, selective=QuerySparse(4, 20, 5))
    latent = maker.model(Layer(maker.latent_attention(), maker.feed_forward()))
    with pytest.raises(UnsupportedModelError, match="latents"):
        CpuExecutor(latent, options)
    executor = CpuExecutor(_models(maker)["odd sizes"], options)
    with pytest.raises(UnsupportedModelError, match="float pages"):
        executor.allocate_kv((4,), "q4", (9,))
    executor.allocate_kv((4,), "f16", (0,))
    step = replace(simple_step(executor.layout, TOKENS[:3]), tree=TreeMask(np.eye(3, dtype=np.bool_)))
    with pytest.raises(ExecutionError, match="trees"):
        executor.forward(step)
    executor.close()
