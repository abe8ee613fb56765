"""`localllm bench --serve URL`: how a running server does under load."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localllm.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.server.load import LoadOptions, LoadResult


def bench_serve(
    url: str,
    model: str | None,
    *,
    clients: Sequence[int],
    rates: Sequence[float],
    requests: int,
    prompt_words: int,
    tokens: int,
    as_json: bool,
    plot: str | None,
) -> None:
    """Measure level after level; print a table, or one JSON object."""
    from localllm.server.load import LoadOptions, only_model
    from localllm.settings import Settings

    key = Settings.load().api_key
    name = model or asyncio.run(only_model(url, key))
    options = LoadOptions(url, name, key, requests=requests, prompt_words=prompt_words, tokens=tokens)
    results = asyncio.run(_levels(options, clients, rates))
    if plot is not None:
        _plot(results, Path(plot))
    if as_json:
        facts = {"url": url, "model": name, "tokens": tokens, "levels": [asdict(result) for result in results]}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{'load':>12} {'tok/s':>8} {'first token':>16} {'between tokens':>24} failed")
    for result in results:
        load = f"{result.clients} clients" if result.clients is not None else f"{result.rate:g} /s"
        first = f"{result.first_token_median * 1e3:.0f} / {result.first_token_p95 * 1e3:.0f} ms"
        between = (
            f"{result.between_tokens_median * 1e3:.1f} / {result.between_tokens_p95 * 1e3:.1f}"
            f" / {result.between_tokens_longest * 1e3:.0f} ms"
        )
        click.echo(f"{load:>12} {result.tokens_per_second:8.1f} {first:>16} {between:>24} {result.failed}")
    click.echo("times: median / 95th percentile / longest")


async def _levels(options: LoadOptions, clients: Sequence[int], rates: Sequence[float]) -> list[LoadResult]:
    from localllm.server.load import closed_loop, open_loop

    results = [await closed_loop(options, count) for count in clients]
    return results + [await open_loop(options, rate) for rate in rates]


def _plot(results: Sequence[LoadResult], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("--plot needs matplotlib", hint="pip install matplotlib") from None
    levels = [result for result in results if result.clients is not None]
    figure = Figure(figsize=(7, 3))
    speed, waiting = figure.subplots(1, 2)
    speed.plot([result.clients for result in levels], [result.tokens_per_second for result in levels], marker="o")
    speed.set(xlabel="clients", ylabel="tokens per second", ylim=(0, None))
    for label, name in (("median", "first_token_median"), ("95th percentile", "first_token_p95")):
        values = [getattr(result, name) for result in levels]
        waiting.plot([result.clients for result in levels], values, marker="o", label=label)
    waiting.set(xlabel="clients", ylabel="seconds to the first token", ylim=(0, None))
    waiting.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
