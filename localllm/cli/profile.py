"""`localllm profile`: which neurons and experts a text uses, kept beside the model for `plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localllm.kernels.executor import MOST_THREADS

from .completion import ModelName
from .loading import resolve
from .percent import Percent
from .progress import load_progress

if TYPE_CHECKING:
    from localllm.profiles import ActivationProfile

COVERAGES = (0.1, 0.17, 0.26, 0.43, 0.5)


def facts_of(profile: ActivationProfile, path: Path) -> dict[str, Any]:
    """A profile as JSON facts."""
    layers = list(profile.layers)
    values = [profile.sparsity(layer) for layer in layers]
    return {
        "profile": str(path),
        "tokens": profile.token_count,
        "layers": [
            {"layer": layer, "kind": profile.layers[layer].kind, "sparsity": value}
            for layer, value in zip(layers, values, strict=True)
        ],
        "sparsity": sum(values) / len(values) if values else 0.0,
        "hot_share_of_80_percent": profile.hot_share() if layers else None,
        "coverage_of_second_half": {str(share): profile.coverage(share) for share in COVERAGES} if layers else {},
    }


@click.command()
@click.argument("model", type=ModelName())
@click.option("--text", type=click.Path(exists=True, dir_okay=False), help="A UTF-8 text; default: a built-in one.")
@click.option("--context", "-c", type=click.IntRange(2), default=1024, show_default=True, help="Tokens of a context.")
@click.option("--threads", "-t", type=click.IntRange(1, MOST_THREADS), help="CPU threads.")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Default: beside the model.")
@click.option("--plot", is_flag=True, help="Draw the curves in the terminal.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw them as a PNG (matplotlib).")
@click.option("--predictor", is_flag=True, help="Calibrate --mode turbo as well, and measure what it costs.")
@click.option("--turbo-loss", type=Percent(), help="How much turbo may cost in perplexity; default: 1%.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def profile(
    model: str,
    text: str | None,
    context: int,
    threads: int | None,
    output: Path | None,
    plot: bool,
    picture: Path | None,
    predictor: bool,
    turbo_loss: float | None,
    as_json: bool,
) -> None:
    """Count which neurons of MODEL fire and which experts are chosen over a text; `plan` uses the counts.

    With --predictor it also finds what --mode turbo may leave out, and what that costs.
    """
    from localllm.errors import RequestError
    from localllm.gguf_io import open_gguf
    from localllm.kernels.cpu.executor import CpuExecutor
    from localllm.kernels.executor import ExecutorOptions
    from localllm.models import load_spec
    from localllm.profiles import curve, measure_profile, profile_path, save_profile
    from localllm.profiles.facts_file import fingerprint
    from localllm.profiles.text import TEXT
    from localllm.tokenizer import Tokenizer
    from localllm.turbo.record import turbo_path

    from .predictor import calibrated, turbo_facts, turbo_lines
    from .run import read_text

    if turbo_loss is not None and not predictor:
        raise click.UsageError("--turbo-loss needs --predictor")
    path = resolve(model).path
    content = TEXT if text is None else read_text(text)
    with open_gguf(path) as file, load_progress(False) as progress:
        ids = Tokenizer.from_gguf(file).encode(content)
        if len(ids) < 2:
            raise RequestError("the text has fewer than two tokens", parameter="text")
        options = ExecutorOptions(threads=threads, count_activations=True, progress=progress)
        spec = load_spec(file, context=context)
        executor = CpuExecutor(spec, options)
        progress.done()
        try:
            measured = measure_profile(executor, ids, model=fingerprint(path), context=context)
        finally:
            executor.close()
        turbo = calibrated(file, spec, ids, path, turbo_loss, threads) if predictor else None
    target = output or profile_path(path)
    save_profile(measured, target)
    if picture is not None:
        curve.save_picture(measured, picture)
    facts = facts_of(measured, target)
    if turbo is not None:
        facts["turbo"] = turbo_facts(turbo, turbo_path(path))
    if as_json:
        click.echo(json.dumps(facts))
        return
    if not measured.layers:
        click.echo(f"{model}: no exact zeros and no experts: every neuron counts the same for every token")
    else:
        print_counts(model, facts)
        if plot:
            for line in curve.text_curve(measured):
                click.echo(line)
    if turbo is not None:
        for line in turbo_lines(turbo, turbo_path(path)):
            click.echo(line)


def print_counts(model: str, facts: dict[str, Any]) -> None:
    """A profile for people."""
    counted = f"{facts['tokens']} tokens, {len(facts['layers'])} layers counted"
    click.echo(f"{model}: {counted}, saved in {facts['profile']}")
    click.echo(f"a token leaves out {facts['sparsity']:.1%} of the units; the hottest")
    click.echo(f"{facts['hot_share_of_80_percent']:.0%} make 80% of the activations")
    for share, covered in facts["coverage_of_second_half"].items():
        click.echo(f"the hottest {float(share):.0%} of the first half make {covered:.0%} of the second half")
