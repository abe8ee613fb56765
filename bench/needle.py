"""A needle in a haystack: is a fact that was said once, long ago, still found under a KV type or policy?

    python bench/needle.py smollm2:135m --tokens 1000 2000 --kv f16 q4 sparq:16:128 h2o:256 window:256

A sentence with a random number lies at several depths of a long text (the topics of Python's documentation); at the end
the beginning of the sentence is said again. Found: the model goes on with the number, greedily. Base models do this as
well as chat models, so nothing depends on following instructions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from kv_loss import python_topics

from localllm.llm import LLM

QUESTION = "\nRemember: the secret access code of the old lighthouse is"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)


def found(llm: LLM, hay: list[int], depth: float, number: str) -> bool:
    """Whether the number is the greedy continuation."""
    needle = llm.tokenizer.encode(f"{QUESTION} {number}.\n", add_bos=False)
    at = int(depth * len(hay))
    ids = [*hay[:at], *needle, *hay[at:], *llm.tokenizer.encode(QUESTION, add_bos=False)]
    return llm.generate(ids, max_tokens=12).text.strip().startswith(number)


def main() -> None:
    """A line for every type or policy and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv", nargs="+", default=["f16", "q4", "sparq:16:128", "h2o:256", "window:256"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1000, 2000])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    facts = {}
    for kv in arguments.kv:
        kind = {"kv_policy": kv} if ":" in kv else {"kv": kv}
        if kv.startswith("window:"):
            kind = {"window": int(kv.split(":")[1])}
        with LLM(arguments.model, device=arguments.device, threads=arguments.threads, **kind) as llm:
            text = llm.tokenizer.encode(python_topics())
            random = np.random.default_rng(3)
            for tokens in arguments.tokens:
                counts = []
                for depth in DEPTHS:
                    hits = 0
                    for repeat in range(arguments.repeats):
                        hay = text[repeat * tokens : (repeat + 1) * tokens]
                        hits += found(llm, hay, depth, str(random.integers(10000, 99999)))
                    counts.append(hits)
                facts[f"{kv}_{tokens}"] = sum(counts) / (len(DEPTHS) * arguments.repeats)
                marks = ", ".join(f"{depth:.0%} {hits}" for depth, hits in zip(DEPTHS, counts, strict=True))
                print(
                    f"{kv:14} {tokens} tokens: {sum(counts)} of {len(DEPTHS) * arguments.repeats} ({marks})", flush=True
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
