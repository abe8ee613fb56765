"""`localllm bench --serve URL`: how a running server does under load."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    figure = None if plot is None else _figure()  # what is missing is said before minutes are spent
    results = asyncio.run(_levels(options, clients, rates))
    if plot is not None:
        _plot(figure, results, Path(plot))
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


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("--plot needs matplotlib", hint="pip install 'localllm[plot]'") from None
    return Figure(figsize=(7, 3), layout="constrained")


def _plot(figure: Any, results: Sequence[LoadResult], path: Path) -> None:
    """Speed and waiting over clients (closed loop) and over requests a second (open loop)."""
    speed, waiting = figure.subplots(1, 2)
    closed = [(float(result.clients), result) for result in results if result.clients is not None]
    opened = [(result.rate, result) for result in results if result.rate is not None]
    for loop, levels in (("clients", closed), ("requests a second", opened)):
        if not levels:
            continue
        loads = [load for load, _ in levels]
        speed.plot(loads, [result.tokens_per_second for _, result in levels], marker="o", label=loop)
        waiting.plot(loads, [result.first_token_median for _, result in levels], marker="o", label=f"{loop}, median")
        waiting.plot(loads, [result.first_token_p95 for _, result in levels], marker="x", label=f"{loop}, 95%")
    speed.set(xlabel="load", ylabel="tokens per second", ylim=(0, None))
    waiting.set(xlabel="load", ylabel="seconds to the first token", ylim=(0, None))
    for axes in (speed, waiting):
        axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # a folder that is not there, an ending that is no picture
        raise ConfigurationError(f"{path} cannot be written: {error}", hint="Name a .png, .svg or .pdf file.") from None
