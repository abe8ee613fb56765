"""Before a pull: the head of the remote file says what the model needs, and this machine what it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localllm.errors import DownloadError
from localllm.gguf_io import open_gguf
from localllm.hardware import Hardware
from localllm.models import load_spec
from localllm.placement import parts_of
from localllm.store import FitEstimated, Note, PullPlanned, Store, check_pull, pull_into
from localllm.store.fit import read_head
from localllm.store.transfer import Client, RemoteFile

if TYPE_CHECKING:
    from localllm.store import NetworkOptions, PullEvent
    from tests.localllm.store.conftest import FaultServer


@pytest.fixture
def model_path(data_folder: Path) -> Path:
    return next((data_folder / "models").glob("*.gguf"))


def set_memory(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    hardware = Hardware("test", 2, available, available, (), "no GPU in this test")
    monkeypatch.setattr("localllm.hardware.detect", lambda: hardware)
    monkeypatch.setattr("localllm.placement.machine.measure_product_bandwidth", lambda *a, **k: 1e10)


def estimate(store: Store, url: str, network: NetworkOptions) -> FitEstimated | None:
    events: list[PullEvent] = []
    check_pull(store, url, network=network, report=events.append)
    assert isinstance(events[0], PullPlanned)
    found = [event for event in events if isinstance(event, FitEstimated)]
    return found[0] if found else None


def pinned(server: FaultServer, store: Store, content: bytes) -> str:
    """A catalogue name for `content`, whose size is known beforehand."""
    import hashlib

    server.add("/owner/model/resolve/main/m.gguf", content)
    store.paths.config.mkdir(parents=True, exist_ok=True)
    store.paths.catalogue_file.write_text(
        f'[models."x:1b"]\nsource = "hf:owner/model/m.gguf"\nsize_bytes = {len(content)}\n'
        f'sha256 = "{hashlib.sha256(content).hexdigest()}"\n'
    )
    return "x:1b"


def test_sizes_are_those_of_the_model_and_nothing_is_fetched(
    server: FaultServer, store: Store, network: NetworkOptions, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, 8 << 30)
    name = pinned(server, store, model_path.read_bytes())
    found = estimate(store, name, replace(network, hub_endpoint=server.url))
    with open_gguf(model_path) as file:
        parts = parts_of(load_spec(file, context=4096), context=found.context if found else 1)
    assert found is not None
    assert found.fits
    assert found.weight_bytes + found.kv_bytes == parts.nbytes
    assert found.tokens_per_second is not None
    assert found.tokens_per_second > 0
    assert not store.root.exists()


def test_too_little_memory_is_said(
    server: FaultServer, store: Store, network: NetworkOptions, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, 1000)
    name = pinned(server, store, model_path.read_bytes())
    found = estimate(store, name, replace(network, hub_endpoint=server.url))
    assert found is not None
    assert (found.fits, found.tokens_per_second) == (False, None)
    assert "more memory" in (found.problem or "")


def test_a_model_that_cannot_be_run_is_said(
    server: FaultServer, store: Store, network: NetworkOptions, tmp_path: Path
) -> None:
    from localllm.gguf_io import write_gguf

    write_gguf(tmp_path / "m.gguf", {"general.architecture": "novel"}, {})
    name = pinned(server, store, (tmp_path / "m.gguf").read_bytes())
    found = estimate(store, name, replace(network, hub_endpoint=server.url))
    assert found is not None
    assert "'novel' is not supported" in (found.problem or "")


def notes(store: Store, name: str, network: NetworkOptions) -> list[str]:
    events: list[PullEvent] = []
    check_pull(store, name, network=network, report=events.append)
    return [event.text for event in events if isinstance(event, Note)]


def test_a_head_that_is_no_model_gives_no_estimate(server: FaultServer, store: Store, network: NetworkOptions) -> None:
    name = pinned(server, store, b"<!DOCTYPE html>" * 1000)
    network = replace(network, hub_endpoint=server.url)
    assert estimate(store, name, network) is None
    assert "whether it fits is not known" in notes(store, name, network)[0]


def test_a_server_that_does_not_answer_is_said(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    name = pinned(server, store, model_bytes)
    server.fail_always("/owner/model/resolve/main/m.gguf", status=503)
    assert "whether it fits is not known" in notes(store, name, replace(network, hub_endpoint=server.url))[0]


def test_a_model_that_is_here_is_said(
    server: FaultServer, store: Store, network: NetworkOptions, model_path: Path
) -> None:
    name = pinned(server, store, model_path.read_bytes())
    network = replace(network, hub_endpoint=server.url)
    pull_into(store, name, network=network)
    assert notes(store, name, network) == ["it is on this computer already; what it needs: localllm plan x:1b"]


def test_a_gated_file_is_explained_before_anything_else(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    name = pinned(server, store, model_bytes)
    server.fail_always("/owner/model/resolve/main/m.gguf", status=401, headers={"X-Error-Code": "GatedRepo"})
    with pytest.raises(DownloadError, match="needs a login"):
        estimate(store, name, replace(network, hub_endpoint=server.url))


def test_only_the_head_is_read(server: FaultServer, network: NetworkOptions, big_model: bytes) -> None:
    url = server.add("/m.gguf", big_model)
    with Client(network) as client:
        _, head = read_head(client, RemoteFile(url, "m.gguf"))
        assert head == big_model[: 1 << 20]
        server.fail_always("/m.gguf", ignore_range=True)
        assert read_head(client, RemoteFile(url, "m.gguf"))[1] == head
    assert [request.range for request in server.requests] == [(0, (1 << 20) - 1)] * 2


def test_a_head_longer_than_the_first_look(server: FaultServer, network: NetworkOptions, tmp_path: Path) -> None:
    from localllm.gguf_io import QuantType, write_gguf

    tokens = [f"token number {index}" for index in range(120_000)]
    write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "x", "tokenizer.ggml.tokens": tokens},
        {"w": (QuantType.F32, (1024, 1024), bytes(4 << 20))},
    )
    content = (tmp_path / "m.gguf").read_bytes()
    url = server.add("/m.gguf", content)
    with Client(network) as client:
        _, head = read_head(client, RemoteFile(url, "m.gguf"))
    assert content.startswith(head)
    assert 2 << 20 < len(head) < len(content)
    assert sum(request.sent for request in server.requests) <= len(head) + (1 << 20)


def test_the_estimate_is_an_event_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    from localllm.cli.pull_progress import JsonEvents, describe

    event = FitEstimated("m", 10**9, 10**8, 4096, 8 * 10**9, 0, True, 12.3, None)
    JsonEvents()(event)
    assert json.loads(capsys.readouterr().out)["event"] == "fit_estimated"
    assert (
        describe(event) == "fits: 1.0 GB of weights and 100.0 MB for 4096 tokens, 8.0 GB free; about 12 tokens a second"
    )
