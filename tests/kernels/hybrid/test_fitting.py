"""No budget is overshot, none fails, and a larger one never holds less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localllm.kernels.hybrid.fitting import fit_placement, unit_rates
from localllm.kernels.hybrid.halves import Split, SplitExperts, split_model
from localllm.kernels.hybrid.placement import Placement
from localllm.kernels.spec import Activation, FeedForward, Layer, MixtureOfExperts, ModelSpec

FIXED = 10_000  # everything that is not a feed-forward block


def _model(spec_maker: Callable[..., Any], kind: str) -> ModelSpec:
    maker = spec_maker()
    blocks = {
        "dense": maker.feed_forward(320),
        "relu": maker.feed_forward(320, activation=Activation.RELU),
        "experts": maker.experts(count=9),
    }
    made: ModelSpec = maker.model(*(Layer(maker.attention(), blocks[kind]) for _ in range(3)))
    return made


def _bytes(block: FeedForward | MixtureOfExperts | None) -> int:
    if block is None:
        return 0
    return sum(linear.weight.nbytes for linear in (block.gate, block.up, block.down) if linear is not None)


def _planned(spec: ModelSpec) -> Callable[[Mapping[int, Split]], int]:
    def planned(splits: Mapping[int, Split]) -> int:
        total = FIXED
        for index, layer in enumerate(spec.layers):
            split = splits.get(index)
            total += _bytes(layer.feed_forward if split is None else split.hot)
            if split is not None and not isinstance(split, SplitExperts) and split.gate is not None:
                hot_gate = 0 if split.hot is None or split.hot.gate is None else split.hot.gate.weight.nbytes
                total += split.gate.weight.nbytes - hot_gate
        return total

    return planned


@pytest.mark.parametrize("kind", ["dense", "relu", "experts"])
def test_twenty_budgets_from_nothing_to_everything(kind: str, spec_maker: Callable[..., Any]) -> None:
    spec, whole = _model(spec_maker, kind), 0
    planned = _planned(spec)
    full = planned({})
    before = -1
    for step in range(21):
        budget = full * step // 20
        placement = fit_placement(spec, budget, planned)
        if placement is None:
            assert budget < FIXED or kind == "relu"
            continue
        used = planned(split_model(spec, placement))
        assert used <= budget
        assert used >= before
        before = used
        whole += used == full
    assert whole >= 1


def test_gates_come_before_units_and_all_layers_get_the_same(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, "relu")
    planned, gate = _planned(spec), 320 * 64 * 4
    placement = fit_placement(spec, FIXED + 3 * gate, planned)
    assert placement is not None
    assert all(layer.gate and not layer.units for layer in placement.layers)
    placement = fit_placement(spec, FIXED + 3 * gate // 2, planned)
    assert placement is not None
    assert not any(layer.gate for layer in placement.layers)
    assert len({len(layer.units) for layer in placement.layers}) == 1


def test_the_most_often_read_units_are_taken(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, "experts")
    rates = [np.array([1.0, 5, 2, 9, 0, 7, 3, 3, 3])] * 3
    placement = fit_placement(spec, FIXED + _planned(spec)({}) // 3, _planned(spec), rates=rates)
    assert placement is not None
    assert placement.layers[0].units == (1, 3, 5)


def test_rates_of_neurons_become_rates_of_groups(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    blocks = (maker.feed_forward(100), maker.feed_forward(64), maker.experts(count=3), maker.feed_forward(64))
    spec = maker.model(*(Layer(maker.attention(), block) for block in blocks))
    found = unit_rates(spec, [np.ones(100), None, np.array([0.5, 0.1, 0.4]), np.ones(7)])
    assert found[0] is not None
    assert found[2] is not None
    np.testing.assert_array_equal(found[0], [32, 32, 32, 4])
    np.testing.assert_array_equal(found[2], [0.5, 0.1, 0.4])
    assert found[1] is None
    assert found[3] is None


def test_planned_bytes_are_allocated_on_the_card(spec_maker: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from localllm.kernels.executor import ExecutorOptions, LoadProgress
    from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
    from localllm.kernels.hybrid.executor import HybridExecutor
    from localllm.kernels.hybrid.gpu_device import fit_gpu
    from localllm.kernels.hybrid.opening import open_hybrid

    spec = _model(spec_maker, "relu")
    options = ExecutorOptions(threads=1, max_rows=8)
    full = GpuExecutor(spec, options).planned.total
    found: list[Placement | None] = [fit_gpu(spec, options, full * step // 20) for step in range(21)]
    assert found[0] is None
    assert found[-1] is not None
    dense = _model(spec_maker, "dense")
    size = GpuExecutor(dense, options).planned.total - 1
    less, pieces = (fit_gpu(dense, options, size, GpuOptions(piece_bytes=each)) for each in (0, 30_000))
    assert less is not None
    assert pieces is not None
    assert len(pieces.layers[0].units) < len(less.layers[0].units)  # the two slots take their share
    sizes = [len(placement.layers[0].units) for placement in found if placement is not None]
    assert sizes == sorted(sizes)
    smallest = next(step for step, placement in enumerate(found) if placement is not None)
    for step in {smallest, (smallest + 20) // 2, 20}:
        budget, told = full * step // 20, list[LoadProgress]()
        executor = open_hybrid(spec, replace(options, vram=budget, progress=told.append))
        assert isinstance(executor, HybridExecutor)
        assert any("no profile" in event.phase for event in told) == (step < 20)
        memory = executor.memory()
        assert memory.weights["cuda"] + memory.workspace["cuda"] <= budget
        executor.close()


def test_what_does_not_fit_on_the_card_is_divided(
    spec_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from localllm.kernels import registry
    from localllm.kernels.cpu.executor import CpuExecutor
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.gpu.executor import GpuExecutor
    from localllm.kernels.hybrid.executor import HybridExecutor

    monkeypatch.setattr(registry, "_has_card", lambda: True)
    spec = _model(spec_maker, "dense")
    options = ExecutorOptions(threads=1, max_rows=4, kv_pages=(2,))
    full = GpuExecutor(spec, options).planned.total
    kinds = {1 << 30: GpuExecutor, full: HybridExecutor, 1000: CpuExecutor}
    for vram, kind in kinds.items():
        executor = registry.open_executor(spec, "auto", replace(options, vram=vram))
        assert isinstance(executor, kind)
        executor.close()


def test_without_its_packages_the_hybrid_says_what_to_install(
    spec_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from localllm.kernels import registry
    from localllm.kernels.errors import UnsupportedModelError
    from localllm.kernels.executor import ExecutorOptions

    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedModelError, match="needs torch and triton"):
        registry.open_executor(_model(spec_maker, "dense"), "hybrid", ExecutorOptions())
