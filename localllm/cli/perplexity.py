"""`localllm perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import click

from localllm.errors import RequestError

from .completion import ModelName
from .loading import open_model
from .options import load_options, split_options
from .tables import tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localllm.llm import LLM


@click.command()
@click.argument("model", type=ModelName())
@click.option("--file", "-f", type=click.Path(exists=True, dir_okay=False), required=True, help="The text, UTF-8.")
@click.option("--chunk", type=click.IntRange(3), default=512, show_default=True, help="Tokens of a chunk.")
@click.option("--stream", is_flag=True, help="One long pass, token by token through the KV policy, instead of chunks.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@load_options
def perplexity(model: str, file: str, chunk: int, stream: bool, as_json: bool, **options: Any) -> None:
    """Measure the perplexity of MODEL on a text: exp of the mean negative log-likelihood of its tokens.

    A quantised cache and a KV policy are compared with plain f16 attention over the same tokens; the number behind +-
    is the standard error of the cost.
    """
    import numpy as np

    from localllm.kernels.kv_layout import QUANTISED
    from localllm.losses import cost_of

    from .run import read_text

    text = read_text(file)
    if not text.strip():
        raise RequestError(f"{file} has no text", parameter="text")
    load, _ = split_options(options)
    if not stream and load.get("window") is not None:
        raise click.UsageError("chunks fit into a window; what sliding it costs is measured with --stream")
    started = time.perf_counter()
    plain: npt.NDArray[np.floating] | None = None
    with open_model(model, load) as (llm, _):
        ids = llm.tokenizer.encode(text)
        if stream and len(ids) < 2:
            raise RequestError(f"the text has {tokens(len(ids))}, of which none follows another", parameter="text")
        own = llm.stream_nll(ids) if stream else llm.losses(text, chunk)
        lossy, quantised, rounds = llm.lossy, llm.kv_type in QUANTISED and not stream, _rounds(llm)
        changed = str(load.get("kv_policy", "this KV policy")) if lossy else llm.kv_type
        if quantised:
            plain = llm.losses(text, chunk, kv="f16")
    if lossy:
        with open_model(model, load, kv="f16", kv_policy=None) as (llm, _):
            plain = llm.stream_nll(ids) if stream else llm.losses(text, chunk)
    value, count = float(np.exp(np.mean(own))), len(ids)
    seconds = time.perf_counter() - started
    facts: dict[str, float | None] = {"perplexity": value, "tokens": count, "chunk": chunk, "seconds": seconds}
    if plain is None:
        click.echo(json.dumps(facts) if as_json else f"perplexity {value:.4f} over {tokens(count)} ({seconds:.1f} s)")
        return
    base, cost = float(np.exp(np.mean(plain))), cost_of(own, plain)
    if as_json:
        error = None if math.isnan(cost.error_percent) else cost.error_percent
        facts |= {"f16_perplexity": base, "cost_percent": cost.percent, "cost_error_percent": error}
        click.echo(json.dumps(facts))
        return
    click.echo(f"perplexity {value:.4f} over {tokens(count)} ({seconds:.1f} s)")
    with_what = "all keys and a cache of f16" if lossy else "a cache of f16"
    click.echo(f"with {with_what}: {base:.4f}, so {changed} costs {cost}")
    if rounds:
        click.echo("on the CPU the rounding of activations to 8 bits makes part of the difference (docs/kv.md)")


def _rounds(llm: LLM) -> bool:
    """Whether products are computed with 8-bit activations: on the CPU, but not in the reference."""
    from localllm.kernels.reference.executor import ReferenceExecutor

    with llm.executor() as executor:
        return bool(llm.memory().weights.get("cpu")) and not isinstance(executor, ReferenceExecutor)
