"""Mode turbo of a divided model: thresholds hold for its cold neurons only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.hybrid.device import CpuDevice
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.placement import LayerPlacement, Placement, uniform_placement
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import Activation, Layer
from localllm.kernels.turbo import LayerTurbo, Scores, Sketch, Turbo

TOKENS = np.random.default_rng(4).integers(3, 60, 20).astype(np.int32)


def _run(executor: Any) -> Any:
    try:
        return logits_of(executor, TOKENS, chunk=7).copy()
    finally:
        executor.close()


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.RELU])
def test_only_cold_neurons_are_left_out(activation: Activation, spec_maker: Callable[..., Any]) -> None:
    """160 neurons are 5 groups: as if the thresholds of the hot ones were 0 in a model that is not divided."""
    maker = spec_maker()
    layers = [Layer(maker.attention(), maker.feed_forward(160, activation=activation)) for _ in range(2)]
    spec = maker.model(*layers)
    rng = np.random.default_rng(1)
    thresholds = [rng.random(160).astype(np.float32) * np.float32(0.4) for _ in layers]
    hot = (0, 3)
    of_cold = []
    for values in thresholds:
        own = values.reshape(5, 32).copy()
        own[list(hot)] = 0
        of_cold.append(own.reshape(-1))
    turbo, expected = (Turbo(tuple(LayerTurbo(Scores.GATE, one) for one in values)) for values in (thresholds, of_cold))
    options = ExecutorOptions(threads=1, max_rows=16, mode="turbo", turbo=turbo)
    whole = _run(CpuExecutor(spec, replace(options, turbo=expected)))
    for gate in (True, False) if activation is Activation.RELU else (False,):
        placement = Placement(tuple(LayerPlacement(hot, gate) for _ in layers))
        found = _run(HybridExecutor(spec, placement, CpuDevice, options))
        assert np.abs(found - whole).max() <= 1e-4 * np.abs(whole).max()
    exact = _run(CpuExecutor(spec, replace(options, mode="exact", turbo=None)))
    assert np.abs(exact - whole).max() > 0.01


def test_guesses_are_not_used_and_a_word_says_so(
    spec_maker: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    maker = spec_maker()
    spec = maker.model(Layer(maker.attention(), maker.feed_forward(160, activation=Activation.RELU)))
    zeros = np.zeros(160, np.float32)
    sketch = Sketch(zeros, zeros, np.arange(32, dtype=np.int32), np.zeros((160, 34), np.uint8))
    turbo = Turbo((LayerTurbo(Scores.SKETCH, np.full(160, np.inf, np.float32), sketch),))
    options = ExecutorOptions(threads=1, max_rows=16, mode="turbo", turbo=turbo)
    found = _run(HybridExecutor(spec, uniform_placement(spec, 0.5), CpuDevice, options))
    exact = _run(CpuExecutor(spec, replace(options, mode="sparse")))
    assert np.abs(found - exact).max() <= 1e-4 * np.abs(exact).max()
    assert "1 layers run exactly" in caplog.text
