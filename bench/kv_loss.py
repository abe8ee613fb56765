"""What a type of KV cache costs: paired differences of the loss of every token against float16, with their error.

    python bench/kv_loss.py smollm2:135m --kv f32 q8 q4 [--device cpu] [--chunk 512] [--tokens 16384] [--file TEXT]

The text is that of `python -c "help('topics')"`, the topics of Python's own documentation one after the other, or a
file. Chunks are those of `localllm perplexity`: the second half of each counts. Both caches see the same tokens, so the
standard error of the mean difference says whether a difference is more than chance.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType
    from localllm.llm import LLM

    Losses = npt.NDArray[np.float64]


def python_topics() -> str:
    """About 750 KB of English with some code, the same in every copy of a Python release."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def losses(llm: LLM, ids: Sequence[int], chunk: int, kv: KVType) -> Losses:
    """Negative log-likelihood of the tokens in the second half of each chunk."""
    from localllm.kernels.single_sequence import logits_of

    found = []
    with llm.executor() as executor:
        for start in range(0, len(ids) - chunk + 1, chunk):
            part = list(ids[start : start + chunk])
            if llm.tokenizer.adds_bos and llm.tokenizer.bos_id is not None:
                part[0] = llm.tokenizer.bos_id
            logits = logits_of(executor, part, kv_type=kv)[chunk // 2 : -1].astype(np.float64)
            best = logits.max(axis=1)
            total = best + np.log(np.exp(logits - best[:, None]).sum(axis=1))
            found.append(total - logits[np.arange(len(logits)), part[chunk // 2 + 1 :]])
    return np.concatenate(found)


def main() -> None:
    """Print a line for every type."""
    from localllm.llm import LLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv", nargs="+", default=["f32", "q8", "q4"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--file", type=Path)
    arguments = parser.parse_args()
    text = arguments.file.read_text(encoding="utf-8") if arguments.file else python_topics()
    with LLM(arguments.model, device=arguments.device, threads=arguments.threads) as llm:
        ids = llm.tokenizer.encode(text)[: arguments.tokens]
        base = losses(llm, ids, arguments.chunk, "f16")
        print(f"f16  perplexity {math.exp(base.mean()):.4f}, {len(base)} tokens counted", flush=True)
        for kv in arguments.kv:
            own = losses(llm, ids, arguments.chunk, kv)
            change = own - base
            error = change.std(ddof=1) / math.sqrt(len(change))
            print(
                f"{kv:4} perplexity {math.exp(own.mean()):.4f} ({100 * math.expm1(change.mean()):+.3f}% +- "
                f"{100 * error:.3f}%), mean size of a token's difference {np.abs(change).mean():.5f} nats",
                flush=True,
            )


if __name__ == "__main__":
    main()
