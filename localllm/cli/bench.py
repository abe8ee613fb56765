"""`localllm bench`: tokens per second, and what the memory of this machine would allow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .completion import ModelName
from .loading import open_model
from .options import load_options, split_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localllm.kernels.executor import Executor


@click.command()
@click.argument("model", type=ModelName(), required=False)
@click.option("--prompt-tokens", "-p", type=click.IntRange(0), default=512, show_default=True, help="Prompt length.")
@click.option("--decode-tokens", "-n", type=click.IntRange(0), default=128, show_default=True, help="Tokens to write.")
@click.option("--depth", "-d", type=click.IntRange(0), default=0, show_default=True, help="Cached tokens before those.")
@click.option("--repetitions", "-r", type=click.IntRange(1), default=5, show_default=True, help="Samples of each.")
@click.option("--serve", "url", metavar="URL", help="Put load on a running server instead; MODEL is its name there.")
@click.option("--clients", type=click.IntRange(1), multiple=True, help="With --serve: clients at a time; repeatable.")
@click.option("--rate", type=click.FloatRange(0.001), multiple=True, help="With --serve: requests a second.")
@click.option("--requests", type=click.IntRange(1), default=16, show_default=True, help="With --serve: of each level.")
@click.option("--plot", type=click.Path(dir_okay=False), help="With --serve: write a chart (needs matplotlib).")
@click.option(
    "--trace", type=click.Path(dir_okay=False), help="Hybrid: write the last token's timeline (Chrome trace)."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@load_options
def bench(
    model: str | None,
    prompt_tokens: int,
    decode_tokens: int,
    depth: int,
    repetitions: int,
    url: str | None,
    clients: tuple[int, ...],
    rate: tuple[float, ...],
    requests: int,
    plot: str | None,
    trace: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast MODEL reads a prompt and writes an answer here: medians, after one round to warm up."""
    if url is not None:
        _refuse_with_serve(("depth", "repetitions", "trace", *options))
        from .bench_serve import bench_serve

        bench_serve(
            url,
            model,
            clients=clients or (() if rate else (1, 4, 16)),
            rates=rate,
            requests=requests,
            prompt_words=prompt_tokens,
            tokens=decode_tokens,
            as_json=as_json,
            plot=plot,
        )
        return
    if model is None:
        raise click.UsageError("name a model to measure, or a running server with --serve URL")
    from localllm import benchmark
    from localllm.hardware import usable_cores

    load, _ = split_options(options)
    load["context"] = load.get("context") or max(prompt_tokens, depth + decode_tokens, 16)
    threads = load.get("threads") or usable_cores()
    started = time.perf_counter()
    with open_model(model, load) as (llm, _):
        loaded = time.perf_counter() - started
        llm.generate([1], max_tokens=1)
        first = time.perf_counter() - started
        with llm.executor() as executor:
            result = benchmark.run_benchmark(
                executor,
                prompt_tokens=prompt_tokens,
                decode_tokens=decode_tokens,
                repetitions=repetitions,
                depth=depth,
                kv_type=load.get("kv", "f16"),
            )
            if trace is not None:
                _write_timeline(executor, Path(trace))
        description = llm.describe()
    peak = benchmark.peak_memory()
    bandwidth = benchmark.measure_memory_bandwidth(threads)
    used = result.decode_tokens_per_second * result.weight_bytes_per_token
    facts = {
        "model": model,
        "executor": description,
        "threads": threads,
        "prefill_tokens_per_second": result.prefill_tokens_per_second,
        "decode_tokens_per_second": result.decode_tokens_per_second,
        "prefill_samples": result.prefill_samples,
        "decode_samples": result.decode_samples,
        "prompt_tokens": prompt_tokens,
        "decode_tokens": decode_tokens,
        "depth": depth,
        "weight_bytes_per_token": result.weight_bytes_per_token,
        "memory_bandwidth": bandwidth,
        "memory_bandwidth_fraction": used / bandwidth,
        "peak_memory_bytes": peak,
        "load_seconds": loaded,
        "first_token_seconds": first,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(description)
    if prompt_tokens:
        click.echo(f"prefill {prompt_tokens:>6}: {result.prefill_tokens_per_second:8.1f} tok/s")
    if decode_tokens:
        click.echo(
            f"decode  {decode_tokens:>6}: {result.decode_tokens_per_second:8.1f} tok/s, reads "
            f"{result.weight_bytes_per_token / 1e6:.1f} MB of weights a token = {used / 1e9:.1f} GB/s, "
            f"{used / bandwidth:.0%} of the {bandwidth / 1e9:.1f} GB/s measured"
        )
    click.echo(f"loaded in {loaded:.2f} s, first token after {first:.2f} s, peak memory {peak / 2**20:.0f} MiB")


def _refuse_with_serve(names: Iterable[str]) -> None:
    """UsageError when one of these options was given: they are about a model that is loaded here."""
    context = click.get_current_context()
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    given = [options[name] for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"{', '.join(given)}: not with --serve, where the running server's own settings count")


def _write_timeline(executor: Executor, path: Path) -> None:
    """When the halves of a hybrid worked in the last step, for Chrome's and Perfetto's viewers."""
    from localllm.kernels.hybrid.executor import HybridExecutor
    from localllm.store.disk import write_atomically

    if not isinstance(executor, HybridExecutor):
        raise click.UsageError("only --device hybrid has two halves whose timeline could be written")
    write_atomically(path, json.dumps({"traceEvents": executor.timeline()}).encode())
