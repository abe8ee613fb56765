"""Whether greedy text on a card is that of the CPU: `python scripts/greedy_texts.py MODEL... [--tokens 40]`.

The CPU answers each prompt greedily; the card is then led along that text and says what it would have chosen. A row of
JSON for each model: tokens alike, texts alike as a whole, and, where they part, by how much the CPU preferred its own
choice and the card its (a near tie, if both are small).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import open_gguf
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.registry import open_executor
from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.models import load_spec
from localllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.executor import Executor

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "1, 2, 3, 4, 5,",
    "Dear Ms Harper, thank you for your letter. We are",
    "The three primary colours are",
    "In 1969 the first man on the moon",
)


@dataclass(frozen=True, slots=True)
class Text:
    """What was chosen after a prompt, and the logits of each choice."""

    chosen: list[int]
    logits: list[npt.NDArray[np.float64]]


def text(executor: Executor, prompt: list[int], count: int, along: list[int] | None = None) -> Text:
    """Greedy choices for `count` tokens, each after its own text, or after that of `along`."""
    step = simple_step(executor.layout, np.array(prompt), output_rows=np.array([len(prompt) - 1], np.int32))
    chosen: list[int] = []
    found = []
    for index in range(count):
        found.append(executor.forward(step)[0].astype(np.float64))
        chosen.append(int(found[-1].argmax()))
        token = chosen[-1] if along is None else along[index]
        step = simple_step(executor.layout, np.array([token]), len(prompt) + index)
    return Text(chosen, found)


def compared(model: Path, device: str, count: int) -> dict[str, object]:
    """The row of a model."""
    with open_gguf(model) as file:
        spec, tokenizer = load_spec(file), Tokenizer.from_gguf(file)
        prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
        most = max(map(len, prompts)) + count + 1
        answers: dict[str, list[Text]] = {}
        for name in ("cpu", device):
            executor = open_executor(spec, name, ExecutorOptions(max_rows=64))
            executor.allocate_kv(pages_for(executor.layout, most), "f16")
            own = answers.get("cpu")
            answers[name] = [
                text(executor, prompt, count, None if own is None else own[index].chosen)
                for index, prompt in enumerate(prompts)
            ]
            executor.close()
    alike = whole = 0
    gaps = [0.0]
    for ours, theirs in zip(answers["cpu"], answers[device], strict=True):
        same = [a == b for a, b in zip(ours.chosen, theirs.chosen, strict=True)]
        alike, whole = alike + sum(same), whole + all(same)
        for index in (i for i, equal in enumerate(same) if not equal):
            here, there = ours.chosen[index], theirs.chosen[index]
            gaps.append(float(ours.logits[index][here] - ours.logits[index][there]))
            print(
                f"  step {index}: CPU {here}, ahead by {gaps[-1]:.4f}; card {there}, ahead by "
                f"{theirs.logits[index][there] - theirs.logits[index][here]:.4f} nats"
            )
    texts, tokens = len(prompts), len(prompts) * count
    row = {
        "model": model.name,
        "alike": alike,
        "tokens": tokens,
        "whole": whole,
        "texts": texts,
        "largest_gap": max(gaps),
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """A row for every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for model in options.models:
        compared(model, options.device, options.tokens)


if __name__ == "__main__":
    main()
