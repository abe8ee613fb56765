"""A decoder layer that was trained to guess for a model, in a file of its own (EAGLE, https://arxiv.org/abs/2401.15077).

The file is a Llama of one layer whose vocabulary is the tokens that are guessed, with two entrances in the place of its
table: one for the model's own vectors, one for the layer's. docs/speculation.md describes it, scripts/train_drafter.py
makes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import ConfigurationError, GGUFError, UnsupportedModelError

from .heads import ARCHITECTURE
from .next_layer import Entrance, NextLayer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from localllm.gguf_io import GGUFFile, Tensor
    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import ModelSpec

    Floats = npt.NDArray[np.float32]

FIRST, AGAIN = "speculator.first.weight", "speculator.again.weight"
_EPS = 1e-6


def load_trained_layer(
    file: GGUFFile,
    model: ModelSpec,
    product: Callable[[Tensor], Callable[[Floats], Floats]],
    open_executor: Callable[[ModelSpec], Executor],
    *,
    context: int,
    parallel: int,
) -> NextLayer:
    """Read a file that guesses for `model`; ConfigurationError if it does not fit."""
    from localllm.models.llama import build
    from localllm.models.parts.source import Source

    source, hidden = Source(file, ARCHITECTURE, None), model.hidden_size
    try:
        taps = tuple(file.metadata.integers("speculator.taps"))
        first = source.tensor(FIRST, (hidden, (2 + len(taps)) * hidden))
        again = source.tensor(AGAIN, (hidden, 2 * hidden))
        spec = build(source)
        vocabulary = np.asarray(file.metadata.integers("speculator.vocabulary"), np.int32)
        window = file.metadata.integer("speculator.window", minimum=1, maximum=1 << 30)
    except (GGUFError, UnsupportedModelError) as error:
        raise ConfigurationError(f"{file.path} does not fit the model: {error.message}") from error
    ascending = list(taps) == sorted(set(taps)) and all(0 <= layer < len(model.layers) for layer in taps)
    if spec.hidden_size != hidden or len(spec.layers) != 1 or len(vocabulary) != spec.vocabulary_size or not ascending:
        raise ConfigurationError(f"{file.path} does not fit the model: it is of another size")
    if vocabulary.min() < 0 or vocabulary.max() >= model.vocabulary_size:
        raise ConfigurationError(f"{file.path} does not fit the model: it guesses tokens that the model lacks")
    layer = spec.layers[0]
    spec = replace(spec, layers=(replace(layer, attention=replace(layer.attention, window=window)),))
    entrance = Entrance(product(first), product(again), model.embed.table, eps=_EPS)
    return NextLayer(
        spec, entrance, open_executor, context=context, parallel=parallel, vocabulary=vocabulary, taps=taps
    )
