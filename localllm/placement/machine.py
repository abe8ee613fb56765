"""How fast this machine moves bytes: measured in about two seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.benchmark import measure_memory_bandwidth

if TYPE_CHECKING:
    from localllm.hardware import Hardware

CPU_EFFICIENCY = 0.8  # of the measured read bandwidth that decoding reaches
GPU_EFFICIENCY = 0.6
CPU_MULTIPLICATIONS = 1.2e11  # per second and core in a prefill
GPU_MULTIPLICATIONS = 2.0e13
CARD_BANDWIDTH = 2.5e11  # bytes per second of an ordinary card, where none could be measured
LINK_BANDWIDTH = 1.2e10
ROUND_TRIP = 1.2e-5  # seconds, GPU to CPU and back inside one captured graph


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds in bytes or multiplications per second, `round_trip` in seconds, sizes in bytes (no GPU: 0)."""

    cpu_bandwidth: float
    cpu_multiplications: float
    cpu_bytes: int
    gpu_bandwidth: float = CARD_BANDWIDTH * GPU_EFFICIENCY
    gpu_multiplications: float = GPU_MULTIPLICATIONS
    gpu_bytes: int = 0
    link_bandwidth: float = LINK_BANDWIDTH
    round_trip: float = ROUND_TRIP
    measured: bool = True


def measure_machine(hardware: Hardware, *, threads: int | None = None) -> Machine:
    """Measure this machine's memory; a card's own speed is assumed until its executor has measured it."""
    count = threads or hardware.cores
    return Machine(
        cpu_bandwidth=measure_memory_bandwidth(count, repetitions=3) * CPU_EFFICIENCY,
        cpu_multiplications=CPU_MULTIPLICATIONS * count,
        cpu_bytes=hardware.available_bytes,
        gpu_bytes=max((card.free_bytes for card in hardware.cards), default=0),
    )
