"""Recurrent heads: a small network beside the model that guesses from the model's own last vector.

An MLP speculator (https://arxiv.org/abs/2404.19124). From the vector s behind the final norm and the embedding e of the
token that was chosen after it: s' = s + down silu(up [norm s, norm e] + bias), guess = argmax(output s'), and again
from s' and the guess. docs/speculation.md describes the file, scripts/train_heads.py makes it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import ConfigurationError
from localllm.gguf_io import dequantize

from .draft import NOTHING, Draft, chain, sure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from localllm.gguf_io import GGUFFile, Tensor

    Floats = npt.NDArray[np.float32]
    Product = Callable[[Floats], Floats]

ARCHITECTURE = "localllm-speculator"
MOST_STEPS = 16
_LARGEST = 1e4
_AGAIN = "Fetch or make it again."
_KEPT_EMBEDDINGS = 1 << 14
_LEAST_CHANCE = 0.12  # of a line of guesses, as the heads see it: what is less likely is not drawn


@dataclass(frozen=True, slots=True)
class Head:
    """One step of the network."""

    up: Product
    bias: Floats
    down: Product


class Heads:
    """The weights, shared by all sequences of an engine."""

    def __init__(
        self, heads: Sequence[Head], output: Product, vocabulary: npt.NDArray[np.int32], embeddings: Tensor
    ) -> None:
        self.heads, self.output, self.vocabulary = tuple(heads), output, vocabulary
        self._table = embeddings
        self._kept: OrderedDict[int, Floats] = OrderedDict()

    @classmethod
    def load(cls, file: GGUFFile, embeddings: Tensor, product: Callable[[Tensor], Product]) -> Heads:
        """Check a file against the model's `embeddings` [vocabulary, hidden]; ConfigurationError says what is wrong."""
        check_weights(file)
        hidden = embeddings.columns
        steps = file.metadata.integer("speculator.steps", minimum=1, maximum=MOST_STEPS)
        vocabulary = read_vocabulary(file, embeddings.rows)
        heads = []
        for step in range(steps):
            name = f"speculator.{step}.up.bias"
            inner = file.tensors[name].shape[0] if name in file.tensors else 0
            up, down = (
                stored(file, f"speculator.{step}.up.weight", inner, 2 * hidden),
                stored(file, f"speculator.{step}.down.weight", hidden, inner),
            )
            heads.append(Head(product(up), dequantize(stored(file, name, inner)).astype(np.float32), product(down)))
        output = stored(file, "speculator.output.weight", len(vocabulary), hidden)
        return cls(heads, product(output), vocabulary, embeddings)

    def embedding(self, token: int) -> Floats:
        """The token's row, divided by the root of its mean square."""
        row = self._kept.get(token)
        if row is None:
            table = self._table
            part = replace(table, shape=(1, table.columns), data=table.data[token : token + 1])
            row = self._kept[token] = unit(np.asarray(dequantize(part), np.float32)[0])
            if len(self._kept) > _KEPT_EMBEDDINGS:
                self._kept.popitem(last=False)
        return row

    def next(self, step: int, state: Floats, token: int) -> Floats:
        """The state behind a token."""
        head = self.heads[step]
        x = head.up(np.concatenate([unit(state), self.embedding(token)])) + head.bias
        following: Floats = state + head.down(silu(x))
        return following


def check_weights(file: GGUFFile) -> None:
    """ConfigurationError if `file` is none of ours, or has numbers that no weights have."""
    if file.metadata.string("general.architecture", "") != ARCHITECTURE:
        raise ConfigurationError(
            f"{file.path} holds no heads and no layer", hint="make one with scripts/train_drafter.py"
        )
    for name, tensor in file.tensors.items():
        values = dequantize(tensor)
        if not (values.size and np.abs(values).max() < _LARGEST):  # false for NaN, too
            raise ConfigurationError(f"{file.path} is damaged: {name} has numbers that are no weights", hint=_AGAIN)


def stored(file: GGUFFile, name: str, *shape: int) -> Tensor:
    """A tensor of the file; ConfigurationError if it is missing or of another shape."""
    found = file.tensors.get(name)
    if found is None or found.shape != shape:
        size = " x ".join(str(length) for length in shape)
        raise ConfigurationError(f"{file.path} does not fit the model: {name} should be {size}")
    return found


def read_vocabulary(file: GGUFFile, tokens: int) -> npt.NDArray[np.int32]:
    """The ids that are guessed, of a model of so many `tokens`; ConfigurationError for others."""
    found = np.asarray(file.metadata.integers("speculator.vocabulary"), np.int64)
    if not len(found) or found.min() < 0 or found.max() >= tokens:
        raise ConfigurationError(f"{file.path} does not fit the model: it guesses tokens that the model lacks")
    return found.astype(np.int32)


class HeadsDrafter:
    """Guesses a line. The grade is the step and how sure the heads are."""

    cheap, wants_hidden = False, True

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None) -> Draft:
        """Guesses from the vector of the row before the last token."""
        if hidden is None or not np.isfinite(hidden[0, 0]):
            return NOTHING
        heads, state, token, chance = self._heads, hidden[-1], tokens[-1], 1.0
        line: list[int] = []
        grades: list[int] = []
        for step in range(min(most, len(heads.heads))):
            state = heads.next(step, state, token)
            logits = heads.output(state)
            best = int(np.argmax(logits))
            weights = np.exp(logits - logits[best])
            sureness = 1 / float(weights.sum())
            if not np.isfinite(sureness):  # weights too large for each other
                break
            chance *= sureness
            if chance < _LEAST_CHANCE and step:
                break
            token = int(heads.vocabulary[best])
            line.append(token)
            grades.append(sure(sureness, step))
        return chain(line, grades)

    def close(self) -> None:
        """Nothing is kept for a sequence."""


def unit(x: Floats) -> Floats:
    """Divided by the root of the mean square."""
    result: Floats = x / np.sqrt(np.square(x).mean() + np.float32(1e-6))
    return result


def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x)); by tanh, which no value makes overflow."""
    result: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32(0.5) * x))
    return result
