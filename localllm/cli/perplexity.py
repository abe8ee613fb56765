"""`localllm perplexity`: how well a model predicts a text."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from .completion import ModelName
from .loading import open_model
from .options import load_options, split_options


@click.command()
@click.argument("model", type=ModelName())
@click.option("--file", "-f", type=click.Path(exists=True, dir_okay=False), required=True, help="The text, UTF-8.")
@click.option("--chunk", type=click.IntRange(2), default=512, show_default=True, help="Tokens of a chunk.")
@click.option("--stream", is_flag=True, help="One long pass, token by token through the KV policy, instead of chunks.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@load_options
def perplexity(model: str, file: str, chunk: int, stream: bool, as_json: bool, **options: Any) -> None:
    """Measure the perplexity of MODEL on a text: exp of the mean negative log-likelihood of its tokens."""
    import numpy as np

    from localllm.kernels.kv_layout import QUANTISED

    from .run import read_prompt

    text = read_prompt("", file)
    load, _ = split_options(options)
    if not stream and load.get("window") is not None:
        raise click.UsageError("chunks fit into a window; what sliding it costs is measured with --stream")
    started = time.perf_counter()
    base = None
    with open_model(model, load) as (llm, _):
        kv = llm.kv_type
        count = len(llm.tokenizer.encode(text))
        if stream:
            value = float(np.exp(np.mean(llm.stream_nll(llm.tokenizer.encode(text)))))
        else:
            value = llm.perplexity(text, context=chunk)
            if kv in QUANTISED:
                base = llm.perplexity(text, context=chunk, kv="f16")
    seconds = time.perf_counter() - started
    if as_json:
        result = {"perplexity": value, "tokens": count, "chunk": chunk, "seconds": seconds}
        click.echo(json.dumps(result if base is None else result | {"f16_perplexity": base}))
    else:
        click.echo(f"perplexity {value:.4f} over {count} tokens ({seconds:.1f} s)")
        if base is not None:
            click.echo(f"with a cache of f16: {base:.4f}, so {kv} costs {100 * (value / base - 1):+.2f}%")
