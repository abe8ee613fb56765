"""Models of random weights for the hybrid benchmark: dense, ReLU with skewed neurons, experts with skewed routing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from random_models import SHAPES, RandomWeights, Shape, random_model

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.spec import Activation, Attention, FeedForward, Gating, Linear, MixtureOfExperts, ModelSpec

DENSITY, HOT, HOT_SHARE = 0.12, 0.26, 0.63
SKEW = 1.5
DEVIATION = 0.02 * 10 * 4.18  # of what a gate of random weights gives for a normed row
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


def sparse_model(spec: ModelSpec, *, mixed: bool = False) -> ModelSpec:
    """The same with ReLU gates that seldom fire, hot neurons first, or (`mixed`) anywhere, as files have them."""
    inner = spec.layers[0].feed_forward.up.weight.rows
    normal, rng = statistics.NormalDist(), np.random.default_rng(4)
    bias = np.array([normal.inv_cdf(min(max(rate, 1e-6), 0.999)) for rate in rates(inner)]) * DEVIATION
    layers = []
    for layer in spec.layers:
        block = layer.feed_forward
        assert isinstance(block, FeedForward)
        assert block.gate is not None
        own = (rng.permutation(bias) if mixed else bias).astype(np.float32)
        gate = Linear(block.gate.weight, Tensor("bias", QuantType.F32, (inner,), own.view(np.uint8)))
        layers.append(replace(layer, feed_forward=replace(block, gate=gate, activation=Activation.RELU)))
    return replace(spec, layers=tuple(layers))


def rates_of(block: FeedForward | MixtureOfExperts) -> Floats:
    """How often the neurons of a block of a sparse model fire, from the biases that make them."""
    assert isinstance(block, FeedForward)
    assert block.gate is not None
    assert block.gate.bias is not None
    normal = statistics.NormalDist()
    return np.array([normal.cdf(float(bias) / DEVIATION) for bias in block.gate.bias.data.view(np.float32)])


def matrices(spec: ModelSpec, layer: int) -> list[Tensor]:
    """The weights of a dense layer."""
    attention, block = spec.layers[layer].attention, spec.layers[layer].feed_forward
    assert isinstance(attention, Attention)
    linears = (attention.query, attention.key, attention.value, attention.output, block.gate, block.up, block.down)
    return [linear.weight for linear in linears if linear is not None]


def dense_model(sizes: Sizes, layers: int | None = None) -> ModelSpec:
    """A 7B shape in Q4_0."""
    return random_model(sizes.dense, "q4_0", layers, centred=True)


def mixture_model(sizes: Sizes, layers: int | None = None) -> ModelSpec:
    """The shape of a 30B model with 128 experts of which 8 are chosen; biases of the router skew the choice."""
    shape, count = sizes.mixture, sizes.experts
    spec = random_model(shape, "q4_0", layers, centred=True)
    rng, kind, weights = np.random.default_rng(2), QuantType.Q4_0, RandomWeights(2, centred=True)

    def stack(rows: int, columns: int) -> Tensor:
        data = weights.blocks(kind, count * rows, columns)
        return Tensor("experts", kind, (count, rows, columns), data.reshape(count, rows, -1))

    hidden, inner = shape.hidden, shape.inner
    stacks = stack(inner, hidden), stack(inner, hidden), stack(hidden, inner)
    made = []
    for layer in spec.layers:
        router = (rng.standard_normal((count, hidden)) * hidden**-0.5).astype(np.float32)
        popular = rng.permutation(np.linspace(SKEW, -SKEW, count)).astype(np.float32)
        linear = Linear(
            Tensor("router", QuantType.F32, router.shape, router.view(np.uint8)),
            Tensor("bias", QuantType.F32, (count,), popular.view(np.uint8)),
        )
        gate, up, down = (Linear(replace(tensor, name="experts")) for tensor in stacks)  # of every layer its own
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
