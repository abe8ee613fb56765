"""Everything that lives between kernels, allocated once for the largest step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .activations import Activation, Format, make_activation
from .cublas import WORKSPACE_BYTES, has_cublas
from .fragment_products import takes_fragments
from .half_model import GpuExpertHalf, GpuHalf
from .linear import MOST_SPLITS, VECTOR_ROWS, packed_alike
from .matrix_products import LIBRARY_ROWS
from .model import GpuAttention, GpuExperts, GpuFeedForward, GpuLatentAttention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .device import Gpu
    from .model import GpuModel
    from .vector_products import VectorProducts

_SCRATCH_BYTES = 120 << 20  # dequantised weights at once: whole matrices of a 7B model, so that the library has work
_SPLIT_ROWS = 64  # rows up to which reductions are split (matrix_products.MatrixProducts.splits)


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Buffers of up to M rows: `parts` and `extra` for what blocks add, `qkv` for a layer's first product.

    Activations whose width differs between layers exist once for every width: the product that reads one finds its
    rows as far apart as its own columns say, and zeros in the padding.
    """

    residual: torch.Tensor
    x: Activation
    raw: Activation
    attended: dict[int, Activation]
    latents: Activation
    inner: dict[int, Activation]
    low_rank: dict[int, Activation]
    qkv: torch.Tensor
    query: torch.Tensor
    sink_query: torch.Tensor
    latent_query: torch.Tensor
    parts: torch.Tensor
    extra: torch.Tensor
    gate_logits: torch.Tensor
    square_sums: torch.Tensor
    cos_sin: torch.Tensor
    router_logits: torch.Tensor
    chosen: torch.Tensor
    shares: torch.Tensor
    slots: torch.Tensor
    experts: torch.Tensor
    partial: torch.Tensor
    partial_sums: torch.Tensor
    counters: torch.Tensor
    scratch: torch.Tensor
    products: torch.Tensor
    library: torch.Tensor
    head_x: Activation
    logits: torch.Tensor
    best_values: torch.Tensor
    best_ids: torch.Tensor
    gates: torch.Tensor
    cold: torch.Tensor
    all_chosen: torch.Tensor
    all_shares: torch.Tensor


def logit_rows(vocabulary: int, most_rows: int) -> int:
    """How many rows of logits are made at once: about 64 MiB."""
    return max(1, min(most_rows, (64 << 20) // (4 * vocabulary)))


def make_workspace(
    gpu: Gpu,
    model: GpuModel,
    vectors: VectorProducts,
    rows: int,
    short: torch.dtype,
    streamed: Sequence[GpuFeedForward | GpuExperts] = (),
) -> Workspace:
    """The buffers that `model`, and blocks that are `streamed`, need for steps of up to `rows` rows."""
    spec = model.spec
    few = max(VECTOR_ROWS, 1)
    many = max(rows, few)
    layers = model.layers
    attentions = [layer.attention for layer in layers]
    experts = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, GpuExperts)]
    dense = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, GpuFeedForward)]
    halves = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, GpuHalf)]
    expert_halves = [layer.feed_forward for layer in layers if isinstance(layer.feed_forward, GpuExpertHalf)]
    experts += [half.hot for half in expert_halves if half.hot is not None]
    experts += [block for block in streamed if isinstance(block, GpuExperts)]
    routed = [*(block.block for block in experts), *(half.block for half in expert_halves)]
    dense += [half.hot for half in halves if half.hot is not None]
    dense += [block for block in streamed if isinstance(block, GpuFeedForward)]
    gates = max((half.gates.rows for half in halves if half.gates is not None), default=0)
    shared = [block.shared for block in experts if block.shared is not None]
    feeds: list[GpuFeedForward] = [*dense, *shared]

    def buffer(columns: int, a: int = few, b: int = many, extra: Format = Format.NONE) -> Activation:
        formats = vectors.all_formats | (Format.FRAGMENTS if takes_fragments(gpu, short) else Format.NONE)
        return make_activation(gpu, columns, a, b, formats, Format.SHORT | extra, short)

    def floats(*shape: int) -> torch.Tensor:
        return gpu.empty(shape, torch.float32)

    def integers(*shape: int) -> torch.Tensor:
        return gpu.empty(shape, torch.int32)

    top_k = max((block.top_k for block in routed), default=0)
    most_experts = max((block.experts for block in routed), default=0)
    widths = {block.up.rows for block in feeds} | {block.up.rows for block in experts}
    inner = max((block.up.rows for block in feeds), default=1)
    heads = [a.block.heads * query_width(a) for a in attentions]
    values = max(a.output.columns for a in attentions)
    first = max(a.qkv.rows if isinstance(a, GpuAttention) else a.first.rows for a in attentions)
    latent = [a for a in attentions if isinstance(a, GpuLatentAttention)]
    lows = {a.query_up.columns for a in latent if a.query_up is not None}
    ups = [a.query_up.rows for a in latent if a.query_up is not None]
    odd = max(
        (a.output.columns for a in attentions if isinstance(a, GpuAttention) and a.block.value_dim % 16), default=0
    )
    attended_latent = max((a.block.heads * a.block.latent_rank for a in latent), default=0)
    split = max(many, MOST_SPLITS * min(many, _SPLIT_ROWS))
    slots = many * top_k
    tile = 16
    tiles = -(-slots // tile) + most_experts if top_k else 1
    hidden, vocabulary = spec.hidden_size, spec.vocabulary_size
    outputs = logit_rows(vocabulary, many)
    by_library = rows >= LIBRARY_ROWS and short != torch.float32 and not gpu.interpreted
    by_library |= not all(packed_alike(block.gate, block.up) for block in feeds)
    families = {block.up.matrices[0].shape.family for block in dense}
    gated = {half.gates.matrices[0].shape.family for half in halves if half.gates is not None}
    by_library |= bool(families and gated) and families != gated  # pieces that cross take these gates
    scratch = min(_SCRATCH_BYTES // short.itemsize, 2 * largest_matrix(model, streamed)) if by_library else 1
    inner_rows = max(many if feeds else 0, slots)
    return Workspace(
        residual=floats(many, hidden),
        x=buffer(hidden, extra=Format.NATURAL if routed else Format.NONE),
        raw=make_activation(gpu, hidden, many if routed else 1, 1, Format.NATURAL, Format.NONE, short),
        attended={width: buffer(width) for width in {a.output.columns for a in attentions}},
        latents=make_activation(
            gpu, max(attended_latent, odd), many if attended_latent or odd else 1, 1, Format.NATURAL, Format.NONE, short
        ),
        inner={width: buffer(width, few * max(1, top_k), inner_rows) for width in widths},
        low_rank={width: buffer(width) for width in lows},
        qkv=floats(split * first),
        query=floats(many * max(heads)),
        sink_query=floats(many * max(heads)),
        latent_query=floats(many * max([*ups, 1])),
        parts=floats(max(split, slots) * hidden),
        extra=floats(many * max(hidden, values)),
        gate_logits=floats(many),
        square_sums=floats(few * (-(-hidden // 4))),
        cos_sin=floats(2 * max(1, model.rope_tables) * many * 2 * model.frequencies.shape[1]),
        router_logits=floats(max(1, many * most_experts)),
        chosen=integers(max(1, slots)),
        shares=floats(max(1, slots)),
        slots=integers(tiles * tile),
        experts=integers(tiles),
        partial=floats(partial_words(gpu, model)),
        partial_sums=floats(partial_words(gpu, model) // 8),
        counters=integers(4096),
        scratch=gpu.empty((scratch,), short),
        products=floats(min(many * 2 * inner, 64 << 20) if by_library else 1),
        library=gpu.empty((WORKSPACE_BYTES if by_library and has_cublas(gpu) else 0,), torch.uint8),
        head_x=buffer(hidden, few, max(outputs, few), Format.NATURAL),
        logits=floats(max(outputs, few), vocabulary),
        best_values=floats(max(outputs, few) * 64 * 64),
        best_ids=integers(max(outputs, few) * 64 * 64),
        gates=floats(many * gates),
        cold=floats(many * hidden if halves or expert_halves else 1),
        all_chosen=integers(slots if streamed else 1),
        all_shares=floats(slots if streamed else 1),
    )


def query_width(attention: GpuAttention | GpuLatentAttention) -> int:
    """Values of one head's query, as attention reads it."""
    block = attention.block
    if isinstance(attention, GpuAttention):
        return attention.block.key_dim
    return attention.block.latent_rank + block.rope.dimensions if block.rope is not None else 0


def largest_matrix(model: GpuModel, streamed: Sequence[GpuFeedForward | GpuExperts] = ()) -> int:
    """Numbers of the largest matrix of a layer."""
    largest = 1
    for piece in streamed:
        for matrix in (*piece.up.matrices, *piece.down.matrices):
            largest = max(largest, matrix.shape.padded_rows * matrix.shape.padded_columns)
    for layer in model.layers:
        attention, block = layer.attention, layer.feed_forward
        linears = [attention.output]
        if isinstance(block, GpuExpertHalf):
            linears += () if block.hot is None else (block.hot.up, block.hot.down)
        elif isinstance(block, GpuHalf):
            linears += () if block.gates is None else (block.gates,)
            linears += () if block.hot is None else (block.hot.up, block.hot.down)
        else:
            linears += (block.up, block.down)
        linears.append(attention.qkv if isinstance(attention, GpuAttention) else attention.first)
        for linear in linears:
            for matrix in linear.matrices:
                largest = max(largest, matrix.shape.padded_rows * matrix.shape.padded_columns)
    return largest


def partial_words(gpu: Gpu, model: GpuModel) -> int:
    """Float32 words for the parts of split attention: every program of four waves leaves 16 vectors."""
    widths = [
        a.block.value_dim if isinstance(a, GpuAttention) else a.block.latent_rank
        for a in (x.attention for x in model.layers)
    ]
    width = 1 << (max(widths) - 1).bit_length()
    return max(8 * gpu.processors, 64) * 16 * width
