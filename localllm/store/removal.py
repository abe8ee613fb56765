"""Removing models and unfinished pulls by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import LocalLLMError, ModelNotFoundError, StoreError

from .catalogue import load_catalogue
from .foreign import find_foreign
from .text import nearest_hint, printable

if TYPE_CHECKING:
    from .store import Store

Removed = dict[str, "int | LocalLLMError"]


def remove_models(store: Store, names: tuple[str, ...]) -> Removed:
    """Bytes that became free for each name, or why it could not be removed."""
    return {name: _attempt(store, name) for name in names}


def remove_partials(store: Store, names: tuple[str, ...] = ()) -> Removed:
    """Delete unfinished pulls: of these models, or all. A pull that is running is an error for its name."""
    result: Removed = {}
    partials = store.partials()
    wanted = {_canonical(store, name) for name in names}
    for item in partials:
        if names and item.name.lower() not in wanted:
            continue
        try:
            store.remove_partial(item)
            freed = result.get(item.name, 0)
            result[item.name] = item.bytes_on_disk + (freed if isinstance(freed, int) else 0)
        except StoreError as error:
            result[item.name] = error
    found = {item.name.lower() for item in partials}
    for name in names:
        if _canonical(store, name) not in found:
            result[name] = ModelNotFoundError(f"there is no unfinished pull of {printable(name, 80)}")
    return result


def _canonical(store: Store, name: str) -> str:
    entry = load_catalogue(store.paths).find(name)
    return (entry.name if entry is not None else name).lower()


def _attempt(store: Store, name: str) -> int | LocalLLMError:
    try:
        manifest = store.find(name) or store.find(_canonical(store, name))
        if manifest is not None:
            return store.remove(manifest.name)
        foreign = find_foreign(name)
        if foreign is not None:
            return StoreError(f"{foreign.name} belongs to {foreign.program}", hint=f"remove it with {foreign.program}")
        known = [model.name for model in store.models()]
        hint = nearest_hint(name, known) or "see `localllm list`"
        return ModelNotFoundError(f"{printable(name, 80)} is not on this computer", hint=hint)
    except LocalLLMError as error:
        return error
