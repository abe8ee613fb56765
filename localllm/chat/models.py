"""Where a chat gets its models: this computer's store and the catalogue, or the list of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .fitting import Fitting, fit_of_size
from .local import LocalBackend
from .remote import RemoteBackend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localllm.hardware import Hardware
    from localllm.store import CatalogueEntry, Report, Store

    from .backend import ChatBackend
    from .fitting import Fit, Known


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that a person may pick. `fits` this machine's memory, `note` says what that means."""

    name: str
    size_bytes: int | None
    licence: str
    description: str
    here: bool
    fits: Fit
    note: str


class ModelSource(Protocol):
    """What a front end needs to know of models. Methods block; errors are LocalLLMError."""

    def default(self) -> str:
        """The model to start with when nobody names one."""

    def is_here(self, name: str) -> bool:
        """Whether `open` and `load` need no download."""

    def choices(self) -> list[ModelChoice]:
        """Every model there is, those that are here first."""

    def open(self, name: str) -> ChatBackend:
        """A backend, not loaded yet."""

    def pull(self, name: str, report: Report) -> None:
        """Fetch a model; an exception out of `report` ends it, and what was fetched stays."""


class LocalModels:
    """Models of this user. `keywords` are those of `LLM`, for every model that is opened."""

    def __init__(self, store: Store, keywords: Mapping[str, Any], *, default: str | None = None) -> None:
        self._store = store
        self._keywords = dict(keywords)
        self._default = default
        self._seen: Known = {}

    def default(self) -> str:
        """The setting, else as `default_model` says."""
        from localllm.store.listing import default_model

        return self._default if self._default is not None else default_model(self._store)

    def is_here(self, name: str) -> bool:
        """Whether the name leads to a file on this computer."""
        from localllm.errors import ModelNotFoundError
        from localllm.store import resolve_in

        try:
            resolve_in(self._store, name)
        except ModelNotFoundError:
            return False
        return True

    def choices(self) -> list[ModelChoice]:
        """Pulled models, those of other programs, then the rest of the catalogue."""
        from localllm.hardware import detect
        from localllm.placement.remembered import supposed_machine
        from localllm.store import load_catalogue
        from localllm.store.listing import list_foreign, list_models

        hardware = detect()
        machine = supposed_machine(hardware, self._store.paths.cache)
        fitting = Fitting(hardware, machine, self._keywords.get("context"), self._keywords.get("kv", "f16"))
        catalogue = load_catalogue(self._store.paths)
        found: dict[str, ModelChoice] = {}
        for model in [*list_models(self._store), *list_foreign()]:
            entry = catalogue.find(model.name)
            licence = model.licence or (entry.licence if entry is not None else None) or "unknown"
            about = (entry.description if entry is not None else None) or model.source
            if model.complete and model.name not in found:
                size = model.size_bytes
                fits, note = (
                    fitting.of_file(model.path, size, self._seen) if model.path else fit_of_size(size, hardware)
                )
                found[model.name] = ModelChoice(model.name, model.size_bytes, licence, about, True, fits, note)
        for entry in catalogue:
            if entry.name not in found:
                found[entry.name] = _choice(entry, hardware)
        return list(found.values())

    def open(self, name: str) -> LocalBackend:
        """A backend; the catalogue's advice on loading and sampling goes with it."""
        from localllm.store import load_catalogue
        from localllm.store.defaults import load_keywords

        entry = load_catalogue(self._store.paths).find(name)
        keywords = load_keywords(entry, self._store.paths.cache) | self._keywords
        return LocalBackend(name, keywords, entry.sampling if entry is not None else None)

    def pull(self, name: str, report: Report) -> None:
        """Fetch a model into the store."""
        from localllm.settings import Settings
        from localllm.store import pull_into
        from localllm.store.network import network_options

        network = network_options(Settings.load(paths=self._store.paths))
        pull_into(self._store, name, network=network, report=report)


class RemoteModels:
    """Models that a server lists."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self._url, self._model, self._api_key = url, model, api_key

    def default(self) -> str:
        """The named model, else the server's first one."""
        from localllm.errors import ExecutionError

        names = [self._model] if self._model is not None else RemoteBackend(self._url, api_key=self._api_key).models()
        if not names:
            raise ExecutionError(f"{self._url} lists no models")
        return names[0]

    def is_here(self, name: str) -> bool:
        """Nothing is ever fetched."""
        return True

    def choices(self) -> list[ModelChoice]:
        """The names that the server lists; it does not tell more."""
        names = RemoteBackend(self._url, api_key=self._api_key).models()
        return [ModelChoice(name, None, "", f"at {self._url}", True, "unknown", "on the server") for name in names]

    def open(self, name: str) -> RemoteBackend:
        """A backend for one of the server's models."""
        return RemoteBackend(self._url, name, api_key=self._api_key)

    def pull(self, name: str, report: Report) -> None:
        """A server pulls for itself."""
        from localllm.errors import RequestError

        raise RequestError(f"{name}: models of a server cannot be pulled from here")


def _choice(entry: CatalogueEntry, hardware: Hardware) -> ModelChoice:
    fits, note = fit_of_size(entry.size_bytes, hardware)
    licence, about = entry.licence or "unknown", entry.description or str(entry.source)
    return ModelChoice(entry.name, entry.size_bytes, licence, about, False, fits, note)
