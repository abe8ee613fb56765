"""`localllm show`: what a model is, and the memory it takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .tables import print_table, tokens

if TYPE_CHECKING:
    from localllm.store import Manifest, ResolvedModel
    from localllm.store.describe import ModelDescription
    from localllm.store.memory import KVMemory


@click.command()
@click.argument("model", type=ModelName())
@click.option("--memory", is_flag=True, help="Only the KV cache: bytes per token and in total, by type and layer kind.")
@click.option("--context", "-c", "contexts", type=click.IntRange(1), multiple=True, help="Tokens to count memory for.")
@click.option("--template", is_flag=True, help="Only the chat template.")
@click.option("--metadata", is_flag=True, help="Every key of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(model: str, memory: bool, contexts: tuple[int, ...], template: bool, metadata: bool, as_json: bool) -> None:
    """Show what MODEL is: architecture, quantisation, template, licence, memory by context."""
    from localllm.errors import RequestError
    from localllm.paths import Paths
    from localllm.store import Store, resolve_in
    from localllm.store.describe import describe

    store = Store(Paths.from_environment())
    resolved = resolve_in(store, model)
    manifest = store.find(resolved.name)
    file_name = manifest.files[0].name if manifest is not None else resolved.path.name
    facts = describe(resolved.path, file_name, contexts or None)
    if memory and facts.unsupported is not None:
        raise RequestError(f"the memory of {model} cannot be counted: {facts.unsupported}")
    if as_json and memory:
        click.echo(json.dumps({"name": resolved.name, "memory": _memory(facts)}))
    elif as_json:
        click.echo(json.dumps(_facts(resolved, manifest, facts)))
    elif template:
        if not facts.templates:
            raise RequestError(f"{model} has no chat template")
        for name, text in facts.templates.items():
            click.echo(f"{{# {name} #}}" if len(facts.templates) > 1 else "", nl=len(facts.templates) > 1)
            click.echo(text)
    elif memory:
        for item in facts.memory:
            _print_memory(item)
    else:
        _print(resolved, manifest, facts, metadata)


def _memory(facts: ModelDescription) -> list[dict[str, Any]]:
    return [
        {
            "context": item.context,
            "kv_bytes": {kv: item.total_bytes(kv) for kv in item.types},
            "kv_bytes_per_token": {kv: item.bytes_per_token(kv) for kv in item.types},
            "layer_kinds": [
                {
                    "layers": kind.layers,
                    "window": kind.window,
                    "tokens": kind.tokens,
                    "bytes_per_token": kind.bytes_per_token,
                    "bytes": kind.total_bytes,
                }
                for kind in item.kinds
            ],
        }
        for item in facts.memory
    ]


def _facts(resolved: ResolvedModel, manifest: Manifest | None, facts: ModelDescription) -> dict[str, Any]:
    return {
        "name": resolved.name,
        "path": str(facts.path),
        "paths": [str(path) for path in facts.paths],
        "architecture": facts.architecture,
        "quant": facts.quant,
        "size_bytes": facts.size_bytes,
        "model_name": facts.name,
        "parameters": facts.parameters,
        "quants": [asdict(share) for share in facts.quants],
        "context_length": facts.context_length,
        "vocabulary_size": facts.vocabulary_size,
        "tokenizer": facts.tokenizer,
        "licence": _licence(resolved, manifest, facts),
        "source": manifest.source if manifest is not None else None,
        "sha256": [file.sha256 for file in manifest.files] if manifest is not None else None,
        "verified_by": manifest.files[0].verified_by if manifest is not None else None,
        "supported": facts.unsupported is None,
        "unsupported_reason": facts.unsupported,
        "memory": _memory(facts),
        "templates": facts.templates,
        "metadata": facts.metadata,
    }


def _licence(resolved: ResolvedModel, manifest: Manifest | None, facts: ModelDescription) -> str | None:
    stored = manifest.licence if manifest is not None else None
    listed = resolved.entry.licence if resolved.entry is not None else None
    return stored or listed or facts.licence


def _print(resolved: ResolvedModel, manifest: Manifest | None, facts: ModelDescription, metadata: bool) -> None:
    from localllm.store.text import format_bytes, printable

    rows = [("name", printable(resolved.name)), ("file", printable(str(facts.path)))]
    if facts.name is not None:
        rows.append(("model", facts.name))
    trained = "unknown" if facts.context_length is None else tokens(facts.context_length)
    parts = "" if len(facts.paths) == 1 else f" in {len(facts.paths)} files"
    rows += [
        ("architecture", facts.architecture + ("" if facts.unsupported is None else " (cannot be run)")),
        ("parameters", _count(facts.parameters)),
        ("quantisation", f"{facts.quant}, {format_bytes(facts.size_bytes)}{parts}"),
        ("trained context", trained),
        ("vocabulary", f"{facts.vocabulary_size or 'unknown'} tokens, {facts.tokenizer or 'no tokenizer'}"),
        ("template", ", ".join(facts.templates) if facts.templates else "none"),
        ("licence", printable(_licence(resolved, manifest, facts) or "unknown")),
    ]
    if manifest is not None:
        verified = "the first pull" if manifest.files[0].verified_by == "first pull" else manifest.files[0].verified_by
        rows += [("source", printable(manifest.source)), ("pulled", f"{manifest.pulled_at}, hash from {verified}")]
    print_table(rows)
    if facts.unsupported is not None:
        click.echo(f"\ncannot be run: {facts.unsupported}")
    click.echo("\ntensors")
    print_table(
        [
            (f"  {share.type_name}", str(share.tensors), f"{_count(share.parameters)} numbers", _size(share.size_bytes))
            for share in facts.quants
        ],
        right=(1, 2, 3),
    )
    for share in facts.quants:
        if share.rewriting is not None:
            click.echo(f"  on the CPU {share.type_name} {share.rewriting}")
    if facts.memory:
        kinds = [kv for kv in facts.memory[0].types if kv != "q2"]
        click.echo(f"\nKV cache by context ({', '.join(kinds)})")
        print_table(
            [
                (f"  {tokens(item.context)}", *(format_bytes(item.total_bytes(kv)) for kv in kinds))
                for item in facts.memory
            ],
            right=tuple(range(1, 1 + len(kinds))),
        )
    if metadata:
        click.echo("\nmetadata")
        for key, value in facts.metadata.items():
            text = printable(str(value), 160)
            click.echo(f"  {key} = {text}")


def _print_memory(item: KVMemory) -> None:
    from localllm.store.text import format_bytes

    click.echo(f"KV cache for {tokens(item.context)}")
    rows = [("  type", "layers", "window", "tokens held", "bytes a token", "allocated")]
    for kv in item.types:
        for kind in item.kinds:
            window = "-" if kind.window is None else str(kind.window)
            sizes = (str(kind.bytes_per_token[kv]), format_bytes(kind.total_bytes[kv]))
            rows.append((f"  {kv}", str(kind.layers), window, str(kind.tokens), *sizes))
        if len(item.kinds) > 1:
            total = (str(item.bytes_per_token(kv)), format_bytes(item.total_bytes(kv)))
            rows.append((f"  {kv}", "all", "", "", *total))
    print_table(rows, right=(1, 2, 3, 4, 5))


def _count(number: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.2f}{unit}"
    return str(number)


def _size(size: int | None) -> str:
    from localllm.store.text import format_bytes

    return "unknown size" if size is None else format_bytes(size)
