"""`localllm search`: models that can be pulled."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from localllm.store.sources.hub import FoundRepository


@click.command()
@click.argument("text", nargs=-1)
@click.option("--hub/--no-hub", default=None, help="Search the Hugging Face hub too; default: when TEXT is given.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Results from the hub.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def search(text: tuple[str, ...], hub: bool | None, limit: int, as_json: bool) -> None:
    """Search the catalogue and the hub for TEXT; without TEXT, show the whole catalogue."""
    from localllm.errors import DownloadError
    from localllm.paths import Paths
    from localllm.settings import Settings
    from localllm.store import Store, load_catalogue
    from localllm.store.network import network_options
    from localllm.store.sources.hub import search_hub
    from localllm.store.text import format_bytes
    from localllm.store.transfer import Client
    from localllm.store.transfer.retry import RetryPolicy

    from .tables import print_table

    words = " ".join(text)
    paths = Paths.from_environment()
    entries = load_catalogue(paths).search(words)
    pulled = {manifest.name for manifest in Store(paths).models()}
    network = network_options(Settings.load(paths=paths))
    found: list[FoundRepository] = []
    unreached: str | None = None
    if hub or (hub is None and words and not network.offline):
        try:
            with Client(
                replace(network, connect_timeout=5.0, read_timeout=10.0, retry=RetryPolicy(attempts=1))
            ) as client:
                found = search_hub(client, words, limit)
        except DownloadError as error:
            if hub:
                raise
            unreached = error.message
    if as_json:
        facts: dict[str, Any] = {
            "catalogue": [
                {
                    "name": entry.name,
                    "description": entry.description,
                    "size_bytes": entry.size_bytes,
                    "quant": entry.quant,
                    "licence": entry.licence,
                    "source": str(entry.source),
                    "pulled": entry.name in pulled,
                }
                for entry in entries
            ]
        }
        if hub is not False and words:
            facts["hub_error"] = unreached
            facts["hub"] = [
                {"name": f"hf:{item.name}", "downloads": item.downloads, "licence": item.licence, "gated": item.gated}
                for item in found
            ]
        click.echo(json.dumps(facts))
        return
    rows = [
        (
            f"{entry.name}{' *' if entry.name in pulled else ''}",
            "" if entry.size_bytes is None else format_bytes(entry.size_bytes),
            entry.licence or "",
            entry.description or "",
        )
        for entry in entries
    ]
    print_table(rows, right=(1,))
    print_table(
        [(f"hf:{r.name}", f"{r.downloads} downloads", r.licence or "", "gated" if r.gated else "") for r in found]
    )
    if unreached is not None:
        click.echo(f"only the catalogue was searched: {unreached}", err=True)
    if not entries and not found:
        click.echo(f"nothing matches {words!r}")
    elif any(entry.name in pulled for entry in entries):
        click.echo("* is on this computer", err=True)
