"""`localllm config`: the settings, and where each value comes from."""

from __future__ import annotations

import json

import click

from .group import Group


@click.group(cls=Group)
def config() -> None:
    """Look at and change the settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(origin: bool, as_json: bool) -> None:
    """Every setting with its value. Flags beat LOCALLLM_* variables, these beat settings.toml, that the defaults."""
    from localllm.paths import Paths
    from localllm.settings import KINDS, Settings, setting_names

    from .tables import print_table

    paths = Paths.from_environment()
    settings = Settings.load(paths=paths)
    if as_json:
        facts = {
            name: {
                "value": settings.shown(name),
                "origin": settings.origins[name].kind,
                "where": settings.origins[name].where,
            }
            for name in setting_names()
        }
        click.echo(json.dumps({"file": str(paths.settings_file), "settings": facts}))
        return
    rows = []
    for name in setting_names():
        value = settings.shown(name)
        shown = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        rows.append((name, shown, settings.origins[name].where if origin else KINDS[name].help))
    print_table(rows)


@config.command("set")
@click.argument("name")
@click.argument("value")
def set_value(name: str, value: str) -> None:
    """Set NAME to VALUE in settings.toml; comments stay."""
    from localllm.paths import Paths
    from localllm.settings import KINDS
    from localllm.settings_edit import set_setting

    paths = Paths.from_environment()
    stored = set_setting(paths, name, value)
    click.echo(f"{name} = {'(set)' if KINDS[name].secret else stored} in {paths.settings_file}")


@config.command()
@click.argument("name")
def unset(name: str) -> None:
    """Remove NAME from settings.toml."""
    from localllm.paths import Paths
    from localllm.settings_edit import set_setting

    paths = Paths.from_environment()
    set_setting(paths, name, None)
    click.echo(f"{name} is no longer set in {paths.settings_file}")


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def path(as_json: bool) -> None:
    """Where settings, your catalogue, models and caches are."""
    from localllm.paths import Paths

    from .tables import print_table

    paths = Paths.from_environment()
    places = {
        "settings": str(paths.settings_file),
        "catalogue": str(paths.catalogue_file),
        "models": str(paths.models),
        "cache": str(paths.cache),
    }
    if as_json:
        click.echo(json.dumps(places))
    else:
        print_table(list(places.items()))
