"""The machine as it is, and container limits as files that a test writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localllm import hardware


def test_this_machine_has_cores_and_memory() -> None:
    found = hardware.detect()
    assert found.cores >= 1
    assert 0 < found.available_bytes <= found.total_bytes
    assert found.processor
    assert found.cards or found.gpu_note


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"cpu.max": "150000 100000\n", "memory.max": "1000\n", "memory.current": "400\n"}, 2, (1000, 400)),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "5\n"}, None, None),
        ({}, None, None),
        ({"cpu.max": "nonsense", "memory.max": "nonsense", "memory.current": "?"}, None, None),
    ],
)
def test_container_limits(
    files: dict[str, str],
    cores: int | None,
    memory: tuple[int, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(hardware, "_CGROUP", tmp_path)
    assert hardware._cgroup_quota() == (hardware._UNLIMITED if cores is None else cores)
    assert hardware._cgroup_memory() == ((hardware._UNLIMITED, 0) if memory is None else memory)


class Driver:
    """What the driver's library says of a card: megahertz of its memory, bits of its bus; 0: it refuses."""

    NVML_CLOCK_MEM = 2

    class NVMLError(Exception):
        pass

    def __init__(self, megahertz: int, bits: int) -> None:
        self._megahertz, self._bits = megahertz, bits

    def nvmlDeviceGetMaxClockInfo(self, handle: object, kind: int) -> int:
        if not self._megahertz:
            raise self.NVMLError
        return self._megahertz

    def nvmlDeviceGetMemoryBusWidth(self, handle: object) -> int:
        return self._bits


@pytest.mark.parametrize(
    ("megahertz", "bits", "bandwidth"),
    [(3201, 6016, 4.814e12), (10501, 384, 1.008e12), (0, 384, None), (10501, 0, None)],
)
def test_a_card_reads_twice_a_clock(
    megahertz: int, bits: int, bandwidth: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(megahertz, bits))
    found = hardware._card_bandwidth(None)
    assert found == (None if bandwidth is None else pytest.approx(bandwidth, rel=1e-3))
