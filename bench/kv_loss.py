"""What a type or policy of KV cache costs: paired differences of every token's loss against float16, with their error.

    python bench/kv_loss.py smollm2:135m --kv f32 q8 q4 h2o:256 sparq:16:64 [--device cpu] [--chunk 512]
        [--tokens 16384] [--file TEXT]

The text is that of the topics of Python's own documentation (what `help` shows), one after the other, or a file. Chunks
are those of `localllm perplexity`: the second half of each counts. Both caches see the same tokens, so the standard
error of the mean difference says whether a difference is more than chance.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Losses = npt.NDArray[np.float64]


def python_topics() -> str:
    """About 750 KB of English with some code, the same in every copy of a Python release."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def losses(arguments: argparse.Namespace, text: str, kv: str) -> Losses:
    """Negative log-likelihood of the tokens in the second half of each chunk."""
    from localllm.llm import LLM

    kind = {"kv_policy": kv} if ":" in kv else {"kv": kv}
    chunk = arguments.chunk
    found = []
    with LLM(arguments.model, device=arguments.device, threads=arguments.threads, context=chunk, **kind) as llm:
        ids = llm.tokenizer.encode(text)[: arguments.tokens]
        for start in range(0, len(ids) - chunk + 1, chunk):
            part = ids[start : start + chunk]
            if llm.tokenizer.adds_bos and llm.tokenizer.bos_id is not None:
                part[0] = llm.tokenizer.bos_id
            logits = llm.logits(part)[chunk // 2 : -1].astype(np.float64)
            best = logits.max(axis=1)
            total = best + np.log(np.exp(logits - best[:, None]).sum(axis=1))
            found.append(total - logits[np.arange(len(logits)), part[chunk // 2 + 1 :]])
    return np.concatenate(found)


def memory_ratios(model: str) -> dict[str, float]:
    """Bytes of a page against those of float16."""
    from localllm.gguf_io import open_gguf
    from localllm.kernels.kv_layout import KVLayout, KVType
    from localllm.models import load_spec
    from localllm.store import resolve_model

    with open_gguf(resolve_model(model).path) as file:
        layers = KVLayout.of(load_spec(file)).layers
    kinds: tuple[KVType, ...] = ("q8", "q4")
    whole = sum(layer.page_bytes("f16") for layer in layers)
    return {f"{kind}_bytes": sum(layer.page_bytes(kind) for layer in layers) / whole for kind in kinds}


def main() -> None:
    """Print a line for every type and policy."""
    from localllm.losses import cost_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv", nargs="+", default=["f32", "q8", "q4"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    facts: dict[str, float] = {}
    text = arguments.file.read_text(encoding="utf-8") if arguments.file else python_topics()
    base = losses(arguments, text, "f16")
    print(f"f16  perplexity {math.exp(base.mean()):.4f}, {len(base)} tokens counted", flush=True)
    for kv in arguments.kv:
        own = losses(arguments, text, kv)
        cost = cost_of(own, base)
        facts |= {f"{kv}_percent": cost.percent, f"{kv}_error": cost.error_percent}
        print(
            f"{kv:4} perplexity {math.exp(own.mean()):.4f} ({cost.percent:+.3f}% +- {cost.error_percent:.3f}%), "
            f"mean size of a token's difference {np.abs(own - base).mean():.5f} nats",
            flush=True,
        )
    facts |= memory_ratios(arguments.model)
    if arguments.json:
        arguments.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
