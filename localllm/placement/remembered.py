"""The measurement of this machine, kept on disk: it takes a second and 256 MiB a core, and does not change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from .machine import CPU_MULTIPLICATIONS, Machine, measure_machine

if TYPE_CHECKING:
    from pathlib import Path

    from localllm.hardware import Hardware

FILE = "machine.json"


def remembered_machine(hardware: Hardware, folder: Path) -> Machine:
    """The machine as it was measured before, with the memory that is free now; measured when it is another one."""
    path = folder / FILE
    key = f"{hardware.processor}, {hardware.cores} cores"
    free = max((card.free_bytes for card in hardware.cards), default=0)
    bandwidth = _read(path, key)
    if bandwidth is not None:
        multiplications = CPU_MULTIPLICATIONS * hardware.cores
        return Machine(bandwidth, multiplications, hardware.available_bytes, gpu_bytes=free)
    machine = measure_machine(hardware)
    _write(path, key, machine.cpu_bandwidth)
    return replace(machine, gpu_bytes=free)


def _read(path: Path, key: str) -> float | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    value = found.get(key) if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _write(path: Path, key: str, bandwidth: float) -> None:
    from localllm.errors import LocalLLMError
    from localllm.store.disk import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({key: bandwidth}).encode())
    except (OSError, LocalLLMError):
        return  # a cache that cannot be written is measured again next time
