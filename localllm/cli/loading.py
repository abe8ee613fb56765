"""How a command gets a model: settings, environment and flags merged, the file found or pulled, progress shown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from .context import check_flags, long_context, with_room
from .progress import load_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localllm.llm import LLM
    from localllm.store import ResolvedModel

LOAD_SETTINGS = (
    *(
        "device",
        "threads",
        "vram",
        "context",
        "kv",
        "kv_policy",
        "window",
        "sinks",
        "context_policy",
        "mode",
        "speculate",
    ),
    "chat_template",
)


def resolve(model: str) -> ResolvedModel:
    """Find a model; one of the catalogue is pulled on first use, with its progress on stderr."""
    from localllm.store import resolve_model

    from .pull_progress import open_view

    with contextlib.closing(open_view(False)) as view:
        return resolve_model(model, pull=True, progress=view)


@contextlib.contextmanager
def open_model(
    model: str, flags: dict[str, Any], *, verbose: bool = False, **fixed: Any
) -> Iterator[tuple[LLM, ResolvedModel]]:
    """A loaded model for the length of a command, and what is known of it.

    In rising order: what the catalogue advises, the settings file, the environment, `flags`, `fixed`.
    """
    from localllm.llm import LLM
    from localllm.paths import Paths
    from localllm.settings import Settings
    from localllm.spare_memory import use_one_arena
    from localllm.store.defaults import load_keywords

    use_one_arena()
    check_flags(flags)
    settings = Settings.load({name: flags.get(name) for name in LOAD_SETTINGS})
    values = {name: getattr(settings, name) for name in LOAD_SETTINGS}
    found = resolve(model)
    keywords = load_keywords(found.entry, Paths.from_environment().cache)
    keywords |= {name: value for name, value in values.items() if value is not None} | fixed
    keywords = with_room(keywords)
    with load_progress(verbose) as progress, LLM(found.path, progress=progress, **keywords) as llm:
        progress.done()
        if warning := long_context(llm):
            click.echo(warning, err=True)
        yield llm, found
