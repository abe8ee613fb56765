"""Latent attention (MLA) as operations: queries are moved into latent space, and the latent is its own value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import Tensor

from .activation_format import FLOATS, Form, row_bytes
from .attention_shape import AttentionShape
from .heads import NO_NORM, compact_heads, head_stride, rotate_queries, store_keys
from .linear import linear
from .lower_attention import NO_TURN, attend, heads_order, turning_order, turns
from .lowering import BLOCK, Lowering, blocks_of
from .normalise import NormKind, NormWeights, normalise
from .operation import Kind, Rows
from .page_types import padded
from .softmax import query_scale

if TYPE_CHECKING:
    from localllm.kernels.spec import LatentAttention

_NONE = NormWeights(NormKind.NONE, 1)


def latent_key_dim(block: LatentAttention) -> int:
    """Values of a stored key: the latent padded to whole blocks, then the rotated part."""
    return BLOCK * blocks_of(block.latent_rank) + padded(block.rope.dimensions)


def lower_latent_attention(lowering: Lowering, index: int, block: LatentAttention, scale: float, target: str) -> Rows:
    """x + scale * attention(x); returns where it is."""
    environment, name = lowering.environment, f"layer {index} attention"
    pages, group = environment.pages[index], environment.layout.group_of(index)
    latent = BLOCK * blocks_of(block.latent_rank)
    query_stride = head_stride(latent_key_dim(block))
    queries = lowering.shared("latent queries", block.heads * query_stride)
    sink_queries = lowering.shared("sink queries", block.heads * query_stride)
    compressed = _project(lowering, name, block, queries)
    turn, sink_turn = turns(lowering, block.rope, latent)
    common = {"heads": block.heads, "stride": query_stride, "scale": 1.0}
    lowering.add(
        rotate_queries(
            NO_NORM,
            sink_turn,
            source=queries,
            target=sink_queries,
            only_if_evicted=True,
            barrier=False,
            **common,  # type: ignore[arg-type]
        ),
        rotate_queries(NO_NORM, turn, source=queries, target=queries, barrier=False, **common),  # type: ignore[arg-type]
        store_keys(
            NO_NORM,
            turn,
            source=compressed,
            stride=query_stride,
            pages=pages.recent,
            group=group,
            barrier=True,
        ),
    )
    shape = AttentionShape(pages.main.shape, block.heads, latent, None, False)
    attended = attend(lowering, shape, queries, sink_queries, pages, group, 0, prefill=False)
    blocks = blocks_of(block.heads * block.value_dim)
    kind, stride = Kind.ATTENTION_OUTPUT, head_stride(block.value_dim)
    values = lowering.shared("attended heads", 4 * BLOCK * blocks_of(block.heads * stride // 4))
    _per_head(lowering, f"{name} value up", block.value_up, attended, latent, values, stride, 1.0, kind)
    if stride != 4 * block.value_dim:
        padded_values, values = values, lowering.shared("compact heads", 4 * BLOCK * blocks)
        lowering.add(compact_heads(block.value_dim, source=padded_values, target=values, heads=block.heads))
    output = environment.weights.matrix(f"{name} output", [block.output.weight], biases=[block.output.bias])
    read_format = output.layout.activation
    source = lowering.prepare("attended", _NONE, values, blocks, [read_format], kind=kind)[read_format]
    return lowering.add_to_residual(
        output, source, post_norm=_NONE, scale=scale, target=target, residual=lowering.x, kind=kind
    )


def _project(lowering: Lowering, name: str, block: LatentAttention, queries: Rows) -> Rows:
    """Queries in latent space (not rotated yet) and the rows' compressed keys, latent part normalised."""
    weights = lowering.environment.weights
    key_dim, rotated = block.nope_dim + block.rope.dimensions, block.rope.dimensions
    latent, nope = BLOCK * blocks_of(block.latent_rank), BLOCK * blocks_of(block.nope_dim)
    kind = Kind.QUERY_KEY_VALUE
    down = block.key_value_down
    turning = turning_order(rotated, block.rope)
    down_order = np.full(latent + len(turning), -1)
    down_order[: block.latent_rank] = np.arange(block.latent_rank)
    down_order[latent:] = np.where(turning < 0, -1, turning + block.latent_rank)
    down_order = np.concatenate([down_order, np.full(-len(down_order) % BLOCK, -1)])
    down_matrix = weights.matrix(f"{name} key value down", [down.weight], down_order, [down.bias])
    compressed = lowering.shared("compressed", 4 * len(down_order))
    first_query = block.query[0] if isinstance(block.query, tuple) else block.query
    formats = [weights.format_of(tensor) for tensor in (first_query.weight, down.weight)]
    sources = lowering.prepare(
        "x", lowering.norm(f"{name} norm", block.norm, lowering.width), lowering.x, lowering.blocks, formats
    )
    lowering.add(
        linear(
            down_matrix,
            source=sources[down_matrix.layout.activation],
            target=compressed,
            kind=kind,
            barrier=False,
        )
    )

    within = np.full(nope, -1)
    within[: block.nope_dim] = np.arange(block.nope_dim)
    still = heads_order(block.heads, key_dim, within)
    moving = np.where(turning < 0, -1, turning + block.nope_dim)
    moving = heads_order(block.heads, key_dim, moving)
    order = np.concatenate([still, moving])
    raw = lowering.shared("latent raw queries", 4 * len(order))
    last = first_query
    if isinstance(block.query, tuple):
        first, norm, last = block.query
        rank = first.weight.rows
        middle = lowering.shared("query rank", 4 * BLOCK * blocks_of(rank))
        matrix = weights.matrix(f"{name} query down", [first.weight], biases=[first.bias])
        lowering.add(linear(matrix, source=sources[matrix.layout.activation], target=middle, kind=kind))
        read_format = weights.format_of(last.weight)
        norm_weights = lowering.norm(f"{name} query norm", norm, rank)
        sources = lowering.prepare("query rank", norm_weights, middle, blocks_of(rank), [read_format], kind=kind)
    matrix = weights.matrix(f"{name} query", [last.weight], order, [last.bias])
    lowering.add(linear(matrix, source=sources[matrix.layout.activation], target=raw, kind=kind))

    lowering.add(
        normalise(
            lowering.norm(f"{name} latent norm", block.latent_norm, block.latent_rank),
            source=compressed,
            target=compressed,
            blocks=latent // BLOCK,
            target_format=FLOATS,
            share=lowering.divided,
            kind=Kind.ROTATE,
            barrier=False,
        ),
        rotate_queries(
            NO_NORM,
            NO_TURN,
            source=raw.at(4 * len(still)),
            target=queries.at(4 * latent),
            heads=block.heads,
            stride=4 * len(turning),
            target_stride=head_stride(latent_key_dim(block)),
            scale=query_scale(block.scale, None),
            barrier=False,
        ),
    )
    stride = head_stride(latent_key_dim(block))
    scale = query_scale(block.scale, None)
    _per_head(lowering, f"{name} key up", block.key_up, raw, nope, queries, stride, scale, kind, pad=latent)
    return compressed


def _per_head(
    lowering: Lowering,
    name: str,
    tensor: Tensor,
    source: Rows,
    source_dim: int,
    target: Rows,
    target_stride: int,
    scale: float,
    kind: Kind,
    pad: int | None = None,
) -> None:
    """target[m][h] = scale * tensor[h] @ source[m][h]; heads of the source are `source_dim` values apart."""
    weights = lowering.environment.weights
    heads, rows, _ = tensor.shape
    order = np.arange(rows) if pad is None else np.concatenate([np.arange(rows), np.full(pad - rows, -1)])
    stack = weights.matrix(name, [tensor], order)
    read_format: Form = stack.layout.activation
    blocks = heads * source_dim // BLOCK
    prepared = lowering.prepare(name.partition("attention")[2], _NONE, source, blocks, [read_format], kind=kind)[
        read_format
    ]
    for head in range(heads):
        offset = head * row_bytes(read_format, source_dim // BLOCK)
        lowering.add(
            linear(
                stack.one(head),
                source=prepared.at(offset),
                target=target.at(head * target_stride),
                count=lowering.count,
                scale=scale,
                kind=kind,
                barrier=head == heads - 1,
            )
        )
