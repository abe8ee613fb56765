"""`localllm search`: models that can be pulled."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.argument("text", nargs=-1)
@click.option("--hub", is_flag=True, help="Search the Hugging Face hub too.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Results from the hub.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def search(text: tuple[str, ...], hub: bool, limit: int, as_json: bool) -> None:
    """Search the catalogue for TEXT (all of it without TEXT); with --hub the hub as well."""
    from localllm.paths import Paths
    from localllm.settings import Settings
    from localllm.store import Store, load_catalogue
    from localllm.store.network import network_options
    from localllm.store.sources.hub import search_hub
    from localllm.store.text import format_bytes
    from localllm.store.transfer import Client

    from .tables import print_table

    words = " ".join(text)
    paths = Paths.from_environment()
    entries = load_catalogue(paths).search(words)
    pulled = {manifest.name for manifest in Store(paths).models()}
    with Client(network_options(Settings.load(paths=paths))) as client:
        found = search_hub(client, words, limit) if hub else []
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
        if hub:
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
    if not entries and not found:
        where = "the catalogue" if not hub else "the catalogue or on the hub"
        click.echo(f"nothing in {where} matches {words!r}" + ("" if hub else "; try --hub"))
    elif any(entry.name in pulled for entry in entries):
        click.echo("* is on this computer", err=True)
