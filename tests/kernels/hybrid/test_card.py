"""A card (or Triton's interpreter in its place) and the CPU together give what the reference gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.executor import GpuOptions
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.gpu_device import GpuDevice, cold_products, has_room_twice
from localllm.kernels.hybrid.halves import split_model
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
        ("dense", True, 0.0),
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
    for start, rows in ((0, 6), (6, 1), (7, 3)):
        step = simple_step(made.layout, np.arange(3, 3 + rows), start)
        np.testing.assert_allclose(made.forward(step), reference.forward(step), rtol=0, atol=1e-3)
    events = made.timeline()
    assert {event["name"] for event in events if event["ph"] == "X"} == {
        "layer 0: hot half, then waiting",
        "layer 0: cold half",
    }
    made.close()


@pytest.mark.parametrize(
    ("kind", "share", "parallel"),
    [("relu", 0.4, True), ("relu up", 0.0, False), ("experts", 0.0, False), ("early", 0.4, False)],
)
def test_cold_weights_cross_in_pieces_for_steps_of_many_rows(
    kind: str, share: float, parallel: bool, spec_maker: Callable[..., Any]
) -> None:
    """More pieces than slots; then a row is decoded by both halves over the keys that the card alone has written."""
    maker = spec_maker()
    relu = maker.feed_forward(160, activation=Activation.RELU)
    blocks = {
        "relu": lambda: replace(relu, gate=maker.linear(160, 64, bias=True)),
        "relu up": lambda: replace(relu, up=maker.linear(160, 64, bias=True)),
        "experts": lambda: maker.experts(count=6, top_k=1, shared=maker.feed_forward(32, norm=None)),
        "early": lambda: maker.experts(count=12, top_k=1, router_reads_layer_input=True, bias=True),
    }
    spec = maker.model(Layer(maker.attention(), blocks[kind](), residual_scale=0.7, parallel=parallel))
    options = GpuOptions(piece_bytes=30_000)
    made = HybridExecutor(spec, uniform_placement(spec, share), partial(GpuDevice, gpu_options=options), OPTIONS)
    device = made._device
    assert isinstance(device, GpuDevice)
    streamed = device._gpu.streamed
    assert streamed is not None
    assert len(streamed.pieces) > 2
    device.stream_from = 6
    reference = ReferenceExecutor(spec, OPTIONS)
    for executor in (made, reference):
        executor.allocate_kv((2,), "f32", (0,))
    for start, rows in ((0, 8), (8, 7), (15, 1)):
        step = simple_step(made.layout, np.arange(3, 3 + rows), start)
        np.testing.assert_allclose(made.forward(step), reference.forward(step), rtol=0, atol=1e-4)
        assert bool(made.timeline()) is (rows < 6)
    assert "streamed for steps of 6 rows" in made.describe()
    made.close()


def test_only_experts_that_are_hit_cross(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    spec = maker.model(Layer(maker.attention(), maker.experts(count=12, top_k=1)))
    options = GpuOptions(piece_bytes=1 << 20)
    made = HybridExecutor(spec, uniform_placement(spec, 0.0), partial(GpuDevice, gpu_options=options), OPTIONS)
    device = made._device
    assert isinstance(device, GpuDevice)
    device.stream_from = 6
    streamed = device._gpu.streamed
    assert streamed is not None
    slot = streamed.slot(0)
    slot.zero_()
    made.allocate_kv((2,), "f32", (0,))
    made.forward(simple_step(made.layout, np.full(6, 3)))  # the same token, so few experts
    crossed = int((slot[: streamed.pieces[0].words] != 0).sum())
    assert 0 < crossed < streamed.pieces[0].words * 0.9
    made.close()


def test_what_streaming_costs_is_said_from_sizes(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    spec = maker.model(
        Layer(maker.attention(), maker.feed_forward(160)), Layer(maker.attention(), maker.experts(count=8, top_k=2))
    )
    placement = uniform_placement(spec, 0.5)
    products, hit = cold_products(split_model(spec, placement))
    assert (products, hit) == (3 * 96 * 64 + 2 * 3 * 32 * 64 / 2, 0.25)
    cold = 3 * 4 * (96 * 64 + 4 * 32 * 64)
    assert has_room_twice(spec, placement, None)
    assert has_room_twice(spec, placement, int(2.6 * cold))
    assert not has_room_twice(spec, placement, int(1.9 * cold))


def test_an_expert_moves_to_the_card_and_back_by_tables(spec_maker: Callable[..., Any]) -> None:
    """Before and after every swap the halves, and what is streamed, give what the reference gives."""
    maker = spec_maker()
    spec = maker.model(Layer(maker.attention(), maker.experts(count=6, top_k=2, bias=True)))
    options = GpuOptions(piece_bytes=30_000, moving=True)
    make = partial(GpuDevice, gpu_options=options)
    made = HybridExecutor(spec, uniform_placement(spec, 0.4), make, OPTIONS, adaptive=True)
    made._device.stream_from = 6
    reference = ReferenceExecutor(spec, OPTIONS)
    for executor in (made, reference):
        executor.allocate_kv((2,), "f32", (0,))
    swapper = made.swapper
    assert swapper is not None
    for start, rows in ((0, 6), (6, 6), (12, 1), (13, 1)):
        if start:
            made.finish_swaps()  # the policy's own, if it has begun one
            residence = swapper.residence
            incoming, outgoing = int(np.flatnonzero(residence.cold[0])[-1]), residence.on_device(0)[0]
            swapper.begin([residence.swap(0, incoming, outgoing)])
            made.finish_swaps()
            assert incoming in made.placement.layers[0].units
        step = simple_step(made.layout, np.arange(3, 3 + rows) + start, start)
        np.testing.assert_allclose(made.forward(step), reference.forward(step), rtol=0, atol=1e-4)
    assert swapper.swaps >= 3
    assert swapper.popularity.scores.sum() == pytest.approx(14 * 2, rel=0.05)  # every choice counts
    made.close()
