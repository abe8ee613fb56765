"""Medusa heads: each guesses a token of its own place from the model's last vector (https://arxiv.org/abs/2401.10774).

From the vector h behind the final norm: head i says output_i (h + silu(W_i h + b_i)), for the token i + 1 places behind
the one that was chosen from h. docs/speculation.md describes the file, scripts/train_heads.py makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import dequantize

from .draft import NOTHING, ROOT, Draft, sure
from .heads import MOST_STEPS, check_weights, read_vocabulary, silu, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from localllm.gguf_io import GGUFFile, Tensor

    Floats = npt.NDArray[np.float32]
    Product = Callable[[Floats], Floats]

FIRST_HEAD = "speculator.medusa.0.weight"
_LEAST_CHANCE = 0.12  # of a line of guesses, as the heads see it: what is less likely is not drawn
_WIDTH = 2  # guesses of one head, where trees can be verified
_KIND = 20  # of their grades: those of Medusa heads, and then those of second guesses


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """One place: the residual layer and what reads tokens from it."""

    weight: Product
    bias: Floats
    output: Product


class MedusaHeads:
    """The weights, shared by all sequences of an engine."""

    def __init__(self, heads: Sequence[MedusaHead], vocabulary: npt.NDArray[np.int32]) -> None:
        self.heads, self.vocabulary = tuple(heads), vocabulary

    @classmethod
    def load(cls, file: GGUFFile, embeddings: Tensor, product: Callable[[Tensor], Product]) -> MedusaHeads:
        """Check a file against the model's `embeddings` [vocabulary, hidden]; ConfigurationError says what is wrong."""
        check_weights(file)
        hidden = embeddings.columns
        steps = file.metadata.integer("speculator.steps", minimum=1, maximum=MOST_STEPS)
        vocabulary = read_vocabulary(file, embeddings.rows)
        shared = "speculator.output.weight"
        one = product(stored(file, shared, len(vocabulary), hidden)) if shared in file.tensors else None
        heads = []
        for step in range(steps):
            name = f"speculator.medusa.{step}"
            heads.append(
                MedusaHead(
                    product(stored(file, f"{name}.weight", hidden, hidden)),
                    dequantize(stored(file, f"{name}.bias", hidden)).astype(np.float32),
                    one or product(stored(file, f"{name}.output.weight", len(vocabulary), hidden)),
                )
            )
        return cls(heads, vocabulary)

    def logits(self, step: int, hidden: Floats) -> Floats:
        """What head `step` says of the tokens of `vocabulary`; valid until the next call."""
        head = self.heads[step]
        x = head.weight(hidden) + head.bias
        return head.output(hidden + silu(x))


class MedusaDrafter:
    """Guesses a line, or a tree of each head's two likeliest tokens. The grade is the head and how sure it is."""

    cheap, wants_hidden = False, True

    def __init__(self, heads: MedusaHeads, *, trees: bool) -> None:
        self._heads, self._width = heads, _WIDTH if trees else 1

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None) -> Draft:
        """The likeliest line first, then seconds beside it. `hidden` as in `Drafter.draft`; one row is looked at."""
        if hidden is None or not np.isfinite(hidden[-1, 0]):
            return NOTHING
        heads, state = self._heads, hidden[-1]
        line: list[tuple[int, int, int]] = []
        beside: list[tuple[int, int, int]] = []
        parent, chance = ROOT, 1.0
        for step in range(min(most, len(heads.heads))):
            logits = heads.logits(step, state)
            best = np.argsort(-logits, kind="stable")[: self._width]
            weights = np.exp(logits - logits[best[0]])
            total = float(weights.sum())
            if not np.isfinite(total):  # weights too large for each other
                break
            chance /= total
            if chance < _LEAST_CHANCE and step:
                break
            for rank, place in enumerate(best):
                grade = sure(float(weights[place]) / total, _KIND * (1 + rank) + step)
                (beside if rank else line).append((int(heads.vocabulary[place]), parent, grade))
            parent = len(line) - 1
        found = (*line, *beside)[:most]
        return Draft(*(tuple(part) for part in zip(*found, strict=True))) if found else NOTHING

    def close(self) -> None:
        """Nothing is kept for a sequence."""
