"""A card (or Triton's interpreter in its place) and the CPU together give what the reference gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.gpu_device import GpuDevice
from localllm.kernels.hybrid.placement import uniform_placement
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import simple_step
from localllm.kernels.spec import Activation, FeedForward, Layer, MixtureOfExperts, ModelSpec

OPTIONS = ExecutorOptions(threads=1, max_rows=8)


def _model(spec_maker: Callable[..., Any], kind: str, parallel: bool) -> ModelSpec:
    maker = spec_maker()
    block: FeedForward | MixtureOfExperts = maker.feed_forward(64)
    if kind == "relu":
        block = maker.feed_forward(64, activation=Activation.RELU)
    elif kind == "experts":
        block = maker.experts(count=4, shared=maker.feed_forward(32, norm=None), shared_gate=maker.linear(1, 64))
    made: ModelSpec = maker.model(Layer(maker.attention(), block, parallel=parallel))
    return made


@pytest.mark.parametrize(
    ("kind", "parallel", "share"),
    [
        ("relu", False, 0.5),
        ("experts", False, 0.5),
        ("dense", True, 0.5),
        ("dense", True, 0.0),
        ("relu", True, 0.5),
        ("experts", True, 0.5),
    ],
)
def test_the_card_and_the_cpu_give_what_the_reference_gives(
    kind: str, parallel: bool, share: float, spec_maker: Callable[..., Any]
) -> None:
    spec = _model(spec_maker, kind, parallel)
    made = HybridExecutor(spec, uniform_placement(spec, share), GpuDevice, OPTIONS)
    reference = ReferenceExecutor(spec, OPTIONS)
    for executor in (made, reference):
        executor.allocate_kv((2,), "f32", (0,))
    for start, rows in ((0, 6), (6, 1)):
        step = simple_step(made.layout, np.arange(3, 3 + rows), start)
        np.testing.assert_allclose(made.forward(step), reference.forward(step), rtol=0, atol=1e-3)
    events = made.timeline()
    assert {event["name"] for event in events if event["ph"] == "X"} == {
        "layer 0: hot half, then waiting",
        "layer 0: cold half",
    }
    made.close()
