"""The machine as it is, and container limits as files that a test writes."""

from __future__ import annotations

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
