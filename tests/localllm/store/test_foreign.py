"""Models of Ollama and LM Studio are found, read in place, and never deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localllm.errors import ModelNotFoundError, StoreError
from localllm.store import Store, resolve_in
from localllm.store.foreign import foreign_models
from localllm.store.removal import remove_models

DIGEST = "a" * 64


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "person"
    monkeypatch.setenv("HOME", str(folder))
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


def add_ollama(home: Path, name: str, tag: str, manifest: object, namespace: str = "library") -> Path:
    models = home / ".ollama" / "models"
    path = models / "manifests" / "registry.ollama.ai" / namespace / name / tag
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    (models / "blobs").mkdir(exist_ok=True)
    return models / "blobs" / f"sha256-{DIGEST}"


def layers(digest: str = f"sha256:{DIGEST}") -> object:
    return {
        "layers": [
            {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "b" * 64},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
        ]
    }


def test_ollama(home: Path, store: Store, model_bytes: bytes) -> None:
    add_ollama(home, "llama3.2", "3b", layers()).write_bytes(model_bytes)
    add_ollama(home, "mine", "latest", layers(), namespace="me")
    found = {model.name: model for model in foreign_models()}
    assert set(found) == {"ollama:llama3.2:3b", "ollama:me/mine:latest"}
    assert resolve_in(store, "ollama:llama3.2:3b").path.read_bytes() == model_bytes
    assert resolve_in(store, "ollama:me/mine").path == found["ollama:me/mine:latest"].path
    assert not store.root.exists()


@pytest.mark.parametrize(
    "manifest",
    [[], {}, {"layers": 5}, {"layers": [5]}, layers("sha256:../../../etc/passwd"), layers("sha256:" + "c" * 64)],
)
def test_odd_ollama_manifests_are_passed_over(home: Path, manifest: object) -> None:
    add_ollama(home, "odd", "latest", manifest)
    assert foreign_models() == []


def test_lm_studio(home: Path, store: Store, model_bytes: bytes) -> None:
    folder = home / ".lmstudio" / "models" / "pub" / "repo-GGUF"
    folder.mkdir(parents=True)
    for name in ("m-Q4_K_M.gguf", "mmproj-m.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"):
        (folder / name).write_bytes(model_bytes)
    found = {model.name: model.size_bytes for model in foreign_models()}
    assert found == {
        "lmstudio:pub/repo-GGUF/m-Q4_K_M.gguf": len(model_bytes),
        "lmstudio:pub/repo-GGUF/s-00001-of-00002.gguf": 2 * len(model_bytes),
    }
    assert resolve_in(store, "lmstudio:pub/repo-GGUF/m-Q4_K_M.gguf").path == folder / "m-Q4_K_M.gguf"
    removed = remove_models(store, ("lmstudio:pub/repo-GGUF/m-Q4_K_M.gguf",))
    error = removed["lmstudio:pub/repo-GGUF/m-Q4_K_M.gguf"]
    assert isinstance(error, StoreError)
    assert "LM Studio" in str(error)
    assert (folder / "m-Q4_K_M.gguf").exists()


def test_a_name_that_no_program_has(home: Path, store: Store) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve_in(store, "ollama:nothing")
