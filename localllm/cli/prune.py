"""`localllm prune`: delete what no model needs."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from localllm.paths import Paths

OLD_CHAT = 30 * 86400.0  # seconds after which what was computed for a chat is not worth its place


@click.command()
@click.option("--partial/--keep-partial", default=True, show_default=True, help="Delete unfinished pulls too.")
@click.option(
    "--cache/--keep-cache", default=True, show_default=True, help="Delete caches: repacked weights, old KV of chats."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def prune(partial: bool, cache: bool, as_json: bool) -> None:
    """Delete files no model uses, unfinished pulls and caches. Models stay."""
    from localllm.paths import Paths
    from localllm.store import Store
    from localllm.store.text import format_bytes
    from localllm.store.verify import prune as prune_store

    paths = Paths.from_environment()
    freed = asdict(prune_store(Store(paths), partial=partial, repacked=cache))
    freed["chat_caches"] = prune_chat_caches(paths) if cache else 0
    if as_json:
        click.echo(json.dumps({"freed_bytes": freed}))
        return
    for name, size in freed.items():
        if size:
            click.echo(f"{name.replace('_', ' ')}: {format_bytes(size)} freed")
    if not any(freed.values()):
        click.echo("nothing to delete")


def prune_chat_caches(paths: Paths) -> int:
    """Delete saved KV of chats that are gone, or were not opened for a month; the bytes it took. Chats stay."""
    from localllm.conversations import ConversationStore
    from localllm.conversations.caches import DEFAULT_BYTES, ChatCaches
    from localllm.conversations.store import CACHES
    from localllm.settings import Settings

    if not paths.chats.exists():
        return ChatCaches(paths.chats.parent / CACHES).prune(())
    chosen = Settings.load(paths=paths).chat_cache
    store = ConversationStore(paths.chats, cache_bytes=DEFAULT_BYTES if chosen is None else chosen)
    try:
        return store.prune_caches(unused_since=time.time() - OLD_CHAT)
    finally:
        store.close()
