"""`localllm chat`: the terminal app, or a plain line mode where there is no screen for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .context import check_flags
from .loading import LOAD_SETTINGS
from .options import Text, load_options, sampling_options, split_options
from .terminal import draws_boxes, has_screen

if TYPE_CHECKING:
    from localllm.chat.models import ModelSource
    from localllm.paths import Paths
    from localllm.settings import Settings


def model_source(paths: Paths, settings: Settings, model: str | None, url: str | None) -> ModelSource:
    """This computer's models with the user's settings, or those of a server."""
    from localllm.chat.models import LocalModels, RemoteModels
    from localllm.store import Store

    if url is not None:
        return RemoteModels(url, model=model, api_key=settings.api_key)
    values = {name: getattr(settings, name) for name in LOAD_SETTINGS}
    keywords = {name: value for name, value in values.items() if value is not None}
    return LocalModels(Store(paths), keywords, default=settings.model)


@click.command()
@click.argument("model", type=ModelName(), required=False)
@click.option("--url", help="Talk to an OpenAI endpoint, such as http://127.0.0.1:8080/v1, instead of a model here.")
@click.option("--plain", is_flag=True, help="Lines instead of a screen: for screen readers and simple terminals.")
@click.option("--system", type=Text(), help="System prompt of new chats.")
@click.option("--open", "number", type=click.IntRange(1), help="Go on with this chat (its number is in /chats).")
@click.option("--last", is_flag=True, help="Go on with the newest chat.")
@load_options
@sampling_options
def chat(
    model: str | None = None,
    url: str | None = None,
    plain: bool = False,
    system: str | None = None,
    number: int | None = None,
    last: bool = False,
    **options: Any,
) -> None:
    """Chat with MODEL (a name or a .gguf file; by default the one in the settings) in this terminal.

    Chats are kept; when the context is full the oldest part leaves it, and the chat goes on.
    """
    from localllm.chat.desk import ChatDesk
    from localllm.conversations import ConversationStore
    from localllm.conversations.caches import DEFAULT_BYTES
    from localllm.paths import Paths
    from localllm.settings import Settings
    from localllm.spare_memory import use_one_arena

    use_one_arena()
    load, sampling = split_options(options)
    check_flags(load, slides=load.get("kv_policy") is None)
    if "stop" in sampling:
        sampling["stop"] = list(sampling["stop"])
    paths = Paths.from_environment()
    settings = Settings.load({name: load.get(name) for name in LOAD_SETTINGS}, paths=paths)
    models = model_source(paths, settings, model, url)
    cache_bytes = DEFAULT_BYTES if settings.chat_cache is None else settings.chat_cache
    store = ConversationStore(paths.chats, cache_bytes=cache_bytes)
    try:
        desk = ChatDesk(store, models, model or models.default(), system=system or "", sampling=sampling)
        if last and number is None:
            newest = store.conversations(limit=1)
            number = newest[0].id if newest else None
        if number is not None:
            desk.open(number, keep_model=model is not None)
            desk.override(system, sampling)
        if plain or not has_screen():
            from .plain_chat import PlainChat

            if not plain and sys.stdout.isatty() and not draws_boxes(sys.stdout):
                note = f"this terminal's encoding ({sys.stdout.encoding}) cannot draw the screen: a chat in lines"
                click.echo(note, err=True)
            PlainChat(desk).run()
        else:
            from localllm.tui.app import ChatApp

            app = ChatApp(desk, paths)
            app.run()
            if app.return_code:
                sys.exit(app.return_code)
    finally:
        store.close()
