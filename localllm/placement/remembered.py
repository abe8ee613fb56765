"""The measurement of this machine, kept on disk: it takes a second and 256 MiB a core, and does not change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from .machine import BARRIER, CPU_MULTIPLICATIONS, Machine, card_facts, measure_machine

if TYPE_CHECKING:
    from pathlib import Path

    from localllm.hardware import Hardware

FILE = "machine.json"
ORDINARY_BANDWIDTH = 2e10  # bytes per second


def remembered_machine(hardware: Hardware, folder: Path) -> Machine:
    """The machine as it was measured before, with the memory that is free now; measured when it is another one."""
    known = supposed_machine(hardware, folder)
    if known.measured:
        return known
    machine = measure_machine(hardware)
    _write(folder / FILE, _key(hardware), machine.cpu_bandwidth)
    return replace(machine, gpu_bytes=known.gpu_bytes)


def supposed_machine(hardware: Hardware, folder: Path) -> Machine:
    """The same without measuring: an ordinary machine, `measured` being False, where nothing is known yet."""
    bandwidth = _read(folder / FILE, _key(hardware))
    gpu_bytes, gpu_bandwidth = card_facts(hardware)
    return Machine(
        cpu_bandwidth=bandwidth or ORDINARY_BANDWIDTH,
        cpu_multiplications=CPU_MULTIPLICATIONS * hardware.cores,
        cpu_bytes=hardware.available_bytes,
        gpu_bandwidth=gpu_bandwidth,
        gpu_bytes=gpu_bytes,
        barrier=BARRIER * hardware.cores,
        measured=bandwidth is not None,
    )


def _key(hardware: Hardware) -> str:
    return f"products on {hardware.processor}, {hardware.cores} cores"


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
