"""A full disk and a store that cannot be written: clear errors, nothing half-done, the next pull goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localllm.errors import DownloadError
from localllm.paths import Paths
from localllm.store import Store, pull_into, resolve_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localllm.store import NetworkOptions
    from tests.localllm.store.conftest import FaultServer

SIZE_MB = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "localllm-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=True)


def store_at(folder: Path) -> Store:
    return Store(Paths(config=folder, data=folder, cache=folder / "cache"))


def test_a_model_that_does_not_fit_is_refused_before_the_first_byte(
    small_disk: Path, server: FaultServer, network: NetworkOptions, big_model: bytes
) -> None:
    url = server.add("/model.gguf", big_model)
    with pytest.raises(DownloadError, match=r"12\.6 MB more, but only 8\.\d MB are free"):
        pull_into(store_at(small_disk), url, network=network)
    assert server.bodies("/model.gguf") == []


def test_a_disk_that_fills_up_in_the_middle(
    small_disk: Path, server: FaultServer, network: NetworkOptions, model_bytes: bytes
) -> None:
    store = store_at(small_disk)
    filler = small_disk / "filler"
    url = server.add("/model.gguf", model_bytes)
    filled: list[int] = []

    def fill(event: object) -> None:
        if not filled:  # after the check of free space, before the first block
            filler.write_bytes(bytes((SIZE_MB << 20) - (1 << 20) - (256 << 10)))
            filled.append(1)

    server.fail_always("/model.gguf", slow=0.01)
    from localllm.store.events import FileProgress

    with pytest.raises(DownloadError, match="disk is full") as caught:
        pull_into(
            store, url, network=network, report=lambda event: fill(event) if isinstance(event, FileProgress) else None
        )
    assert "rm --partial" in str(caught.value)
    assert store.models() == []
    assert [item.name for item in store.partials()] == ["model"]

    filler.unlink()
    server.always.clear()
    server.requests.clear()
    manifest = pull_into(store, url, network=network)
    assert store.path_of(manifest).read_bytes() == model_bytes
    assert sum(request.sent for request in server.bodies("/model.gguf")) < len(model_bytes)


def test_a_partial_pull_can_be_removed_from_a_full_disk(
    small_disk: Path, server: FaultServer, network: NetworkOptions, model_bytes: bytes
) -> None:
    store = store_at(small_disk)
    url = server.add("/model.gguf", model_bytes)
    server.fail("/model.gguf", 50, status=403)
    with pytest.raises(DownloadError):
        pull_into(store, url, network=network)
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(SIZE_MB << 20))
    store.remove_partial(store.partials()[0])
    assert store.partials() == []


def test_a_write_that_fails_keeps_what_was_written(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.add("/model.gguf", model_bytes)
    real_write = os.write
    written: list[int] = []

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 100_000:
            written.append(len(data))
            if len(written) > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DownloadError, match="disk is full"):
        pull_into(store, url, network=network)
    monkeypatch.setattr(os, "write", real_write)
    server.requests.clear()
    manifest = pull_into(store, url, network=network)
    assert store.path_of(manifest).read_bytes() == model_bytes
    assert sum(request.sent for request in server.bodies("/model.gguf")) == len(model_bytes) - (2 << 20)


@pytest.fixture
def read_only_store(small_disk: Path, server: FaultServer, network: NetworkOptions, model_bytes: bytes) -> Store:
    """A store with one model on a disk that was made read-only afterwards."""
    store = store_at(small_disk)
    pull_into(store, server.add("/model.gguf", model_bytes), network=network)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], capture_output=True, check=True)
    return store


def test_a_read_only_store_can_be_used_but_not_changed(
    read_only_store: Store, server: FaultServer, network: NetworkOptions, model_bytes: bytes
) -> None:
    found = resolve_in(read_only_store, "model")
    assert found.path.read_bytes() == model_bytes
    assert [manifest.name for manifest in read_only_store.models()] == ["model"]
    with pytest.raises(DownloadError, match="Read-only file system") as caught:
        pull_into(read_only_store, server.add("/other.gguf", model_bytes), network=network)
    assert "LOCALLLM_HOME" in str(caught.value)
    with pytest.raises(DownloadError, match="Read-only file system"):
        read_only_store.remove("model")
