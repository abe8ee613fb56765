"""A model's weights on the card, arranged as its spec is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.spec import LatentAttention, MixtureOfExperts

from .families import F16, F32, family_of
from .half_model import GpuExpertHalf, GpuHalf, build_half
from .linear import GpuLinear

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from localllm.gguf_io import QuantType, Tensor
    from localllm.kernels.hybrid.halves import Split
    from localllm.kernels.spec import Attention, FeedForward, Layer, Linear, ModelSpec, Norm, Rope

    from .matrix import PackedMatrix
    from .weight_memory import WeightMemory


@dataclass(frozen=True, slots=True, eq=False)
class GpuNorm:
    """A norm with float32 gain and bias; `source` is the spec's object, by which equal norms are recognised."""

    source: Norm
    gain: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def rms(self) -> bool:
        """Whether it is nothing but an RMS norm with a gain, which a product can finish."""
        return not self.source.subtract_mean and self.bias is None


@dataclass(frozen=True, slots=True, eq=False)
class GpuAttention:
    """Grouped-query attention; `rope` is a table number, -1 for none."""

    block: Attention
    norm: GpuNorm | None
    qkv: GpuLinear
    output: GpuLinear
    query_norm: GpuNorm | None
    key_norm: GpuNorm | None
    post_norm: GpuNorm | None
    sinks: torch.Tensor | None
    rope: int


@dataclass(frozen=True, slots=True, eq=False)
class GpuLatentAttention:
    """Latent attention; `first` computes the query (or what its norm reads) and the compressed key in one go."""

    block: LatentAttention
    norm: GpuNorm | None
    first: GpuLinear
    query_norm: GpuNorm | None
    query_up: GpuLinear | None
    latent_norm: GpuNorm
    key_up: torch.Tensor
    value_up: torch.Tensor
    output: GpuLinear
    rope: int


@dataclass(frozen=True, slots=True, eq=False)
class GpuFeedForward:
    """A dense feed-forward block."""

    block: FeedForward
    norm: GpuNorm | None
    gate: GpuLinear | None
    up: GpuLinear
    down: GpuLinear
    post_norm: GpuNorm | None


@dataclass(frozen=True, slots=True, eq=False)
class GpuExperts:
    """A mixture of experts; the router and the shared expert's gate are float32."""

    block: MixtureOfExperts
    norm: GpuNorm | None
    router: GpuLinear
    selection_bias: torch.Tensor | None
    gate: GpuLinear | None
    up: GpuLinear
    down: GpuLinear
    shared: GpuFeedForward | None
    shared_gate: GpuLinear | None
    post_norm: GpuNorm | None


GpuBlock = GpuFeedForward | GpuExperts | GpuHalf | GpuExpertHalf


@dataclass(frozen=True, slots=True, eq=False)
class GpuLayer:
    """A layer; `index` is its place in the model."""

    index: int
    attention: GpuAttention | GpuLatentAttention
    feed_forward: GpuBlock
    residual_scale: float
    parallel: bool


@dataclass(frozen=True, slots=True, eq=False)
class GpuModel:
    """All weights. `frequencies` float64 [ropes, pairs], `pairs` and `magnitudes` describe the distinct ropes.

    `unpacked_types` are kept as bytes with a scale per 16; `turned`: matrices stored a row a neuron became float16.
    """

    spec: ModelSpec
    layout: KVLayout
    table: PackedMatrix
    positions: PackedMatrix | None
    embed_norm: GpuNorm | None
    layers: tuple[GpuLayer, ...]
    head_norm: GpuNorm | None
    head: GpuLinear
    frequencies: torch.Tensor
    pairs: torch.Tensor
    magnitudes: torch.Tensor
    ones: torch.Tensor
    unpacked_types: frozenset[QuantType]
    turned: bool

    @property
    def rope_tables(self) -> int:
        """How many distinct ropes there are."""
        return len(self.pairs)


class ModelBuilder:
    """Asks a `WeightMemory` for everything that a spec needs, in a fixed order."""

    def __init__(self, spec: ModelSpec, memory: WeightMemory, splits: Mapping[int, Split] | None = None) -> None:
        """`splits`: by layer, feed-forward blocks whose other half is on the CPU."""
        self._spec = spec
        self._splits = splits or {}
        self.memory = memory
        self._norms: dict[int, GpuNorm] = {}
        self._ropes: list[Rope] = []
        self._unpacked: set[QuantType] = set()
        self._turned = False

    def build(self) -> GpuModel:
        """The model, filled or only counted."""
        spec, memory = self._spec, self.memory
        embed = spec.embed
        layers = tuple(self._layer(index, layer) for index, layer in enumerate(spec.layers))
        width = max((len(rope.inverse_frequencies) for rope in self._ropes), default=1)
        frequencies = np.zeros((max(1, len(self._ropes)), 1 << (width - 1).bit_length()))
        for row, rope in zip(frequencies, self._ropes, strict=False):
            row[: len(rope.inverse_frequencies)] = rope.inverse_frequencies
        pairs = np.array([len(rope.inverse_frequencies) for rope in self._ropes], np.int32)
        magnitudes = np.array([rope.magnitude for rope in self._ropes], np.float32)
        return GpuModel(
            spec,
            KVLayout.of(spec),
            self._matrix([embed.table]),
            None if embed.positions is None else self._matrix([embed.positions]),
            self.norm(embed.norm),
            layers,
            self.norm(spec.head.norm),
            self.linear(spec.head.linear),
            memory.values(frequencies),
            memory.values(pairs),
            memory.values(magnitudes),
            memory.values(np.ones(spec.hidden_size, np.float32)),
            frozenset(self._unpacked),
            self._turned,
        )

    def _layer(self, index: int, layer: Layer) -> GpuLayer:
        attention = layer.attention
        block = layer.feed_forward
        post = None if isinstance(attention, LatentAttention) else attention.post_norm
        if layer.parallel and (post is not None or block.post_norm is not None):
            raise UnsupportedModelError(
                "the GPU executor has no parallel blocks with norms after them", hint="Use --device cpu."
            )
        return GpuLayer(
            index,
            self._latent(attention) if isinstance(attention, LatentAttention) else self._attention(attention),
            self._block(index, block),
            layer.residual_scale,
            layer.parallel,
        )

    def _block(self, index: int, block: FeedForward | MixtureOfExperts) -> GpuBlock:
        if index in self._splits:
            return build_half(self, index, self._splits[index])
        return self.experts(block) if isinstance(block, MixtureOfExperts) else self.feed_forward(block)

    def _attention(self, block: Attention) -> GpuAttention:
        return GpuAttention(
            block,
            self.norm(block.norm),
            self._joined([block.query, block.key, block.value]),
            self.linear(block.output),
            self.norm(block.query_norm),
            self.norm(block.key_norm),
            self.norm(block.post_norm),
            self.memory.vector(block.sinks),
            self._rope(block.rope),
        )

    def _latent(self, block: LatentAttention) -> GpuLatentAttention:
        low_rank = block.query if isinstance(block.query, tuple) else None
        first = block.query[0] if isinstance(block.query, tuple) else block.query
        return GpuLatentAttention(
            block,
            self.norm(block.norm),
            self._joined([first, block.key_value_down]),
            None if low_rank is None else self.norm(low_rank[1]),
            None if low_rank is None else self.linear(low_rank[2]),
            self._some_norm(block.latent_norm),
            self.memory.numbers([block.key_up]),
            self.memory.numbers([block.value_up]),
            self.linear(block.output),
            self._rope(block.rope),
        )

    def feed_forward(self, block: FeedForward) -> GpuFeedForward:
        """A dense block; its products have a bias both or neither, as the programs that fuse them expect."""
        gate, up = block.gate, block.up
        biased = up.bias is not None or (gate is not None and gate.bias is not None)
        return GpuFeedForward(
            block,
            self.norm(block.norm),
            None if gate is None else self.linear(gate, biased=biased),
            self.linear(up, biased=biased),
            self._down(block.down, block.down_transposed),
            self.norm(block.post_norm),
        )

    def experts(self, block: MixtureOfExperts) -> GpuExperts:
        """A mixture, or some of its experts; raises as `stacks` does."""
        norm, router = self.norm(block.norm), self.precise(block.router)
        return replace(
            self.stacks(block),
            norm=norm,
            router=router,
            selection_bias=self.memory.vector(block.selection_bias),
            post_norm=self.norm(block.post_norm),
        )

    def stacks(self, block: MixtureOfExperts) -> GpuExperts:
        """Its experts and the shared one, without norms and router.

        Raises UnsupportedModelError when gates and ups are quantised differently.
        """
        if block.gate is not None and block.gate.weight.quant_type is not block.up.weight.quant_type:
            raise UnsupportedModelError(
                "the GPU executor has no experts whose gates and ups are quantised differently",
                hint="Use --device cpu.",
            )
        return GpuExperts(
            block,
            None,
            GpuLinear(()),
            None,
            None if block.gate is None else self.linear(block.gate),
            self.linear(block.up),
            self._down(block.down, block.down_transposed),
            None if block.shared is None else self.feed_forward(block.shared),
            None if block.shared_gate is None else self.precise(block.shared_gate),
            None,
        )

    def linear(self, linear: Linear, *, biased: bool = False) -> GpuLinear:
        """A product; `biased`: with a bias even if it is zero."""
        bias = self.memory.vector(linear.bias)
        if bias is None and biased:
            bias = self.memory.numbers([None], [linear.weight.rows])
        return GpuLinear((self._matrix([linear.weight]),), bias)

    def precise(self, linear: Linear) -> GpuLinear:
        """A small product whose result decides something: float32 throughout."""
        return GpuLinear((self.memory.matrix([linear.weight], F32),), self.memory.vector(linear.bias))

    def _down(self, linear: Linear, transposed: bool) -> GpuLinear:
        if not transposed:
            return self.linear(linear)
        self._turned = True
        return GpuLinear((self.memory.transposed(linear.weight),), self.memory.vector(linear.bias))

    def _joined(self, linears: Sequence[Linear]) -> GpuLinear:
        """Several products of one input as one, where their packed forms agree."""
        groups: list[list[Tensor]] = []
        for linear in linears:
            weight = linear.weight
            last = groups[-1][-1] if groups else None
            fits = last is not None and last.quant_type is weight.quant_type and last.rows % 4 == 0
            if fits and sum(tensor.rows for tensor in groups[-1]) % 4 == 0:
                groups[-1].append(weight)
            else:
                groups.append([weight])
        bias = None
        if any(linear.bias is not None for linear in linears):
            bias = self.memory.numbers([linear.bias for linear in linears], [linear.weight.rows for linear in linears])
        return GpuLinear(tuple(self._matrix(group) for group in groups), bias)

    def _matrix(self, tensors: Sequence[Tensor]) -> PackedMatrix:
        family = family_of(tensors[0].quant_type)
        if not family.dense and tensors[0].columns % 32:
            family = F16
        if family.bits == 8 and family.form.name == "GROUP":
            self._unpacked.add(tensors[0].quant_type)
        return self.memory.matrix(tensors, family)

    def norm(self, norm: Norm | None) -> GpuNorm | None:
        """A norm; equal ones are kept once."""
        return None if norm is None else self._some_norm(norm)

    def _some_norm(self, norm: Norm) -> GpuNorm:
        if id(norm) not in self._norms:
            self._norms[id(norm)] = GpuNorm(norm, self.memory.vector(norm.weight), self.memory.vector(norm.bias))
        return self._norms[id(norm)]

    def _rope(self, rope: Rope | None) -> int:
        if rope is None:
            return -1
        for index, known in enumerate(self._ropes):
            same = np.array_equal(known.inverse_frequencies, rope.inverse_frequencies)
            if same and known.magnitude == rope.magnitude:
                return index
        self._ropes.append(rope)
        return len(self._ropes) - 1
