"""The hub: choosing files, split models, hashes, gated repositories, redirects, tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from localllm.errors import DownloadError, StoreError
from localllm.gguf_io import QuantType, open_gguf
from localllm.gguf_io.writer import write_gguf
from localllm.store import NetworkOptions, Store, pull_into, resolve_in
from localllm.store.sources.hub import search_hub
from localllm.store.transfer import Client

if TYPE_CHECKING:
    from localllm.store.events import PullEvent
    from tests.localllm.store.conftest import FaultServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret_token_of_this_test"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Hub:
    """A hub on the test's server with one repository, owner/model."""

    def __init__(self, server: FaultServer, network: NetworkOptions) -> None:
        self.server = server
        self.network = replace(network, hub_endpoint=server.url)
        self.files: dict[str, bytes] = {}
        self.hashed = True

    @property
    def page_path(self) -> str:
        return "/api/models/owner/model/revision/main?blobs=true"

    def add(self, **files: bytes) -> None:
        self.files |= {name.replace("__", "/"): content for name, content in files.items()}

    def publish(self, **extra: Any) -> None:
        siblings = []
        for name, content in self.files.items():
            stored = {"lfs": {"sha256": digest(content), "size": len(content)}} if self.hashed else {}
            siblings.append({"rfilename": name, "size": len(content), **stored})
            self.server.add(f"/owner/model/resolve/{COMMIT}/{name}", content)
        page = {"sha": COMMIT, "siblings": siblings, "cardData": {"license": "mit"}, "gated": False, **extra}
        self.server.add("/api/models/owner/model/revision/main", json.dumps(page).encode())

    def file_path(self, name: str) -> str:
        return f"/owner/model/resolve/{COMMIT}/{name}"


@pytest.fixture
def hub(server: FaultServer, network: NetworkOptions) -> Hub:
    return Hub(server, network)


@pytest.fixture(scope="session")
def split_model(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A model in three parts."""
    folder = tmp_path_factory.mktemp("split")
    parts = []
    for number in range(3):
        path = folder / f"part{number}.gguf"
        metadata: dict[str, Any] = {} if number else {"general.architecture": "llama", "general.name": "Split"}
        metadata |= {
            "split.no": np.uint16(number),
            "split.count": np.uint16(3),
            "split.tensors.count": np.int32(3),
        }
        values = np.full((256, 256), number, dtype=np.float32)
        write_gguf(path, metadata, {f"tensor{number}": (QuantType.F32, values.shape, values)})
        parts.append(path.read_bytes())
    return parts


def shard_names(quant: str) -> list[str]:
    return [f"model-{quant}-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


def test_the_default_quant_is_taken_and_projectors_are_left_out(hub: Hub, store: Store, model_bytes: bytes) -> None:
    hub.files = {
        "model-Q8_0.gguf": model_bytes + b"8",
        "model-Q4_K_M.gguf": model_bytes,
        "mmproj-model-f16.gguf": b"projector",
        "README.md": b"text",
    }
    hub.publish()
    events: list[PullEvent] = []
    manifest = pull_into(store, "hf:owner/model", network=hub.network, report=events.append)
    assert manifest.name == "hf:owner/model:Q4_K_M"
    assert (manifest.licence, manifest.files[0].verified_by) == ("mit", "hub")
    assert store.path_of(manifest).read_bytes() == model_bytes
    assert any("mmproj" in str(event) for event in events)
    assert resolve_in(store, "hf:owner/model:q4_k_m").path == store.path_of(manifest)


@pytest.mark.parametrize("wanted", ["hf:owner/model:Q8_0", "hf:owner/model:q8", "hf:owner/model/model-Q8_0.gguf"])
def test_a_quant_or_a_file_can_be_named(hub: Hub, store: Store, model_bytes: bytes, wanted: str) -> None:
    hub.files = {"model-Q8_0.gguf": model_bytes, "model-Q4_K_M.gguf": model_bytes[:-1]}
    hub.publish()
    assert store.path_of(pull_into(store, wanted, network=hub.network)).read_bytes() == model_bytes


def test_an_unknown_quant_lists_what_there_is(hub: Hub, store: Store, model_bytes: bytes) -> None:
    hub.files = {"best-of-breed.gguf": model_bytes, "model-Q4_K_M.gguf": model_bytes}
    hub.publish()
    with pytest.raises(DownloadError, match="has no Q9") as caught:
        pull_into(store, "hf:owner/model:Q9", network=hub.network)
    assert "best-of-breed.gguf (3.1 MB)" in str(caught.value)


def test_a_file_with_of_in_its_name_is_no_shard(hub: Hub, store: Store, model_bytes: bytes) -> None:
    hub.files = {"best-of-breed.gguf": model_bytes}
    hub.publish()
    manifest = pull_into(store, "hf:owner/model", network=hub.network)
    assert manifest.name == "hf:owner/model/best-of-breed.gguf"


@pytest.mark.parametrize("wanted", ["hf:owner/model:Q8", "hf:owner/model/model-Q8_0-00002-of-00003.gguf"])
def test_all_parts_of_a_split_model_are_one_model(
    hub: Hub, store: Store, model_bytes: bytes, split_model: list[bytes], wanted: str
) -> None:
    hub.files = dict(zip(shard_names("Q8_0"), split_model, strict=True)) | {"model-Q4_K_M.gguf": model_bytes}
    hub.publish()
    manifest = pull_into(store, wanted, network=hub.network)
    assert manifest.size_bytes == sum(map(len, split_model))
    assert [model.name for model in store.models()] == [manifest.name]
    path = store.path_of(manifest)
    with open_gguf(path) as file:
        assert len(file.tensors) == 3
    with open_gguf(path.with_name(shard_names("Q8_0")[1])) as file:
        assert len(file.tensors) == 3
    freed = store.remove(manifest.name)
    assert freed == manifest.size_bytes
    assert not any(store.splits.iterdir())


def test_a_missing_part_is_an_error_that_names_it(hub: Hub, store: Store, split_model: list[bytes]) -> None:
    hub.files = dict(zip(shard_names("Q8_0"), split_model, strict=True))
    hub.publish()
    manifest = pull_into(store, "hf:owner/model", network=hub.network)
    store.blob(manifest.files[1].sha256).unlink()
    with pytest.raises(StoreError, match=shard_names("Q8_0")[1]):
        store.path_of(manifest)


def test_a_part_that_the_repository_lacks_makes_the_set_unusable(
    hub: Hub, store: Store, split_model: list[bytes]
) -> None:
    hub.files = dict(list(zip(shard_names("Q8_0"), split_model, strict=True))[:2])
    hub.publish()
    with pytest.raises(DownloadError, match="no GGUF model"):
        pull_into(store, "hf:owner/model", network=hub.network)


def test_parts_of_different_models_never_get_into_the_store(hub: Hub, store: Store, split_model: list[bytes]) -> None:
    mixed = [split_model[0], split_model[2], split_model[1]]
    hub.files = dict(zip(shard_names("Q8_0"), mixed, strict=True))
    hub.publish()
    with pytest.raises(DownloadError, match="do not make one model"):
        pull_into(store, "hf:owner/model", network=hub.network)
    assert store.models() == []


def test_one_part_pulled_by_its_url_says_how_to_get_all(
    server: FaultServer, store: Store, network: NetworkOptions, split_model: list[bytes]
) -> None:
    url = server.add("/part.gguf", split_model[0])
    with pytest.raises(DownloadError, match="one of 3 parts"):
        pull_into(store, url, network=network)


def test_a_file_that_differs_from_the_listed_hash_is_refused(hub: Hub, store: Store, model_bytes: bytes) -> None:
    hub.files = {"model-Q4_K_M.gguf": model_bytes}
    hub.publish()
    hub.server.files[hub.file_path("model-Q4_K_M.gguf")] = model_bytes[:-1] + bytes([model_bytes[-1] ^ 1])
    with pytest.raises(DownloadError, match=digest(model_bytes)):
        pull_into(store, "hf:owner/model", network=hub.network)
    assert store.models() == []


def test_without_a_listed_hash_the_linked_etag_counts(hub: Hub, store: Store, model_bytes: bytes) -> None:
    hub.files, hub.hashed = {"model-Q4_K_M.gguf": model_bytes}, False
    hub.publish()
    path = hub.file_path("model-Q4_K_M.gguf")
    hub.server.fail_always(path, headers={"X-Linked-ETag": f'"{digest(model_bytes)}"'})
    manifest = pull_into(store, "hf:owner/model", network=hub.network)
    assert manifest.files[0].verified_by == "server"
    hub.server.fail_always(path, headers={"X-Linked-ETag": f'"{"0" * 64}"'})
    with pytest.raises(DownloadError, match="wanted sha256 0000"):
        pull_into(store, "hf:owner/model", network=hub.network)


MESSAGES = [
    (401, "GatedRepo", None, "needs a login", "set HF_TOKEN"),
    (403, "GatedRepo", TOKEN, "no access yet", "accept its licence at"),
    (404, "RepoNotFound", TOKEN, "no such repository", "check the spelling"),
    (401, "RepoNotFound", None, "no such repository", "if it is private, set HF_TOKEN"),
    (401, None, TOKEN, "does not accept your token", "make a new one"),
    (404, "RevisionNotFound", None, "no such revision", "check the spelling"),
]


@pytest.mark.parametrize(("status", "code", "token", "text", "advice"), MESSAGES)
@pytest.mark.parametrize("where", ["listing", "file"])
def test_refusals_say_what_to_do(
    hub: Hub, store: Store, model_bytes: bytes, status: int, code: str | None, token: str | None,
    text: str, advice: str, where: str,
) -> None:  # fmt: skip
    hub.files = {"model-Q4_K_M.gguf": model_bytes}
    hub.publish()
    path = hub.page_path if where == "listing" else hub.file_path("model-Q4_K_M.gguf")
    hub.server.fail_always(path, status=status, headers={"X-Error-Code": code} if code else {})
    with pytest.raises(DownloadError, match=text) as caught:
        pull_into(store, "hf:owner/model", network=replace(hub.network, hub_token=token))
    assert advice in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_token_goes_to_the_hub_and_to_no_other_host(
    hub: Hub, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    hub.files = {"model-Q4_K_M.gguf": model_bytes}
    hub.publish()
    elsewhere = hub.server.url.replace("127.0.0.1", "localhost")
    hub.server.add("/storage/blob", model_bytes)
    target = f"{elsewhere}/storage/blob?signature=1"
    hub.server.fail_always(hub.file_path("model-Q4_K_M.gguf"), status=302, headers={"Location": target})
    manifest = pull_into(store, "hf:owner/model", network=replace(hub.network, hub_token=TOKEN))
    assert store.path_of(manifest).read_bytes() == model_bytes
    for request in hub.server.requests:
        sent = request.headers.get("authorization")
        assert sent == (None if request.path.startswith("/storage") else f"Bearer {TOKEN}")
    kept = b"".join(path.read_bytes() for path in store.root.rglob("*.json"))
    assert TOKEN.encode() not in kept


def test_an_endpoint_may_end_in_a_slash(hub: Hub, store: Store, model_bytes: bytes) -> None:
    from localllm.settings import Settings
    from localllm.store.network import network_options

    hub.files = {"model-Q4_K_M.gguf": model_bytes}
    hub.publish()
    settings = Settings.load(environment={"HF_ENDPOINT": f"{hub.server.url}/", "LOCALLLM_HOME": "/nonexistent"})
    assert pull_into(store, "hf:owner/model", network=network_options(settings)).name == "hf:owner/model:Q4_K_M"


def test_a_catalogue_entry_with_a_hash_needs_no_listing(hub: Hub, store: Store, model_bytes: bytes) -> None:
    store.paths.config.mkdir(parents=True)
    store.paths.catalogue_file.write_text(
        f'[models."mine:1b"]\nsource = "hf:owner/model/m.gguf"\nsha256 = "{digest(model_bytes)}"\n'
        f'size_bytes = {len(model_bytes)}\nlicence = "MIT"\n'
    )
    hub.server.add("/owner/model/resolve/main/m.gguf", model_bytes)
    manifest = pull_into(store, "mine:1b", network=hub.network)
    assert (manifest.name, manifest.licence, manifest.files[0].verified_by) == ("mine:1b", "MIT", "catalogue")
    assert all("/api/" not in request.path for request in hub.server.requests)
    assert pull_into(store, "mine:1b", network=NetworkOptions(offline=True)) == manifest
    store.path_of(manifest).unlink()
    with pytest.raises(DownloadError, match="offline"):
        pull_into(store, "mine:1b", network=NetworkOptions(offline=True))


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"siblings": 5}', b'{"siblings": [{}]}', b"[" * 100_000])
def test_a_listing_that_cannot_be_read(hub: Hub, store: Store, body: bytes) -> None:
    hub.server.add("/api/models/owner/model/revision/main", body)
    with pytest.raises(DownloadError, match="cannot be read"):
        pull_into(store, "hf:owner/model", network=hub.network)


def test_search(hub: Hub) -> None:
    found = [
        {"id": "a/b-GGUF", "downloads": 7, "tags": ["license:mit", "gguf"], "gated": False},
        {"id": "c/d\x1b[2J", "downloads": "many", "tags": None, "gated": "auto"},
        "nonsense",
    ]
    hub.server.add("/api/models", json.dumps(found).encode())
    with Client(hub.network) as client:
        first, second = search_hub(client, "some text")
    assert (first.name, first.downloads, first.licence, first.gated) == ("a/b-GGUF", 7, "mit", False)
    assert (second.name, second.downloads, second.licence, second.gated) == ("c/d[2J", 0, None, True)
    assert "search=some+text" in hub.server.requests[-1].path


def test_the_hugging_face_cache_is_read_in_place(
    tmp_path: Path, store: Store, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--owner--model"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "model-Q4_K_M.gguf").write_bytes(model_bytes)
    (snapshot / "mmproj-F16.gguf").write_bytes(b"x")
    for name in ("hf:owner/model", "hf:owner/model:Q4_K_M", "hf:owner/model/model-Q4_K_M.gguf"):
        assert resolve_in(store, name).path == snapshot / "model-Q4_K_M.gguf"
    assert not store.root.exists()
