"""`localllm rm`: delete models or unfinished pulls."""

from __future__ import annotations

import json

import click

from .completion import ModelName


@click.command()
@click.argument("models", type=ModelName(), nargs=-1)
@click.option("--partial", is_flag=True, help="Delete unfinished pulls: those of MODELS, or all.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def rm(models: tuple[str, ...], partial: bool, as_json: bool) -> None:
    """Delete MODELS from this computer; files that another model shares stay."""
    from localllm.errors import LocalLLMError
    from localllm.paths import Paths
    from localllm.store import Store
    from localllm.store.removal import remove_models, remove_partials
    from localllm.store.text import format_bytes

    if not models and not partial:
        raise click.UsageError("name a model, or give --partial")
    store = Store(Paths.from_environment())
    removed = remove_partials(store, models) if partial else remove_models(store, models)
    failed: list[LocalLLMError] = [item for item in removed.values() if isinstance(item, LocalLLMError)]
    freed = {name: item for name, item in removed.items() if isinstance(item, int)}
    if as_json:
        errors = {name: str(item) for name, item in removed.items() if isinstance(item, LocalLLMError)}
        click.echo(json.dumps({"freed_bytes": freed, "errors": errors}))
    else:
        for name, size in freed.items():
            click.echo(f"removed {name}: {format_bytes(size)} freed")
        if not removed:
            click.echo("there is no unfinished pull")
        for error in failed:
            click.echo(f"error: {error}", err=True)
    if failed:
        raise SystemExit(1)
