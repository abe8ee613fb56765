"""`localllm list`: the models on this computer."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from localllm.store.listing import ListedModel


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Show models of other programs too, and unfinished pulls.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def list_command(everything: bool, as_json: bool) -> None:
    """Show the models on this computer: size, last use, source."""
    from localllm.paths import Paths
    from localllm.store import Store
    from localllm.store.listing import list_foreign, list_models
    from localllm.store.text import format_bytes, printable

    from .tables import print_table

    store = Store(Paths.from_environment())
    models = list_models(store)
    foreign = list_foreign() if everything or not as_json else []
    partials = store.partials()
    if as_json:
        facts: dict[str, Any] = {"models": [_facts(model) for model in models], "store": str(store.root)}
        facts["partial"] = [{"name": item.name, "bytes_on_disk": item.bytes_on_disk} for item in partials]
        if everything:
            facts["foreign"] = [_facts(model) for model in foreign]
        click.echo(json.dumps(facts))
        return
    shown = models + (foreign if everything else [])
    rows = [("NAME", "SIZE", "LAST USED", "SOURCE")]
    for model in shown:
        state = model.source if model.complete else f"{model.source} (damaged: pull it again)"
        rows.append((printable(model.name, 80), format_bytes(model.size_bytes), _age(model), printable(state, 80)))
    if shown:
        print_table(rows, right=(1,))
    else:
        click.echo("no models yet; `localllm search` shows what there is, `localllm pull NAME` fetches one")
    _footer(foreign, len(partials), sum(item.bytes_on_disk for item in partials), everything)
    for item in partials if everything else []:
        click.echo(f"unfinished: {item.name} ({format_bytes(item.bytes_on_disk)})")


def _footer(foreign: list[ListedModel], partial_count: int, partial_bytes: int, everything: bool) -> None:
    from localllm.store.text import format_bytes

    if foreign and not everything:
        programs = ", ".join(sorted({model.source for model in foreign}))
        click.echo(f"{len(foreign)} more of {programs} can be used in place: localllm list --all", err=True)
    if partial_count:
        size = format_bytes(partial_bytes)
        click.echo(f"{partial_count} unfinished ({size}): pull again to go on, or localllm rm --partial", err=True)


def _facts(model: ListedModel) -> dict[str, Any]:
    facts = asdict(model)
    facts["last_used"] = model.last_used.isoformat(timespec="seconds") if model.last_used else None
    return facts


def _age(model: ListedModel) -> str:
    if model.last_used is None:
        return "-"
    seconds = (datetime.now(UTC) - model.last_used).total_seconds()
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
