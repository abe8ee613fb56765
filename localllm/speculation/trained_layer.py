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
from localllm.gguf_io import dequantize
from localllm.kernels.cpu.memory import Arena
from localllm.kernels.cpu.product import TiledProduct, tiled_bytes
from localllm.kernels.executor import LoadProgress
from localllm.kernels.spec import Attention, FeedForward

from .draft import MOST_GUESSES, NOTHING, Draft, chain, sure
from .heads import ARCHITECTURE, check_weights, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from localllm.gguf_io import GGUFFile, Tensor
    from localllm.kernels.cpu.compile import KernelCompiler
    from localllm.kernels.spec import ModelSpec

    Floats = npt.NDArray[np.float32]

FIRST, AGAIN = "speculator.first.weight", "speculator.again.weight"
_LEAST_CHANCE = 0.1  # of a line of guesses, as the layer sees it: what is less likely is not drawn
_PHASE = "preparing the layer that guesses"
_ROWS = 1024  # of an embedding table that are converted at a time


class TrainedLayer:
    """The weights, shared by all sequences of an engine. `taps`: layers of the model whose output it reads too."""

    def __init__(
        self,
        spec: ModelSpec,
        entrances: tuple[Tensor, Tensor],
        vocabulary: npt.NDArray[np.int32],
        taps: tuple[int, ...],
        window: int,
        embeddings: Tensor,
        compiler: KernelCompiler,
        progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        from localllm.kernels.cpu.one_layer import Network, Shape, guess, prepare

        self.vocabulary, self.taps, self._embeddings = vocabulary, taps, embeddings
        self.places = np.full(embeddings.rows, -1, np.int64)
        self.places[vocabulary] = np.arange(len(vocabulary))
        attention, block = spec.layers[0].attention, spec.layers[0].feed_forward
        assert isinstance(attention, Attention)
        assert isinstance(block, FeedForward)
        assert attention.norm is not None
        assert block.norm is not None
        assert spec.head.norm is not None
        assert attention.rope is not None
        assert block.gate is not None
        linears = (attention.query, attention.key, attention.value, attention.output, block.gate, block.up, block.down)
        tensors = (*entrances, *(linear.weight for linear in linears), spec.head.linear.weight)
        arena = Arena("weights of a layer that guesses")  # in large pages: nothing of it is in the caches after a step
        pieces = [arena.take(tiled_bytes(tensor)) for tensor in tensors]
        arena.allocate()
        self._products = [
            TiledProduct(compiler, tensor, memory=piece.bytes) for tensor, piece in zip(tensors, pieces, strict=True)
        ]
        table, scales = self._small_table()
        self.network = Network(
            np.array([product.addresses for product in self._products], np.int64),
            tuple(product.vector for product in self._products),
            tuple(product.output for product in self._products),
            table,
            scales,
            np.stack(
                [
                    np.asarray(dequantize(norm.weight), np.float32)
                    for norm in (attention.norm, block.norm, spec.head.norm)
                    if norm.weight is not None
                ]
            ),
            attention.rope.inverse_frequencies,
            attention.norm.eps,
        )
        self.shape = Shape(spec.hidden_size, attention.heads, attention.kv_heads, attention.key_dim, window)
        self.guess = guess
        # Made or loaded now: in the first step it would look as if guessing took a second.
        report = progress or (lambda _: None)
        prepare(self.network, self.shape, 1 + len(taps), lambda done: report(LoadProgress(_PHASE, done)))

    def embedding(self, token: int) -> Floats:
        """[hidden], divided by the root of its mean square."""
        unit: Floats = self._units(np.array([token]))[0]
        return unit

    def _units(self, tokens: npt.NDArray[np.integer]) -> Floats:
        table = self._embeddings
        part = replace(table, shape=(len(tokens), table.columns), data=table.data[tokens])
        rows = np.asarray(dequantize(part), np.float32)
        result: Floats = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + np.float32(1e-6))
        return result

    def _small_table(self) -> tuple[npt.NDArray[np.int8], Floats]:
        table = np.empty((len(self.vocabulary), self._embeddings.columns), np.int8)
        scales = np.empty(len(table), np.float32)
        for start in range(0, len(table), _ROWS):
            rows = self._units(self.vocabulary[start : start + _ROWS])
            scale = scales[start : start + _ROWS] = np.maximum(np.abs(rows).max(-1), 1e-9) / 127
            table[start : start + _ROWS] = np.rint(rows / scale[:, None])
        return table, scales


class TrainedLayerDrafter:
    """Guesses for one sequence. The grade is the step and how sure the layer is.

    The layer attends to what it was given: rows of the answer. Those that were computed while nobody asked for guesses
    are missing, which makes guesses worse and nothing else.
    """

    cheap, wants_hidden = False, True

    def __init__(self, layer: TrainedLayer) -> None:
        self._layer = layer
        self._seen: tuple[Floats, Floats] | None = None  # keys and values
        self._text = 0  # tokens of the text when the layer was given rows last
        self._before = self._given = 0  # its rows of the text, before that time and after
        self._found, self._sureness = np.empty(MOST_GUESSES, np.int64), np.empty(MOST_GUESSES, np.float32)

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None) -> Draft:
        """The layer's likeliest tokens. `hidden` as in `Drafter.draft`."""
        if hidden is None or not np.isfinite(hidden[0, 0]) or most < 1:
            return NOTHING
        layer, count = self._layer, len(hidden)
        if self._seen is None:
            shape = layer.shape
            heads, ring, dim = shape.kv_heads, shape.window + 2 * (MOST_GUESSES + 1), shape.dim
            self._seen = np.zeros((heads, dim, ring), np.float32), np.zeros((heads, ring, dim), np.float32)
        if self._text != len(tokens):
            self._before, self._text = self._given, len(tokens)
        self._given = self._before + count
        new = list(tokens[-count:])
        places = layer.places[new]
        others = hidden
        if places.min() < 0:
            others = np.stack([layer.embedding(token) for token in new])
        guesses = layer.guess(
            layer.network,
            layer.shape,
            hidden,
            places,
            others,
            self._before,
            min(most, MOST_GUESSES),
            _LEAST_CHANCE,
            *self._seen,
            self._found,
            self._sureness,
        )
        sureness = self._sureness
        if not np.isfinite(sureness[:guesses]).all():  # weights too large for each other
            return NOTHING
        line = layer.vocabulary[self._found[:guesses]].tolist()
        return chain(line, map(sure, sureness[:guesses].tolist()))

    def close(self) -> None:
        """Forget the rows."""
        self._seen, self._text, self._before, self._given = None, 0, 0, 0


def load_trained_layer(
    file: GGUFFile,
    model: ModelSpec,
    compiler: KernelCompiler,
    progress: Callable[[LoadProgress], None] | None = None,
) -> TrainedLayer:
    """Read a file that guesses for `model`; ConfigurationError if it does not fit. `progress` hears of compiling."""
    from localllm.models.llama import build
    from localllm.models.parts.source import Source

    check_weights(file)
    source, hidden = Source(file, ARCHITECTURE, None), model.hidden_size
    try:
        taps = tuple(file.metadata.integers("speculator.taps"))
        first = source.tensor(FIRST, (hidden, (2 + len(taps)) * hidden))
        again = source.tensor(AGAIN, (hidden, 2 * hidden))
        spec = build(source)
        vocabulary = read_vocabulary(file, model.vocabulary_size)
        window = file.metadata.integer("speculator.window", minimum=1, maximum=1 << 16)
    except (GGUFError, UnsupportedModelError) as error:
        reason = error.message.removeprefix(f"{file.path}: ")
        raise ConfigurationError(
            f"{file.path} cannot guess for this model: {reason}", hint="make it again with scripts/train_drafter.py"
        ) from error
    ascending = list(taps) == sorted(set(taps)) and all(0 <= layer < len(model.layers) for layer in taps)
    if not ascending:
        raise ConfigurationError(
            f"{file.path} does not fit the model: it reads layers {', '.join(map(str, taps))} of {len(model.layers)}, "
            "and each should come once, in rising order from 0"
        )
    if spec.hidden_size != hidden or len(spec.layers) != 1 or len(vocabulary) != spec.vocabulary_size:
        raise ConfigurationError(f"{file.path} does not fit the model: it is of another size")
    if not _plain(spec):
        raise ConfigurationError(f"{file.path} holds a layer of another kind than docs/speculation.md describes")
    return TrainedLayer(spec, (first, again), vocabulary, taps, window, model.embed.table, compiler, progress)


def _plain(spec: ModelSpec) -> bool:
    """Whether the layer has nothing that `one_layer` would overlook."""
    attention, block = spec.layers[0].attention, spec.layers[0].feed_forward
    if not isinstance(attention, Attention) or not isinstance(block, FeedForward) or block.gate is None:
        return False
    rope, dim = attention.rope, attention.key_dim
    linears = (attention.query, attention.key, attention.value, attention.output, block.gate, block.up, block.down)
    return (
        all(linear.bias is None for linear in (*linears, spec.head.linear))
        and (rope is not None and rope.interleaved and rope.magnitude == 1.0)
        and (attention.value_dim == dim and attention.scale == dim**-0.5)
    )
