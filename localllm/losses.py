"""Negative log-likelihoods of a text in chunks, and what a change costs: the mean of paired differences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType

    from .llm import LLM


LEAST_CHUNK = 3  # tokens: one that counts, in the second half, with one before it


@dataclass(frozen=True, slots=True)
class Cost:
    """What a change costs, in percent of perplexity, with the standard error of the mean over the tokens' pairs."""

    percent: float
    error_percent: float
    tokens: int

    def __str__(self) -> str:
        return f"{self.percent:+.2f}% +- {self.error_percent:.2f}% ({self.tokens} tokens count)"


def cost_of(changed: npt.NDArray[np.floating], base: npt.NDArray[np.floating]) -> Cost:
    """Compare losses [tokens] of the same tokens; an error of NaN where there is one token only."""
    change = changed.astype(np.float64) - base
    error = change.std(ddof=1) / math.sqrt(len(change)) if len(change) > 1 else math.nan
    return Cost(100 * math.expm1(change.mean()), 100 * float(error), len(change))


def chunk_losses(llm: LLM, text: str, context: int, kv: KVType, capacity: int | None) -> npt.NDArray[np.float64]:
    """Losses of the second half of each full chunk of `context` tokens, one after the other; see `LLM.perplexity`.

    `capacity`: keys that heavy hitters keep. RequestError for too short a text.
    """
    from localllm.kernels.single_sequence import logits_of

    ids = llm.tokenizer.encode(text)
    if len(ids) < context:
        raise RequestError(f"the text has {len(ids)} tokens, fewer than one chunk of {context}", parameter="text")
    if not LEAST_CHUNK <= context <= llm.context:
        raise RequestError(
            f"chunks must have {LEAST_CHUNK} to {llm.context} tokens, not {context}", parameter="context"
        )
    losses = []
    with llm.executor() as executor:
        for start in range(0, len(ids) - context + 1, context):
            chunk = ids[start : start + context]
            if llm.tokenizer.adds_bos and llm.tokenizer.bos_id is not None:
                chunk[0] = llm.tokenizer.bos_id
            logits = logits_of(executor, chunk, kv_type=kv, capacity=capacity)
            losses.append(_losses(logits[context // 2 : -1], chunk[context // 2 + 1 :]))
    return np.concatenate(losses)


def _losses(logits: npt.NDArray[np.float32], ids: Sequence[int]) -> npt.NDArray[np.float64]:
    """Negative log-likelihood of each id under its row of logits."""
    values = logits.astype(np.float64)
    best = values.max(axis=1)
    total = best + np.log(np.exp(values - best[:, None]).sum(axis=1))
    result: npt.NDArray[np.float64] = total - values[np.arange(len(ids)), np.asarray(ids)]
    return result
