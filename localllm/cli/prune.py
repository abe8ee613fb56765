"""`localllm prune`: delete what no model needs."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command()
@click.option("--partial/--keep-partial", default=True, show_default=True, help="Delete unfinished pulls too.")
@click.option("--cache/--keep-cache", default=True, show_default=True, help="Delete repacked weights (made again).")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def prune(partial: bool, cache: bool, as_json: bool) -> None:
    """Delete files no model uses, unfinished pulls and caches. Models stay."""
    from localllm.paths import Paths
    from localllm.store import Store
    from localllm.store.text import format_bytes
    from localllm.store.verify import prune as prune_store

    freed = prune_store(Store(Paths.from_environment()), partial=partial, repacked=cache)
    if as_json:
        click.echo(json.dumps({"freed_bytes": asdict(freed)}))
        return
    for name, size in asdict(freed).items():
        if size:
            click.echo(f"{name.replace('_', ' ')}: {format_bytes(size)} freed")
    if not any(asdict(freed).values()):
        click.echo("nothing to delete")
