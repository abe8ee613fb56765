"""The cost model: how long a token takes under a placement. Decoding is bound by the bytes that are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine
    from .parts import LayerParts, ModelParts

SCATTERED = 0.6  # of the CPU's bandwidth that reads of single neurons' rows reach: 55 of 92 GB/s on 16 cores
TYPICAL_FILL = 0.5  # of the context, when a token is decoded


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """What of a layer is on the GPU: attention (with KV and router), the gates, and the hottest `units`."""

    attention: bool
    gate: bool
    units: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected tokens per second."""

    decode: float
    prefill: float


def gpu_bytes_of(layer: LayerParts, placement: LayerPlacement) -> int:
    """Bytes of GPU memory that a placement takes."""
    feed_forward = layer.feed_forward
    total = feed_forward.unit_bytes * placement.units
    if placement.attention:
        total += layer.attention_bytes + layer.kv_bytes + feed_forward.fixed_bytes
    if placement.gate:
        total += feed_forward.gate_bytes
    return total


def layer_seconds(layer: LayerParts, placement: LayerPlacement, machine: Machine) -> float:
    """Seconds of one decoded token in a layer: hot and cold neurons overlap, attention and gates come before them."""
    feed_forward = layer.feed_forward
    reads = feed_forward.unit_bytes * feed_forward.frequency
    hot, cold = float(reads[: placement.units].sum()), float(reads[placement.units :].sum())
    own = layer.attention_bytes + layer.kv_bytes * TYPICAL_FILL + feed_forward.fixed_bytes
    own_seconds = own / (machine.gpu_bandwidth if placement.attention else machine.cpu_bandwidth)
    gate = feed_forward.gate_bytes
    if placement.gate:  # the CPU waits for the gates: they say which of its neurons fire
        own_seconds += gate / machine.gpu_bandwidth
    gpu = hot / machine.gpu_bandwidth
    cpu = cold / (machine.cpu_bandwidth * (SCATTERED if gate else 1.0))
    cpu += 0.0 if placement.gate else gate / machine.cpu_bandwidth
    crosses = (gpu > 0 or placement.attention) and cpu > 0
    return own_seconds + max(gpu, cpu + (machine.round_trip if crosses else 0.0))


def predict(
    parts: ModelParts, placements: tuple[LayerPlacement, ...], head_on_gpu: bool, machine: Machine
) -> Prediction:
    """Decode: the sum of all layers and the head. Prefill: whatever is bound by arithmetic on either side."""
    pairs = list(zip(parts.layers, placements, strict=True))
    seconds = sum(layer_seconds(layer, placement, machine) for layer, placement in pairs)
    seconds += parts.head_bytes / (machine.gpu_bandwidth if head_on_gpu else machine.cpu_bandwidth)
    total = sum(layer.attention_bytes + layer.feed_forward.nbytes for layer in parts.layers)
    on_gpu = sum(gpu_bytes_of(layer, p) - (layer.kv_bytes if p.attention else 0) for layer, p in pairs)
    share = on_gpu / total if total else 0.0
    work = parts.weights * ((1 - share) / machine.cpu_multiplications + share / machine.gpu_multiplications)
    return Prediction(decode=1 / seconds, prefill=1 / work)
