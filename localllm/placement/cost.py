"""The cost model: how long a token takes under a placement. Decoding is bound by the bytes that are read.

What is small beside the bytes of a dense model is not beside the few that a sparse one reads, so it has its own terms:
kernels that wait for each other, gates that cross to the CPU, barriers between the CPU's operations, and the halves'
waiting for each other's slowest thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine
    from .parts import LayerParts, ModelParts

SCATTERED = 0.65  # of the CPU's bandwidth that reads of single neurons' rows reach: 55 of 84 GB/s on 16 cores
TYPICAL_FILL = 0.5  # of the context, when a token is decoded
OWN_KERNELS, GATE_KERNELS, HOT_KERNELS, MEETING_KERNELS = 4, 1, 2, 2  # of a layer, one after the other
OWN_STEPS, DENSE_STEPS, SPARSE_STEPS = (
    4,
    3,
    6,
)  # the CPU's operations for attention and for a block, each with a barrier
IMBALANCE = 1.05  # the slowest thread of a half against their mean, every layer anew
GATE_BYTES = 4 * 32  # of a unit of 32 neurons: what crosses
PREFILL_ROWS = 512


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
    own_seconds += OWN_KERNELS * machine.launch if placement.attention else OWN_STEPS * machine.barrier
    if placement.gate and gate:  # the CPU waits for the gates: they say which of its neurons fire
        own_seconds += gate / machine.gpu_bandwidth + GATE_KERNELS * machine.launch
    gpu = hot / machine.gpu_bandwidth + (HOT_KERNELS * machine.launch if hot else 0.0)
    cpu = cold / (machine.cpu_bandwidth * (SCATTERED if gate else 1.0))
    cpu += 0.0 if placement.gate else gate / machine.cpu_bandwidth
    if not cpu:
        return own_seconds + gpu
    cpu += (SPARSE_STEPS if gate else DENSE_STEPS) * machine.barrier
    if not gpu and not placement.attention:
        return own_seconds + cpu
    crossing = machine.round_trip + MEETING_KERNELS * machine.launch
    if placement.gate and gate:
        crossing += GATE_BYTES * (feed_forward.units - placement.units) / machine.link_bandwidth
    return own_seconds + max(gpu, cpu * IMBALANCE + crossing)


def predict(
    parts: ModelParts, placements: tuple[LayerPlacement, ...], head_on_gpu: bool, machine: Machine
) -> Prediction:
    """Decode: the sum of all layers and the head. Prefill: steps of many rows, bound by arithmetic on either side, or
    by the link if cold weights cross to the GPU, whichever is faster.
    """
    pairs = list(zip(parts.layers, placements, strict=True))
    seconds = sum(layer_seconds(layer, placement, machine) for layer, placement in pairs)
    seconds += parts.head_bytes / (machine.gpu_bandwidth if head_on_gpu else machine.cpu_bandwidth)
    total = sum(layer.attention_bytes + layer.feed_forward.nbytes for layer in parts.layers)
    on_gpu = sum(gpu_bytes_of(layer, p) - (layer.kv_bytes if p.attention else 0) for layer, p in pairs)
    share = on_gpu / total if total else 0.0
    products = PREFILL_ROWS * parts.weights
    divided = products * ((1 - share) / machine.cpu_multiplications + share / machine.gpu_multiplications)
    if share and all(placement.attention for placement in placements):
        crossing = (1 - share) * total / machine.link_bandwidth
        divided = min(divided, max(crossing, products / machine.gpu_multiplications))
    return Prediction(decode=1 / seconds, prefill=PREFILL_ROWS / divided)
