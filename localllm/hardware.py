"""What this machine is: cores, instruction set, memory with the limits of its container, GPUs."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class GraphicsCard:
    """A GPU as its driver reports it; sizes in bytes, `capability` as (major, minor).

    `bandwidth` of its memory in bytes per second, by clock and width of the bus; None when the driver does not tell.
    """

    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What may be used here. `gpu_note` says why there is no GPU, when there is none."""

    processor: str
    cores: int
    total_bytes: int
    available_bytes: int
    cards: tuple[GraphicsCard, ...]
    gpu_note: str


def detect() -> Hardware:
    """Look at this machine (a few milliseconds; never raises)."""
    import psutil

    memory = psutil.virtual_memory()
    limit, used = _cgroup_memory()
    cards, note = graphics_cards()
    return Hardware(
        processor=_processor_name(),
        cores=usable_cores(),
        total_bytes=min(memory.total, limit),
        available_bytes=min(memory.available, max(0, limit - used)),
        cards=cards,
        gpu_note=note,
    )


def usable_cores() -> int:
    """Physical cores that this process may use: affinity and the container's quota respected."""
    import psutil

    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        allowed = os.cpu_count() or 1
    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    cores = max(1, round(allowed * physical / logical))
    return max(1, min(cores, _cgroup_quota()))


def graphics_cards() -> tuple[tuple[GraphicsCard, ...], str]:
    """The NVIDIA cards by NVML, and a note that says why there are none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return (), "the package nvidia-ml-py is missing"
    except pynvml.NVMLError:
        return (), "no NVIDIA driver was found"
    cards = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            sizes = int(memory.total), int(memory.free)
            cards.append(GraphicsCard(str(name), *sizes, (int(major), int(minor)), _card_bandwidth(handle)))
    except pynvml.NVMLError as error:
        return tuple(cards), f"the NVIDIA driver failed: {error}"
    finally:
        pynvml.nvmlShutdown()
    return tuple(cards), "" if cards else "the NVIDIA driver reports no card"


def _card_bandwidth(handle: object) -> float | None:
    """Two transfers a clock on each line of the bus."""
    import pynvml

    try:
        megahertz = int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM))
        bits = int(pynvml.nvmlDeviceGetMemoryBusWidth(handle))
    except pynvml.NVMLError:  # virtual cards and old drivers
        return None
    return 2e6 * megahertz * bits / 8 or None


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cgroup_quota() -> int:
    """Cores that a container's quota allows, rounded up."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return _UNLIMITED if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return _UNLIMITED


def _cgroup_memory() -> tuple[int, int]:
    """A container's memory limit and use in bytes."""
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        return (_UNLIMITED, 0) if limit == "max" else (int(limit), used)
    except (OSError, ValueError):
        return _UNLIMITED, 0
