"""How fast this machine moves bytes: measured in about two seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.benchmark import measure_product_bandwidth

if TYPE_CHECKING:
    from localllm.hardware import Hardware

CPU_EFFICIENCY = 0.84  # of what one product reads at best: halves of models reached 0.82 on two cores, 0.85 on one
GPU_EFFICIENCY = 0.6  # of what the memory of a card could do by its clock
CPU_MULTIPLICATIONS = 1.2e11  # per second and core in a prefill
GPU_MULTIPLICATIONS = 2.0e13
CARD_BANDWIDTH = 2.5e11  # bytes per second of an ordinary card, where none is here or its driver does not tell
LINK_BANDWIDTH = 1.2e10
ROUND_TRIP = 9.3e-6  # seconds, GPU to CPU and back inside one captured graph: measured on one H200 beside 16 cores
LAUNCH = 2.5e-6  # seconds between two kernels of a graph that wait for each other
BARRIER = 1.25e-7  # seconds a thread in which all meet between two operations: 2 us for 16


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds in bytes or multiplications per second, sizes in bytes (no GPU: 0), the rest in seconds.

    `round_trip`: from the GPU to the CPU and back; `launch`: between two kernels; `barrier`: where threads meet.
    """

    cpu_bandwidth: float
    cpu_multiplications: float
    cpu_bytes: int
    gpu_bandwidth: float = CARD_BANDWIDTH * GPU_EFFICIENCY
    gpu_multiplications: float = GPU_MULTIPLICATIONS
    gpu_bytes: int = 0
    link_bandwidth: float = LINK_BANDWIDTH
    round_trip: float = ROUND_TRIP
    launch: float = LAUNCH
    barrier: float = 4 * BARRIER
    measured: bool = True


def measure_machine(hardware: Hardware, *, threads: int | None = None) -> Machine:
    """Measure what products of packed weights read here; a card's speed is a part of what its driver reports."""
    count = threads or hardware.cores
    gpu_bytes, gpu_bandwidth = card_facts(hardware)
    return Machine(
        cpu_bandwidth=measure_product_bandwidth(count) * CPU_EFFICIENCY,
        cpu_multiplications=CPU_MULTIPLICATIONS * count,
        cpu_bytes=hardware.available_bytes,
        gpu_bandwidth=gpu_bandwidth,
        gpu_bytes=gpu_bytes,
        barrier=BARRIER * count,
    )


def card_facts(hardware: Hardware) -> tuple[int, float]:
    """Free bytes of the card with most of them, and bytes per second that decoding reads there; no card: 0 bytes."""
    card = max(hardware.cards, key=lambda card: card.free_bytes, default=None)
    bandwidth = CARD_BANDWIDTH if card is None or card.bandwidth is None else card.bandwidth
    return 0 if card is None else card.free_bytes, bandwidth * GPU_EFFICIENCY
