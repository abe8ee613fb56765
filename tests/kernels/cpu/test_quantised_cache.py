"""Quantised KV caches: as the reference computes them, the same bits in any batch, and as small as promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.cpu.page_types import HALF_PAGES, PageShape
from localllm.kernels.cpu.quantised_pages import QuantisedPages
from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.executor import Executor, ExecutorOptions
from localllm.kernels.kv_layout import PAGE_SIZE, KVType
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import allocate_for, chunks, logits_of, simple_step
from localllm.kernels.spec import Layer, ModelSpec
from localllm.kernels.step import GroupTables, PageMove

TOKENS = np.random.default_rng(4).integers(0, 96, 700).astype(np.int32)
TYPES: list[KVType] = ["q8", "q4", "q2"]


def _models(maker: Any) -> dict[str, ModelSpec]:
    wide = {"heads": 6, "kv_heads": 2}
    return {
        "grouped with a window": maker.model(
            Layer(maker.attention(**wide), maker.feed_forward()),
            Layer(maker.attention(**wide, window=40), maker.feed_forward()),
        ),
        "odd sizes": maker.model(
            Layer(maker.attention(heads=3, kv_heads=3, dim=20, value_dim=12), maker.feed_forward()),
        ),
        "several value groups": maker.model(
            Layer(maker.attention(heads=2, kv_heads=1, dim=144, softcap=20.0), maker.feed_forward()),
        ),
        "learned sinks": maker.model(
            Layer(maker.attention(heads=4, kv_heads=2, sinks=maker.tensor(4), rope=None), maker.feed_forward()),
        ),
    }


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("name", ["grouped with a window", "odd sizes", "several value groups", "learned sinks"])
def test_as_the_reference(name: str, kv_type: KVType, spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())[name]
    executor = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=48))
    expected = logits_of(ReferenceExecutor(spec), TOKENS[:300], kv_type=kv_type)
    actual = logits_of(executor, TOKENS[:300], kv_type=kv_type)
    # A float16 that is rounded the other way may move a code, by at most a step.
    assert np.median(np.abs(actual - expected)) < 1e-4
    np.testing.assert_allclose(actual, expected, rtol=0, atol={"q8": 0.02, "q4": 0.1, "q2": 0.5}[kv_type])
    executor.close()


@pytest.mark.parametrize("kv_type", TYPES)
def test_rows_are_equal_however_they_are_grouped(kv_type: KVType, spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())["grouped with a window"]
    executor = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=128))
    expected = logits_of(executor, TOKENS[:280], kv_type=kv_type)
    other = CpuExecutor(spec, ExecutorOptions(threads=3, max_rows=48))
    for chunk in (1, 3, 17, 48):
        np.testing.assert_array_equal(logits_of(other, TOKENS[:280], kv_type=kv_type, chunk=chunk), expected)
    executor.close()
    other.close()


def _evicted_step(executor: Executor, kv_type: KVType) -> npt.NDArray[np.float32]:
    """500 tokens, of which those from 16 to 175 are dropped; then two rows that see the sinks near."""
    allocate_for(executor, 512, kv_type)
    for start, stop in chunks(0, 500, 128, kv_type):
        executor.forward(simple_step(executor.layout, TOKENS[start:stop], start, kv_type=kv_type))
    whole = simple_step(executor.layout, TOKENS[500:502], 500, kv_type=kv_type)
    tables = whole.groups[0]
    gone = 10
    pages = np.delete(tables.pages, range(1, 1 + gone), axis=1)
    index = tables.row_index - gone * PAGE_SIZE
    evicted = GroupTables(pages, np.array([16], np.int32), np.array([16 * (1 + gone)]), tables.slots, index)
    step = replace(whole, groups=(evicted,), sink_positions=index.astype(np.int64))
    return executor.forward(step).copy()


@pytest.mark.parametrize("kv_type", TYPES)
def test_sinks_and_a_window(kv_type: KVType, spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    spec = maker.model(Layer(maker.attention(heads=6, kv_heads=2), maker.feed_forward()))
    executor = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=128))
    actual = _evicted_step(executor, kv_type)
    expected = _evicted_step(ReferenceExecutor(spec), kv_type)
    np.testing.assert_allclose(actual, expected, rtol=0, atol={"q8": 0.02, "q4": 0.1, "q2": 0.5}[kv_type])
    executor.close()


@pytest.mark.parametrize("kv_type", TYPES)
def test_pages_are_saved_and_restored(kv_type: KVType, spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())["grouped with a window"]
    executor = CpuExecutor(spec, ExecutorOptions(threads=1, max_rows=128))
    expected = logits_of(executor, TOKENS[:200], kv_type=kv_type)[190:]
    entries = [(group, page) for group in range(2) for page in (*range(1, 8), *(~p for p in range(9)))]
    saved = {place: executor.read_page(*place) for place in entries}
    allocate_for(executor, 200, kv_type)
    for place, data in saved.items():
        executor.write_page(*place, data)
    again = executor.forward(simple_step(executor.layout, TOKENS[190:200], 190, kv_type=kv_type))
    np.testing.assert_array_equal(again, expected)
    executor.close()


@pytest.mark.parametrize(("kv_type", "most"), [("q8", 0.53), ("q4", 0.28), ("q2", 0.16)])
@pytest.mark.parametrize(("heads", "dim"), [(3, 64), (1, 256), (8, 128)])
def test_size_of_pages(kv_type: KVType, most: float, heads: int, dim: int) -> None:
    half = PageShape(HALF_PAGES, heads, dim, dim).page_bytes
    assert PageShape(QuantisedPages(kv_type), heads, dim, dim).page_bytes <= most * half


@pytest.mark.parametrize("kv_type", TYPES)
def test_what_is_allocated(kv_type: KVType, spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())["grouped with a window"]
    executor = CpuExecutor(spec, ExecutorOptions(threads=1))
    executor.allocate_kv((10, 4), kv_type, (5, 3))
    sealed = PageShape(QuantisedPages(kv_type), 2, 16, 16).page_bytes
    recent = PageShape(HALF_PAGES, 2, 16, 16).page_bytes
    assert executor.memory().kv["cpu"] == 14 * sealed + 8 * recent
    executor.close()


def test_latent_attention_is_refused(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    spec = maker.model(Layer(maker.latent_attention(), maker.feed_forward()))
    executor: Executor
    for executor in (CpuExecutor(spec, ExecutorOptions(threads=1)), ReferenceExecutor(spec)):
        with pytest.raises(UnsupportedModelError, match=r"MLA.*q4"):
            executor.allocate_kv((4,), "q4", (4,))
        executor.close()


def test_copies_within_the_staging_pool(spec_maker: Callable[..., Any]) -> None:
    spec = _models(spec_maker())["odd sizes"]
    executor = CpuExecutor(spec, ExecutorOptions(threads=1))
    executor.allocate_kv((4,), "q8", (4,))
    executor.forward(simple_step(executor.layout, TOKENS[:20], kv_type="q8"))
    step = simple_step(executor.layout, TOKENS[20:21], 20, kv_type="q8")
    executor.forward(replace(step, moves=(PageMove(0, ~0, ~3),)))
    assert executor.read_page(0, ~3) == executor.read_page(0, ~0)
    executor.close()
