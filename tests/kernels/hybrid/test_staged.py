"""Layers that are wholly on the CPU: logits, pages and budgets of a model whose last layers are on a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.device import open_gpu
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.kv_pools import cache_bytes
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.gpu_device import fit_gpu
from localllm.kernels.hybrid.opening import fit_layers, open_hybrid
from localllm.kernels.hybrid.staged import StagedExecutor, back_of, front_of, groups_of, placement_of
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import simple_step
from localllm.kernels.spec import Layer, ModelSpec
from localllm.kernels.step import Output, PageMove

OPTIONS = ExecutorOptions(threads=1, max_rows=8)


def _model(spec_maker: Callable[..., Any], windows: tuple[int | None, ...]) -> ModelSpec:
    maker = spec_maker()
    layers = [Layer(maker.attention(window=window), maker.feed_forward(64), residual_scale=0.8) for window in windows]
    made: ModelSpec = maker.model(*layers, embed={"norm": maker.norm(), "scale": 3.0})
    return made


def _staged(spec: ModelSpec, count: int) -> StagedExecutor:
    return StagedExecutor(spec, count, lambda part, given: GpuExecutor(part, given, GpuOptions(entered=True)), OPTIONS)


def test_first_layers_on_the_cpu_give_what_the_reference_gives(spec_maker: Callable[..., Any]) -> None:
    """Two cache groups, of which the CPU has one and the card both; a page is moved, saved and put back."""
    spec = _model(spec_maker, (None, 5, None))
    made, reference = _staged(spec, 1), ReferenceExecutor(spec, OPTIONS)
    assert [group.window for group in made.layout.groups] == [None, 5]
    for executor in (made, reference):
        executor.allocate_kv((3, 3), "f32", (0, 0))
    for start, rows in ((0, 7), (7, 1)):
        step = simple_step(made.layout, np.arange(3, 3 + rows), start)
        np.testing.assert_allclose(made.forward(step), reference.forward(step), rtol=0, atol=1e-3)
    step = simple_step(made.layout, np.array([9]), 8)
    hidden = replace(step, output=Output.HIDDEN)
    np.testing.assert_allclose(made.forward(hidden), reference.forward(hidden), rtol=0, atol=1e-3)
    expected = made.forward(step).copy()
    for group in range(2):
        page = made.read_page(group, 0)
        made.write_page(group, 0, bytes(len(page)))
        assert np.abs(made.forward(step) - expected).max() > 1e-3
        made.write_page(group, 0, page)
    np.testing.assert_array_equal(made.forward(step), expected)
    moved = replace(step, moves=(PageMove(0, 0, 2), PageMove(1, 0, 2)))
    tables = tuple(
        replace(group, pages=np.full_like(group.pages, 2), slots=group.slots + 2 * 16) for group in step.groups
    )
    np.testing.assert_array_equal(made.forward(replace(moved, groups=tables)), expected)
    memory = made.memory()
    assert min(memory.kv["cpu"], memory.kv["cuda"], memory.weights["cpu"], memory.weights["cuda"]) > 0
    assert "2 of 3 layers on" in made.describe()
    placement = placement_of(made)
    assert placement is not None
    assert [layer.attention for layer in placement.layers] == [False, True, True]
    made.close()
    made.close()


def test_parts_of_a_model(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, (5, None, 5))
    front, back = front_of(spec, 1), back_of(spec, 1)
    assert (len(front.layers), len(back.layers)) == (1, 2)
    assert groups_of(spec, front) == (0,)
    assert groups_of(spec, back) == (1, 0)
    assert front.head.linear.weight.nbytes < spec.head.linear.weight.nbytes
    assert back.embed.table.nbytes < spec.embed.table.nbytes


def test_twenty_budgets_from_nothing_to_everything_open(spec_maker: Callable[..., Any]) -> None:
    """First the CPU alone, then more and more whole layers, then halves of all; never a byte too much."""
    spec = _model(spec_maker, (None,) * 4)
    options = replace(OPTIONS, kv_pages=(4,), kv_type="f32")
    full = GpuExecutor(spec, options).planned.total + 200_000
    budgets = [full * step // 20 for step in range(21)]
    layers = [fit_layers(spec, options, budget) for budget in budgets]
    assert layers == sorted(layers)
    cache = cache_bytes(open_gpu(), KVLayout.of(spec), options)
    halves = [fit_gpu(spec, options, budget - cache) is not None for budget in budgets]
    assert halves == sorted(halves)
    some, all_of_some = layers.index(1), halves.index(True)
    assert 0 < some < all_of_some < 20
    kinds = {0: CpuExecutor, some: StagedExecutor, all_of_some - 1: StagedExecutor, 20: HybridExecutor}
    for step, kind in kinds.items():
        executor = open_hybrid(spec, replace(options, vram=budgets[step]))
        assert isinstance(executor, kind)
        executor.allocate_kv((4,), "f32", (0,))
        memory = executor.memory()
        used = sum(part.get("cuda", 0) for part in (memory.weights, memory.kv, memory.workspace))
        assert used <= budgets[step]
        executor.close()
