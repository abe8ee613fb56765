"""Models of random weights in the shapes of real ones, for the programs that measure speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.spec import Activation, Attention, Embed, FeedForward, Head, Layer, Linear, ModelSpec, Norm, Rope


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int


SHAPES = {
    "8b": Shape(4096, 14336, 32, 8, 32, 32000),
    "135m": Shape(576, 1536, 9, 3, 30, 49152),
}


class RandomWeights:
    """Tensors of random blocks with sane scales; equal shapes share their bytes on the host.

    `centred`: nibbles of Q4_0 are 1 to 15, whose mean is zero; else every product has one common part.
    """

    def __init__(self, seed: int, *, centred: bool = False) -> None:
        self._centred = centred
        self._rng = np.random.default_rng(seed)
        self._known: dict[tuple[QuantType, int, int], Tensor] = {}

    def matrix(self, kind: QuantType, rows: int, columns: int) -> Tensor:
        """A new tensor over shared bytes."""
        key = (kind, rows, columns)
        if key not in self._known:
            self._known[key] = Tensor("random", kind, (rows, columns), self.blocks(kind, rows, columns))
        return replace(self._known[key], name="random")

    def blocks(self, kind: QuantType, rows: int, columns: int) -> npt.NDArray[np.uint8]:
        """Bytes [rows, bytes of a row]: a pool of random blocks, again and again, so that no two rows are alike."""
        count = rows * columns // kind.block_size
        pool = self._rng.integers(0, 256, (min(count, _POOL), kind.type_size), dtype=np.uint8)
        scale = np.float16(0.02 / columns**0.5)
        for offset, factor in _HALVES[kind]:
            pool[:, offset : offset + 2] = np.full(1, scale * np.float16(factor), np.float16).view(np.uint8)
        if self._centred and kind is QuantType.Q4_0:
            _without_eighths(pool[:, 2:])
        return np.resize(pool, (rows, columns // kind.block_size * kind.type_size))

    def linear(self, kind: QuantType, rows: int, columns: int) -> Linear:
        """A product without bias."""
        return Linear(self.matrix(kind, rows, columns))


def _without_eighths(nibbles: npt.NDArray[np.uint8]) -> None:
    """Nibbles of 0, which stand for -8, become 8, which stand for 0."""
    nibbles |= ((nibbles & 15) == 0).astype(np.uint8) << 3
    nibbles |= ((nibbles >> 4) == 0).astype(np.uint8) << 7


_POOL = 262139  # blocks, a prime: rows begin elsewhere in it each time
_HALVES = {
    QuantType.Q4_0: [(0, 10)],
    QuantType.Q4_1: [(0, 10), (2, -75)],
    QuantType.Q4_K: [(0, 0.4), (2, 0.4)],
    QuantType.Q6_K: [(208, 0.03)],
    QuantType.Q8_0: [(0, 0.7)],
}


def random_model(shape: Shape, recipe: str, layers: int | None = None, *, centred: bool = False) -> ModelSpec:
    """A Llama of this shape; recipes q4_0, q4_1, q8_0 and q4_k_m (some matrices in Q6_K, as files of that name)."""
    weights = RandomWeights(1, centred=centred)
    count = layers or shape.layers
    main = QuantType.Q4_K if recipe == "q4_k_m" else QuantType[recipe.upper()]
    ones = np.ones(shape.hidden, np.float32).view(np.uint8)
    norm = Norm(Tensor("norm", QuantType.F32, (shape.hidden,), ones), 1e-5)
    width = 128 if shape.hidden % (128 * shape.heads) == 0 else shape.hidden // shape.heads
    rope = Rope(10000.0 ** -(np.arange(width // 2) / (width // 2)), False)

    def layer(index: int) -> Layer:
        more = recipe == "q4_k_m" and (index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2)
        careful = QuantType.Q6_K if more else main
        keys = shape.kv_heads * width
        attention = Attention(
            norm,
            weights.linear(main, shape.heads * width, shape.hidden),
            weights.linear(main, keys, shape.hidden),
            weights.linear(careful, keys, shape.hidden),
            weights.linear(main, shape.hidden, shape.heads * width),
            shape.heads,
            shape.kv_heads,
            width,
            width,
            width**-0.5,
            rope,
        )
        feed = FeedForward(
            norm,
            weights.linear(main, shape.inner, shape.hidden),
            weights.linear(main, shape.inner, shape.hidden),
            weights.linear(careful, shape.hidden, shape.inner),
            Activation.SILU,
        )
        return Layer(attention, feed)

    head = QuantType.Q6_K if recipe == "q4_k_m" else main
    return ModelSpec(
        "llama",
        f"random {recipe}",
        shape.vocabulary,
        shape.hidden,
        1 << 17,
        Embed(weights.matrix(main, shape.vocabulary, shape.hidden)),
        tuple(layer(index) for index in range(count)),
        Head(norm, weights.linear(head, shape.vocabulary, shape.hidden)),
    )
