"""`localllm import`: put a model file into the store."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Store it under this name; default: its file name.")
@click.option("--link", is_flag=True, help="Share the bytes with FILE instead of copying; FILE must not change then.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def import_command(file: Path, name: str | None, link: bool, as_json: bool) -> None:
    """Put a model FILE of this computer into the store (any part of a split model brings all)."""
    from localllm.paths import Paths
    from localllm.store import FileProgress, Store
    from localllm.store.import_file import import_file
    from localllm.store.text import format_bytes

    from .pull_progress import open_view

    store = Store(Paths.from_environment())
    with contextlib.closing(open_view(as_json=False)) as view:
        manifest = import_file(
            store, file, name, link=link, progress=lambda *seen: None if as_json else view(FileProgress(*seen))
        )
    if as_json:
        facts = {"name": manifest.name, "path": str(store.path_of(manifest)), "size_bytes": manifest.size_bytes}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"imported {manifest.name} ({format_bytes(manifest.size_bytes)})")
