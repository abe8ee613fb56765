"""Models of random weights for the hybrid benchmark: dense, ReLU with skewed neurons, experts with skewed routing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from random_models import SHAPES, Shape, random_model

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.spec import Activation, Attention, FeedForward, Gating, Linear, MixtureOfExperts, ModelSpec

DENSITY, HOT, HOT_SHARE = 0.12, 0.26, 0.63
SKEW = 1.5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dense shape, and of the mixture its own shape, experts and how many of them are chosen."""

    dense: Shape
    mixture: Shape
    experts: int
    top_k: int


FULL = Sizes(SHAPES["8b"], Shape(2048, 768, 32, 4, 48, 151936), 128, 8)
TINY = Sizes(Shape(64, 128, 2, 1, 1, 64), Shape(64, 32, 2, 1, 3, 64), 6, 2)


def rates(neurons: int) -> Floats:
    """How often each neuron fires, the hottest first: a beta distribution of the measured mean and skew."""
    rng = np.random.default_rng(9)
    best: tuple[float, Floats] | None = None
    for spread in (0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0):
        found = np.sort(rng.beta(spread, spread * (1 - DENSITY) / DENSITY, neurons))[::-1]
        share = float(found[: int(HOT * neurons)].sum() / found.sum())
        if best is None or abs(share - HOT_SHARE) < abs(best[0] - HOT_SHARE):
            best = share, found
    assert best is not None
    return best[1]


def sparse_model(spec: ModelSpec) -> ModelSpec:
    """The same with ReLU gates that seldom fire, hot neurons first."""
    inner = spec.layers[0].feed_forward.up.weight.rows
    normal = statistics.NormalDist()
    deviation = 0.02 * 10 * 4.18
    bias = np.array([normal.inv_cdf(min(max(rate, 1e-6), 0.999)) for rate in rates(inner)]) * deviation
    tensor = Tensor("bias", QuantType.F32, (inner,), bias.astype(np.float32).view(np.uint8))
    layers = []
    for layer in spec.layers:
        block = layer.feed_forward
        assert isinstance(block, FeedForward)
        assert block.gate is not None
        gate = Linear(block.gate.weight, tensor)
        layers.append(replace(layer, feed_forward=replace(block, gate=gate, activation=Activation.RELU)))
    return replace(spec, layers=tuple(layers))


def matrices(spec: ModelSpec, layer: int) -> list[Tensor]:
    """The weights of a dense layer."""
    attention, block = spec.layers[layer].attention, spec.layers[layer].feed_forward
    assert isinstance(attention, Attention)
    linears = (attention.query, attention.key, attention.value, attention.output, block.gate, block.up, block.down)
    return [linear.weight for linear in linears if linear is not None]


def centred(spec: ModelSpec) -> ModelSpec:
    """The same with nibbles 1 to 15, whose mean is zero: else every product would have one common part."""
    tensors = [spec.embed.table, spec.head.linear.weight, *matrices(spec, 0)]  # all layers share their bytes
    for data in {id(tensor.data): tensor.data for tensor in tensors}.values():
        without_eighths(data.reshape(len(data), -1, 18)[..., 2:])
    return spec


def without_eighths(nibbles: npt.NDArray[np.uint8]) -> None:
    """Nibbles of 0, which stand for -8, become 8, which stand for 0."""
    nibbles[(nibbles & 15) == 0] |= 8
    nibbles[(nibbles >> 4) == 0] |= 128


def dense_model(sizes: Sizes, layers: int | None = None) -> ModelSpec:
    """A 7B shape in Q4_0."""
    return centred(random_model(sizes.dense, "q4_0", layers))


def mixture_model(sizes: Sizes, layers: int | None = None) -> ModelSpec:
    """The shape of a 30B model with 128 experts of which 8 are chosen; biases of the router skew the choice."""
    shape, count = sizes.mixture, sizes.experts
    spec = centred(random_model(shape, "q4_0", layers))
    rng, kind = np.random.default_rng(2), QuantType.Q4_0

    def stack(rows: int, columns: int) -> Tensor:
        data = rng.integers(0, 256, (count, rows, columns // 32, 18), dtype=np.uint8)
        without_eighths(data[..., 2:])
        data[..., :2] = np.full(1, 0.2 / columns**0.5, np.float16).view(np.uint8)
        return Tensor("experts", kind, (count, rows, columns), data.reshape(count, rows, -1))

    hidden, inner = shape.hidden, shape.inner
    gate, up, down = Linear(stack(inner, hidden)), Linear(stack(inner, hidden)), Linear(stack(hidden, inner))
    made = []
    for layer in spec.layers:
        router = (rng.standard_normal((count, hidden)) * hidden**-0.5).astype(np.float32)
        popular = rng.permutation(np.linspace(SKEW, -SKEW, count)).astype(np.float32)
        linear = Linear(
            Tensor("router", QuantType.F32, router.shape, router.view(np.uint8)),
            Tensor("bias", QuantType.F32, (count,), popular.view(np.uint8)),
        )
        block = MixtureOfExperts(
            layer.feed_forward.norm,
            linear,
            gate,
            up,
            down,
            count,
            sizes.top_k,
            Activation.SILU,
            Gating.SOFTMAX,
            normalise=True,
        )
        made.append(replace(layer, feed_forward=block))
    return replace(spec, layers=tuple(made))


def popularity(spec: ModelSpec) -> list[Floats]:
    """Per layer what a profile would say of its experts: the biases that skew the choice."""
    blocks = [layer.feed_forward for layer in spec.layers]
    return [
        block.router.bias.data.view(np.float32).astype(np.float64)
        for block in blocks
        if isinstance(block, MixtureOfExperts) and block.router.bias is not None
    ]
