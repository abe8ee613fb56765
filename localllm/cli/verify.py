"""`localllm verify`: read models again and compare them with their hashes."""

from __future__ import annotations

import contextlib
import json

import click

from .completion import ModelName


@click.command()
@click.argument("models", type=ModelName(), nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def verify(models: tuple[str, ...], as_json: bool) -> None:
    """Read MODELS (default: all) again and compare every byte with the hash of the pull."""
    from localllm.errors import ModelNotFoundError
    from localllm.paths import Paths
    from localllm.store import FileProgress, Store
    from localllm.store.text import nearest_hint, printable
    from localllm.store.verify import damaged_manifests
    from localllm.store.verify import verify as verify_files

    from .pull_progress import open_view

    store = Store(Paths.from_environment())
    manifests = store.models()
    if models:
        names = {manifest.name.lower() for manifest in manifests}
        for name in models:
            if name.lower() not in names:
                hint = nearest_hint(name, names) or "see `localllm list`"
                raise ModelNotFoundError(f"{printable(name, 120)} is not on this computer", hint=hint)
        manifests = [manifest for manifest in manifests if manifest.name.lower() in {name.lower() for name in models}]
    verdicts = [] if models else damaged_manifests(store)
    with contextlib.closing(open_view(as_json=False)) as view:
        for verdict in verify_files(store, manifests, lambda *seen: None if as_json else view(FileProgress(*seen))):
            verdicts.append(verdict)
    if as_json:
        facts = [{"model": v.model, "file": v.file, "problem": v.problem} for v in verdicts]
        click.echo(json.dumps({"files": facts, "ok": all(v.problem is None for v in verdicts)}))
    else:
        for verdict in verdicts:
            click.echo(f"{verdict.model}: {verdict.file}: {verdict.problem or 'ok'}")
        if not verdicts:
            click.echo("no models to verify")
        elif any(v.problem is not None for v in verdicts):
            click.echo("pull a damaged model again after `localllm rm`", err=True)
    if any(v.problem is not None for v in verdicts):
        raise SystemExit(1)
