"""What `list` shows: every model with its size, age, last use and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

from .catalogue import load_catalogue
from .foreign import foreign_models

if TYPE_CHECKING:
    from datetime import datetime

    from .store import Store


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that can be used now. `last_used` (UTC) and `sha256` are known for models of our store only."""

    name: str
    size_bytes: int
    source: str
    path: str | None
    complete: bool
    files: int
    sha256: str | None = None
    licence: str | None = None
    pulled_at: str | None = None
    last_used: datetime | None = None


def default_model(store: Store) -> str:
    """The catalogue's default when it is here, else the model that was used last; with none here, what to fetch.

    ConfigurationError when the catalogue names none.
    """
    catalogue = load_catalogue(store.paths)
    here = [model.name for model in list_models(store) if model.complete]
    if here and catalogue.default not in here:
        return here[0]
    if catalogue.default is None:
        raise ConfigurationError("the catalogue names no default model", hint="localllm config set model NAME")
    return catalogue.default


def list_models(store: Store) -> list[ListedModel]:
    """The models of the store, the most recently used first."""
    found = []
    for manifest in store.models():
        complete = all(store.has_blob(file) for file in manifest.files)
        found.append(
            ListedModel(
                name=manifest.name,
                size_bytes=manifest.size_bytes,
                source=manifest.source,
                path=str(store.path_of(manifest)) if complete else None,
                complete=complete,
                files=len(manifest.files),
                sha256=manifest.files[0].sha256,
                licence=manifest.licence,
                pulled_at=manifest.pulled_at,
                last_used=store.last_used(manifest),
            )
        )
    return sorted(found, key=lambda model: (-(model.last_used.timestamp() if model.last_used else 0), model.name))


def list_foreign() -> list[ListedModel]:
    """Models of other programs that can be used in place."""
    return [
        ListedModel(model.name, model.size_bytes, model.program, str(model.path), True, 1) for model in foreign_models()
    ]
