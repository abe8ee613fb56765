"""The kernel cache: compiled once, found again, never trusted when damaged, and optional."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from localllm.kernels.cpu.compile import KernelCompiler, KernelSource, cache_directory
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import Value
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.executor import LoadProgress


class Adder:
    """A kernel that adds a constant to an integer, and counts how often it was emitted."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.emitted = 0

    def source(self, name: str = "add") -> KernelSource:
        return KernelSource(name, str(self.number), self.emit)

    def emit(self, e: Emitter, record: Value, step: Value, thread: Value) -> None:
        self.emitted += 1
        e.store(e.add(e.field(record, 0), self.number), record)


def run(compiler: KernelCompiler, source: KernelSource) -> int:
    memory = np.zeros(1, np.int64)
    compiler.compile(source).call(memory.ctypes.data, 0, 0)
    return int(memory[0])


def test_each_key_is_its_own_kernel_compiled_once(tmp_path: Path) -> None:
    isa, adders = choose_isa(), [Adder(number) for number in range(1, 4)]
    for _ in range(2):  # the second compiler loads from the disk while the first one's code is still there
        compiler = KernelCompiler(isa, tmp_path)
        assert [run(compiler, adder.source()) for adder in adders] == [1, 2, 3]
        assert [run(compiler, adder.source()) for adder in adders] == [1, 2, 3]
    assert [adder.emitted for adder in adders] == [1, 1, 1]
    assert len(list(tmp_path.rglob("*.kernel"))) == 3


def test_what_the_disk_holds_is_linked_once(tmp_path: Path) -> None:
    adder = Adder(5)
    run(KernelCompiler(choose_isa(), tmp_path), adder.source("link"))
    addresses = {KernelCompiler(choose_isa(), tmp_path).compile(adder.source("link")).address for _ in range(3)}
    assert len(addresses) == 1


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_file_is_compiled_again(tmp_path: Path, damage: str) -> None:
    adder = Adder(7)
    assert run(KernelCompiler(choose_isa(), tmp_path), adder.source(damage)) == 7
    (path,) = tmp_path.rglob("*.kernel")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": bytes(content), "truncate": bytes(content[:-9]), "empty": b""}[damage])
    assert run(KernelCompiler(choose_isa(), tmp_path), adder.source(damage)) == 7
    assert adder.emitted == 2
    assert run(KernelCompiler(choose_isa(), tmp_path), adder.source(damage)) == 7
    assert adder.emitted == 2


def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with caplog.at_level(logging.WARNING):
        compiler = KernelCompiler(choose_isa(), blocked)
        adders = [Adder(11), Adder(12)]
        assert [run(compiler, adder.source("memory")) for adder in adders] == [11, 12]
        assert [run(compiler, adder.source("memory")) for adder in adders] == [11, 12]
    assert [adder.emitted for adder in adders] == [1, 1]
    assert len(caplog.records) == 1
    assert str(blocked) in caplog.text


def test_progress_is_heard_only_when_something_is_compiled(tmp_path: Path) -> None:
    heard: list[LoadProgress] = []
    sources = [Adder(number).source("progress") for number in range(4)]
    kernels = KernelCompiler(choose_isa(), tmp_path).compile_all(sources, heard.append)
    assert len({kernel.address for kernel in kernels}) == 4
    assert {progress.phase for progress in heard} == {"compiling kernels (once)"}
    assert [progress.fraction for progress in heard] == [0, 0.25, 0.5, 0.75, 1]
    heard.clear()
    KernelCompiler(choose_isa(), tmp_path).compile_all(sources, heard.append)
    assert heard == []


def test_the_cache_directory_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "here"))
    assert cache_directory() == tmp_path / "here"
    compiler = KernelCompiler(choose_isa())
    assert compiler.directory is not None
    assert compiler.directory.is_relative_to(tmp_path / "here" / "kernels")
    assert os.name == "nt" or compiler.directory.stat().st_mode & 0o077 == 0
    monkeypatch.delenv("LOCALLLM_CACHE_DIR")
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / "cache"
    monkeypatch.delenv("LOCALLLM_HOME")
    assert "localllm" in str(cache_directory())
