"""The planner against an exhaustive search, and its promises over all budgets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.gguf_io import QuantType, Tensor
from localllm.hardware import GraphicsCard, Hardware
from localllm.kernels.spec import Activation, Attention, Embed, FeedForward, Head, Layer, Linear, ModelSpec
from localllm.placement import FeedForwardParts, LayerParts, Machine, ModelParts, parts_of, plan_placement
from localllm.placement import planner as planner_module
from localllm.placement.cost import LayerPlacement, gpu_bytes_of, layer_seconds, predict
from localllm.placement.machine import BARRIER, card_facts

MACHINE = Machine(cpu_bandwidth=3e10, cpu_multiplications=2e11, cpu_bytes=10**11, gpu_bandwidth=3e11, gpu_bytes=10**12)


def model(
    layers: int = 3, units: int = 4, gate: int = 0, frequency: float | None = None, scale: int = 10**6
) -> ModelParts:
    rates = np.ones(units) if frequency is None else frequency * np.linspace(1.5, 0.5, units)
    layer = LayerParts(2 * scale, scale, FeedForwardParts(gate * scale, 3 * scale, rates, 0))
    return ModelParts((layer,) * layers, 5 * scale, 5 * scale, False, 100 * scale, 1024)


def best_split(parts: ModelParts, machine: Machine, room: int) -> float:
    """Least seconds over every number of units per layer, attention and all gates on the GPU."""
    choices = [range(layer.feed_forward.units + 1) for layer in parts.layers]
    best = float("inf")
    for counts in itertools.product(*choices):
        placements = [LayerPlacement(True, True, n) for n in counts]
        pairs = list(zip(parts.layers, placements, strict=True))
        if sum(gpu_bytes_of(layer, p) for layer, p in pairs) <= room:
            best = min(best, sum(layer_seconds(layer, p, machine) for layer, p in pairs))
    return best


@pytest.mark.parametrize("frequency", [None, 0.1, 0.5])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.75, 0.9])
def test_the_greedy_split_is_optimal(share: float, frequency: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "WORKSPACE", 0)
    machine = replace(MACHINE, round_trip=0.0, launch=0.0, barrier=0.0)
    parts = model(gate=2 if frequency else 0, frequency=frequency)
    budget = int(parts.nbytes * share)
    plan = planner_module._split(parts, machine, budget)
    assert plan is not None
    seconds = sum(layer_seconds(layer, p, machine) for layer, p in zip(parts.layers, plan.layers, strict=True))
    room = budget - (parts.head_bytes if plan.head_on_gpu else 0)
    assert seconds == pytest.approx(best_split(parts, machine, room), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from([0, 2]),
    st.floats(0, 1.2),
    st.floats(1e9, 1e12),
)
def test_no_budget_is_exceeded_and_none_fails(layers: int, units: int, gate: int, share: float, gpu: float) -> None:
    parts = model(layers, units, gate, 0.2 if gate else None, scale=10**8)
    budget = int((parts.nbytes + planner_module.WORKSPACE) * share)
    plan = plan_placement(parts, replace(MACHINE, gpu_bandwidth=gpu), vram=budget)
    assert 0 <= plan.gpu_bytes <= budget
    assert plan.prediction.decode > 0
    assert plan.cpu_bytes >= 0
    held = plan.gpu_bytes - (planner_module.WORKSPACE if plan.gpu_bytes else 0)
    assert held + plan.cpu_bytes == parts.nbytes


def test_more_memory_never_predicts_less() -> None:
    parts = model(layers=8, units=16, scale=10**8)
    full = parts.nbytes + planner_module.WORKSPACE
    speeds = [plan_placement(parts, MACHINE, vram=full * step // 20).prediction.decode for step in range(20)]
    assert speeds == sorted(speeds)
    everything = plan_placement(parts, MACHINE, vram=full)
    assert everything.shape == "gpu"
    assert everything.prediction.decode * planner_module.WORTH_A_SPLIT >= speeds[-1]
    assert plan_placement(parts, MACHINE, vram=0).shape == "cpu"


def test_gates_go_first_in_a_sparse_model() -> None:
    parts = model(layers=2, units=8, gate=6, frequency=0.1, scale=10**8)
    base = sum(layer.attention_bytes + layer.kv_bytes for layer in parts.layers) + parts.head_bytes
    gates = sum(layer.feed_forward.gate_bytes for layer in parts.layers)
    plan = plan_placement(parts, MACHINE, vram=planner_module.WORKSPACE + base + gates)
    assert all(p.gate for p in plan.layers)
    assert all(p.units == 0 for p in plan.layers)


def test_what_was_measured_on_a_card_is_predicted() -> None:
    """A 7B shape in Q4_0, half of it on an H200 beside 16 cores: 25.4 ms dense, 6.7 ms where 10.5% of neurons fire."""
    machine = Machine(
        cpu_bandwidth=88e9,
        cpu_multiplications=1.9e12,
        cpu_bytes=10**11,
        gpu_bandwidth=2.75e12,
        gpu_bytes=10**11,
        barrier=16 * BARRIER,
    )
    attention, matrix, units = 23_600_000, 4096 * 14336 * 18 // 32, 448
    dense = LayerParts(attention, 0, FeedForwardParts(0, 3 * matrix // units, np.ones(units), 0))
    sparse = LayerParts(attention, 0, FeedForwardParts(matrix, 2 * matrix // units, np.full(units, 0.105), 0))
    head = 32000 * 4096 * 18 // 32

    def milliseconds(layer: LayerParts, cold_bytes: float) -> float:
        cold = round(cold_bytes / 32 / layer.feed_forward.unit_bytes)
        placement = LayerPlacement(True, True, units - cold)
        parts = ModelParts((layer,) * 32, head, head, False, 7 * 10**9, 256)
        return 1e3 / predict(parts, (placement,) * 32, True, machine).decode

    assert milliseconds(dense, 2.04e9) == pytest.approx(25.4, rel=0.08)
    assert milliseconds(sparse, 2.04e9) == pytest.approx(6.7, rel=0.15)


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ((), (0, 1.5e11)),
        ((GraphicsCard("a", 8, 6, (8, 9), 1e12), GraphicsCard("b", 8, 7, (9, 0), 4e12)), (7, 2.4e12)),
        ((GraphicsCard("virtual", 8, 6, (8, 0)),), (6, 1.5e11)),
    ],
)
def test_a_card_is_as_fast_as_its_driver_says(cards: tuple[GraphicsCard, ...], expected: tuple[int, float]) -> None:
    free, bandwidth = card_facts(Hardware("", 2, 100, 100, cards, ""))
    assert free == expected[0]
    assert bandwidth == pytest.approx(expected[1])


def test_units_are_neurons_that_lie_side_by_side() -> None:
    """One hot neuron in each group makes no hot group, as the groups are what is placed."""

    def linear(rows: int, columns: int) -> Linear:
        return Linear(Tensor("", QuantType.F32, (rows, columns), np.zeros((rows, 4 * columns), np.uint8)))

    square = linear(32, 32)
    attention = Attention(None, square, square, square, square, 1, 1, 32, 32, 1.0, None)
    block = FeedForward(None, linear(96, 32), linear(96, 32), linear(32, 96), Activation.RELU)
    spec = ModelSpec("", "", 32, 32, 64, Embed(square.weight), (Layer(attention, block),), Head(None, square))
    rates = np.where(np.arange(96) % 32 == 5, 0.64, 0.0)
    rates[64:] = 0.16
    frequency = parts_of(spec, context=64, frequencies=[rates]).layers[0].feed_forward.frequency
    np.testing.assert_allclose(frequency, [0.16, 0.02, 0.02])


def test_prompts_are_bound_by_the_link_or_by_arithmetic() -> None:
    parts = model(layers=2, units=8, scale=10**8)
    split = (LayerPlacement(True, True, 4),) * 2
    speeds = [
        predict(parts, split, True, replace(MACHINE, link_bandwidth=link)).prefill for link in (1e6, 1e9, 1e12, 1e15)
    ]
    assert speeds == sorted(speeds)
    assert speeds[0] < speeds[1] < speeds[2] == speeds[3]
