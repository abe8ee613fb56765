"""The planner: the placement of least predicted time within a budget of GPU memory.

Two shapes are compared. *Split*: attention, KV and the head on the GPU, then feed-forward units, hottest bytes first,
layer by layer where they save most; one round trip a layer. *Whole layers*: as many complete layers as fit, the rest on
the CPU. When everything fits, the GPU alone is preferred unless a split is `WORTH_A_SPLIT` times as fast.

Per layer the cost is convex in the number of units on the GPU, and units are of equal size, so taking the unit of the
largest gain each time is optimal (marginal analysis, https://doi.org/10.1287/opre.14.6.1143).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cost import LayerPlacement, Prediction, gpu_bytes_of, layer_seconds, predict

if TYPE_CHECKING:
    from .machine import Machine
    from .parts import ModelParts

WORKSPACE = 192 * 2**20  # bytes of GPU memory for activations and graphs
WORTH_A_SPLIT = 1.15  # a split of what would fit must gain this much to be worth its moving parts
MARGIN = 128 * 2**20  # bytes left to the driver and the desktop
NOWHERE = LayerPlacement(attention=False, gate=False, units=0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything goes. `gpu_bytes` never exceeds `budget`; `reasons` are sentences for people."""

    layers: tuple[LayerPlacement, ...]
    head_on_gpu: bool
    gpu_bytes: int
    cpu_bytes: int
    budget: int
    prediction: Prediction
    shape: str  # "gpu", "split", "layers" or "cpu"
    reasons: tuple[str, ...]


def plan_placement(parts: ModelParts, machine: Machine, *, vram: int | None = None) -> Plan:
    """Plan for `vram` bytes of GPU memory (None: all that is free, less a margin)."""
    budget = max(0, machine.gpu_bytes - MARGIN) if vram is None else vram
    candidates = [_finish(parts, machine, budget, (NOWHERE,) * len(parts.layers), head=False)]
    room = budget - WORKSPACE
    if room > 0:
        candidates += [plan for plan in (_whole(parts, machine, budget), _split(parts, machine, budget)) if plan]
    return max(candidates, key=lambda plan: plan.prediction.decode * (WORTH_A_SPLIT if plan.shape == "gpu" else 1))


def _everywhere(parts: ModelParts) -> tuple[LayerPlacement, ...]:
    return tuple(LayerPlacement(True, True, layer.feed_forward.units) for layer in parts.layers)


def _whole(parts: ModelParts, machine: Machine, budget: int) -> Plan | None:
    """Complete layers from the last one down, the head first."""
    room = budget - WORKSPACE
    head = parts.head_bytes <= room
    if head:
        room -= parts.head_bytes
    full = _everywhere(parts)
    placements = [NOWHERE] * len(parts.layers)
    for index in reversed(range(len(parts.layers))):
        size = gpu_bytes_of(parts.layers[index], full[index])
        if size > room:
            break
        placements[index] = full[index]
        room -= size
    if not head and NOWHERE in placements and placements.count(NOWHERE) == len(placements):
        return None
    return _finish(parts, machine, budget, tuple(placements), head=head)


def _split(parts: ModelParts, machine: Machine, budget: int) -> Plan | None:
    """Attention of all layers, the head, then gates and units by gain per byte."""
    base = sum(gpu_bytes_of(layer, LayerPlacement(True, False, 0)) for layer in parts.layers)
    room = budget - WORKSPACE - base
    if room < 0:
        return None
    head = parts.head_bytes <= room
    if head:
        room -= parts.head_bytes
    placements = [LayerPlacement(True, layer.feed_forward.gate_bytes == 0, 0) for layer in parts.layers]
    for index, layer in enumerate(parts.layers):  # a gate is read for every token: no unit saves more per byte
        gate = layer.feed_forward.gate_bytes
        if 0 < gate <= room:
            placements[index] = LayerPlacement(True, True, 0)
            room -= gate
    queue: list[tuple[float, int]] = []

    def offer(index: int) -> None:
        gain = _gain(parts, machine, placements[index], index)
        if gain is not None:
            heapq.heappush(queue, (-gain / parts.layers[index].feed_forward.unit_bytes, index))

    for index in range(len(placements)):
        offer(index)
    while queue:
        _, index = heapq.heappop(queue)
        size = parts.layers[index].feed_forward.unit_bytes
        if size > room:
            continue
        room -= size
        placements[index] = _one_more(placements[index])
        offer(index)
    return _finish(parts, machine, budget, tuple(placements), head=head)


def _one_more(placement: LayerPlacement) -> LayerPlacement:
    return LayerPlacement(placement.attention, placement.gate, placement.units + 1)


def _gain(parts: ModelParts, machine: Machine, placement: LayerPlacement, index: int) -> float | None:
    """Seconds saved by one more unit, None when there is none or it would not help."""
    layer = parts.layers[index]
    if placement.units >= layer.feed_forward.units:
        return None
    before = layer_seconds(layer, placement, machine)
    after = layer_seconds(layer, _one_more(placement), machine)
    return before - after if after < before else None


def _finish(
    parts: ModelParts, machine: Machine, budget: int, placements: tuple[LayerPlacement, ...], *, head: bool
) -> Plan:
    gpu = sum(gpu_bytes_of(layer, p) for layer, p in zip(parts.layers, placements, strict=True))
    gpu += parts.head_bytes if head else 0
    cpu = parts.nbytes - gpu + (parts.embedding_bytes if parts.tied and head else 0)
    if gpu:
        gpu += WORKSPACE
    everything = placements == _everywhere(parts) and head
    attention = sum(p.attention for p in placements)
    units = sum(p.units for p in placements)
    all_units = sum(layer.feed_forward.units for layer in parts.layers)
    whole = all(p in (NOWHERE, full) for p, full in zip(placements, _everywhere(parts), strict=True))
    shape = "cpu" if gpu == 0 else "gpu" if everything else "layers" if whole else "split"
    reasons = (
        f"attention and KV of {attention} of {len(placements)} layers on the GPU",
        f"{units / all_units:.0%} of the feed-forward units on the GPU, the hottest first",
        f"the head ({parts.head_bytes / 2**20:.0f} MiB) on the {'GPU' if head else 'CPU'}",
    )
    prediction = predict(parts, placements, head, machine)
    return Plan(placements, head, gpu, cpu, budget, prediction, shape, reasons)
