"""Models that other programs keep on this computer, read in place: Ollama, LM Studio, the Hugging Face cache."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.errors import DownloadError
from localllm.paths import expand_user

from .reference import HubReference
from .sources.quants import ListedFile, choose, variants_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model of another program. `path` is the file to open (the first of a split model); size in bytes."""

    name: str
    path: Path
    size_bytes: int
    program: str


def foreign_models(environment: Mapping[str, str] | None = None) -> list[ForeignModel]:
    """Every model of the programs we know; unreadable folders and files are passed over."""
    variables = os.environ if environment is None else environment
    return [*_ollama(variables), *_lm_studio(variables), *_hub_cache(variables)]


def find_foreign(name: str, environment: Mapping[str, str] | None = None) -> ForeignModel | None:
    """The model of another program by our name for it; case and Ollama's `:latest` do not matter."""
    wanted = name.lower()
    if not wanted.startswith(("ollama:", "lmstudio:")):
        return None
    for model in foreign_models(environment):
        if model.name.lower() in (wanted, f"{wanted}:latest"):
            return model
    return None


def find_in_hub_cache(reference: HubReference, environment: Mapping[str, str] | None = None) -> ForeignModel | None:
    """What the Hugging Face cache holds of a repository, chosen as a pull would choose."""
    variables = os.environ if environment is None else environment
    folder = hub_cache_folder(variables) / f"models--{reference.owner}--{reference.repository}"
    snapshot = _snapshot(folder, reference.revision)
    if snapshot is None:
        return None
    files = [
        ListedFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, None)
        for path in sorted(snapshot.rglob("*.gguf"))
        if path.is_file()
    ]
    variants, _ = variants_of(files)
    matching = [v for v in variants if reference.file is None or any(f.path == reference.file for f in v.files)]
    if not matching:
        return None
    with contextlib.suppress(DownloadError):
        chosen = choose(matching, reference.quant, reference.file, str(reference))
        return ForeignModel(str(reference), snapshot / chosen.path, chosen.size_bytes or 0, "Hugging Face cache")
    return None


def hub_cache_folder(variables: Mapping[str, str]) -> Path:
    """Where the Hugging Face libraries keep their files."""
    if variables.get("HF_HUB_CACHE"):
        return expand_user(variables["HF_HUB_CACHE"])
    home = variables.get("HF_HOME")
    if home:
        return expand_user(home) / "hub"
    cache = variables.get("XDG_CACHE_HOME") or str(_home(variables) / ".cache")
    return expand_user(cache) / "huggingface" / "hub"


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get("HOME") or variables.get("USERPROFILE") or Path.home())


def _ollama(variables: Mapping[str, str]) -> Iterator[ForeignModel]:
    chosen = variables.get("OLLAMA_MODELS")
    folders = (
        [Path(chosen)] if chosen else [_home(variables) / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    )
    for folder in folders:
        manifests = folder / "manifests"
        for manifest in _files(manifests):
            parts = manifest.relative_to(manifests).parts
            if len(parts) != 4:
                continue
            host, namespace, name, tag = parts
            shown = f"{name}:{tag}" if namespace == "library" else f"{namespace}/{name}:{tag}"
            shown = shown if host == "registry.ollama.ai" else f"{host}/{shown}"
            blob = _ollama_blob(folder, manifest)
            if blob is not None:
                yield ForeignModel(f"ollama:{shown}", blob, blob.stat().st_size, "Ollama")


def _ollama_blob(folder: Path, manifest: Path) -> Path | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for layer in json.loads(manifest.read_bytes())["layers"]:
            digest = _DIGEST.fullmatch(layer["digest"])
            if layer["mediaType"] == _MODEL_LAYER and digest is not None:
                blob = folder / "blobs" / f"sha256-{digest[1]}"
                return blob if blob.is_file() else None
    return None


def _lm_studio(variables: Mapping[str, str]) -> Iterator[ForeignModel]:
    home = _home(variables)
    folders = [home / ".lmstudio", home / ".cache/lm-studio"]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        folders.insert(0, Path((home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()))
    seen: set[Path] = set()
    for folder in folders:
        models = folder / "models"
        if models in seen:
            continue
        seen.add(models)
        by_folder: dict[Path, list[ListedFile]] = {}
        for path in _files(models):
            if path.suffix.lower() == ".gguf":
                listed = ListedFile(path.relative_to(models).as_posix(), path.stat().st_size, None)
                by_folder.setdefault(path.parent, []).append(listed)
        for files in by_folder.values():
            for variant in variants_of(files)[0]:
                yield ForeignModel(
                    f"lmstudio:{variant.path}", models / variant.path, variant.size_bytes or 0, "LM Studio"
                )


def _hub_cache(variables: Mapping[str, str]) -> Iterator[ForeignModel]:
    cache = hub_cache_folder(variables)
    with contextlib.suppress(OSError):
        for folder in sorted(cache.glob("models--*--*")):
            _, owner, repository = folder.name.split("--", 2)
            snapshot = _snapshot(folder, "main")
            if snapshot is None:
                continue
            paths = [path for path in _files(snapshot) if path.suffix.lower() == ".gguf"]
            files = [ListedFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, None) for path in paths]
            for variant in variants_of(files)[0]:
                name = f"hf:{owner}/{repository}/{variant.path}"
                yield ForeignModel(name, snapshot / variant.path, variant.size_bytes or 0, "Hugging Face cache")


def _snapshot(folder: Path, revision: str) -> Path | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
        if re.fullmatch(r"[0-9a-f]{40}", commit) and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    direct = folder / "snapshots" / revision
    return direct if direct.is_dir() else None


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = sorted(path for path in folder.rglob("*") if path.is_file())
    return found
