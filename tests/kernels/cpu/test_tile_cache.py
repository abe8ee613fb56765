"""Repacked weights come back from the disk as they were, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.cpu import tile_cache
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.cpu.tile_cache import TileCache
from localllm.kernels.executor import ExecutorOptions, LoadProgress
from localllm.kernels.single_sequence import logits_of
from localllm.models import load_spec

_KEY = bytes(range(32))
_MEMORY = np.random.default_rng(2).integers(0, 256, 100_000, dtype=np.uint8)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_cache, "WORTH_BYTES", 1000)
    monkeypatch.setattr(tile_cache, "_PART_BYTES", 4096)
    monkeypatch.setattr(tile_cache, "_KEPT_FREE_BYTES", 0)
    monkeypatch.setattr(tile_cache, "_KEPT_FREE_SHARE", 0)


@pytest.fixture
def cache(tmp_path: Path) -> TileCache:
    return TileCache(tmp_path / "repacked" / "model.tiles", _KEY, keep_free=0)


def test_what_was_written_is_read(cache: TileCache) -> None:
    memory = np.zeros_like(_MEMORY)
    assert not cache.read(memory, 2, None)
    cache.write(_MEMORY, None)
    assert cache.read(memory, 2, None)
    np.testing.assert_array_equal(memory, _MEMORY)
    assert [path.name for path in cache.path.parent.iterdir()] == ["model.tiles"]


def test_another_plan_or_another_size_is_not_read(cache: TileCache) -> None:
    cache.write(_MEMORY, None)
    assert not TileCache(cache.path, _KEY[::-1]).read(np.zeros_like(_MEMORY), 1, None)
    assert not cache.read(np.zeros(len(_MEMORY) - 1, np.uint8), 1, None)


@pytest.mark.parametrize("place", [0, 20, 4096, 54_321, -1])
def test_a_damaged_file_is_not_read(cache: TileCache, place: int) -> None:
    cache.write(_MEMORY, None)
    content = bytearray(cache.path.read_bytes())
    content[place] ^= 4
    cache.path.write_bytes(content)
    assert not cache.read(np.zeros_like(_MEMORY), 2, None)


@pytest.mark.parametrize("length", [0, 10, 4096, 50_000, 4096 + 100_000, 4096 + 100_003])
def test_a_file_that_was_cut_is_not_read(cache: TileCache, length: int) -> None:
    cache.write(_MEMORY, None)
    cache.path.write_bytes(cache.path.read_bytes()[:length])
    assert not cache.read(np.zeros_like(_MEMORY), 2, None)


def test_small_weights_are_not_kept(cache: TileCache) -> None:
    cache.write(_MEMORY[:999], None)
    assert not cache.path.parent.exists()


def test_a_full_disk_keeps_nothing_and_gives_back_the_oldest(cache: TileCache) -> None:
    cache.write(_MEMORY, None)
    other = cache.path.with_name("other.tiles")
    TileCache(other, _KEY, keep_free=2**60).write(_MEMORY, None)
    assert list(cache.path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    TileCache(tmp_path / "file" / "model.tiles", _KEY).write(_MEMORY, None)


def test_an_interrupted_write_leaves_nothing(cache: TileCache) -> None:
    def interrupt(_: LoadProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.write(_MEMORY, interrupt)
    assert list(cache.path.parent.iterdir()) == []


def test_a_second_start_reads_instead_of_repacking(data_folder: Path, tmp_path: Path) -> None:
    path = data_folder / "models" / "mix_q4_k_m_like.gguf"
    heard: list[str] = []
    options = ExecutorOptions(
        max_rows=8, repacked=tmp_path / "model.tiles", progress=lambda event: heard.append(event.phase)
    )
    tokens = np.arange(8, dtype=np.int32)
    logits = []
    for _ in range(2):
        executor = CpuExecutor(load_spec(open_gguf(path)), options)
        logits.append(logits_of(executor, tokens).copy())
        executor.close()
    np.testing.assert_array_equal(logits[0], logits[1])
    phases = list(dict.fromkeys(phase for phase in heard if "weights" in phase))
    assert phases[0] == "repacking weights"
    assert phases[-1] == "reading weights"
    other = load_spec(open_gguf(data_folder / "models" / "qwen3.gguf"))  # the same place, another plan
    heard.clear()
    CpuExecutor(other, replace(options, mode="exact")).close()
    assert heard[0] == "repacking weights"
