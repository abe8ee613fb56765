"""Plain web addresses: names, hashes in the address, and what a pull reports."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from localllm.errors import DownloadError
from localllm.store import Note, PullFinished, PullPlanned, Store, pull_into, resolve_in

if TYPE_CHECKING:
    from localllm.store import NetworkOptions, PullEvent
    from tests.localllm.store.conftest import FaultServer


def test_the_file_names_the_model(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    events: list[PullEvent] = []
    url = server.add("/dir/My%20Model-Q8_0.gguf", model_bytes)
    manifest = pull_into(store, f"{url}?download=true", network=network, report=events.append)
    assert (manifest.name, manifest.files[0].verified_by) == ("My_Model-Q8_0", "first pull")
    assert "download" not in manifest.source
    assert resolve_in(store, "my_model-q8_0").path == store.path_of(manifest)
    assert isinstance(events[0], PullPlanned)
    assert isinstance(events[-1], PullFinished)
    assert any(isinstance(event, Note) and "nobody published a hash" in event.text for event in events)


def test_a_hash_in_the_address_is_checked_and_spares_a_second_fetch(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    url = f"{server.add('/m.gguf', model_bytes)}#sha256={hashlib.sha256(model_bytes).hexdigest()}"
    assert pull_into(store, url, network=network).files[0].verified_by == "url"
    server.requests.clear()
    assert pull_into(store, url, name="again", network=network).name == "again"
    assert server.requests == []
    assert len(list(store.blobs.iterdir())) == 1
    with pytest.raises(DownloadError, match="wanted sha256"):
        pull_into(store, url.replace("sha256=", f"sha256={'0' * 64}")[: -len("0" * 64)], name="x", network=network)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
        (b'{"error": "no"}', "JSON text"),
        (b"GGUF\x03\x00\x00\x00", "not a usable model"),
    ],
)
def test_what_is_no_model_never_gets_into_the_store(
    server: FaultServer, store: Store, network: NetworkOptions, content: bytes, text: str
) -> None:
    with pytest.raises(DownloadError, match=text):
        pull_into(store, server.add("/m.gguf", content), network=network)
    assert store.models() == []
    assert store.partials() == []


def test_a_model_cut_short_by_its_server_is_refused(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    with pytest.raises(DownloadError, match="ends at byte"):
        pull_into(store, server.add("/m.gguf", model_bytes[:-100]), network=network)


def test_a_user_and_password_are_sent_and_not_kept(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    url = server.add("/m.gguf", model_bytes).replace("http://", "http://user:hunter2@")
    manifest = pull_into(store, url, network=network)
    assert server.requests[-1].headers["authorization"].startswith("Basic ")
    assert "hunter2" not in manifest.to_json().decode()


def test_names_that_lead_elsewhere_are_harmless(
    server: FaultServer, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    manifest = pull_into(store, server.add("/%2e%2e%2f%2e%2e%2fetc%2fpasswd", model_bytes), network=network)
    assert store.path_of(manifest).parent == store.blobs
    assert manifest.name == "passwd"
