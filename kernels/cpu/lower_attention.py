"""Grouped-query attention as operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import dequantize
from localllm.kernels.errors import UnsupportedModelError

from .activation_format import FLOATS
from .attention import attention
from .attention_merge import merge_parts
from .attention_prefill import attention_prefill
from .attention_shape import AttentionShape
from .heads import NO_NORM, HeadNorm, Turn, head_stride, rotate_queries, store_keys, store_values
from .linear import Matrix, linear
from .lower_selective import lower_places, lower_query_sparse, lower_scores
from .lowering import BLOCK, Lowering, blocks_of
from .normalise import NormKind, NormWeights, normalise
from .operation import Kind, Rows
from .page_types import LayerPages, padded
from .softmax import query_scale
from .step_state import OUTPUT_GROUP, Word
from .weights import same_type

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.spec import Attention, Linear, Norm, Rope

    Order = npt.NDArray[np.int64]

NO_TURN = Turn(0, 0, Rows(0, 0))


def lower_attention(lowering: Lowering, index: int, block: Attention, scale: float, target: str) -> Rows:
    """x + scale * attention(x); returns where it is."""
    environment, name = lowering.environment, f"layer {index} attention"
    pages, group = environment.pages[index], environment.layout.group_of(index)
    shape = AttentionShape(
        pages=pages.main.shape,
        group=block.heads // block.kv_heads,
        value_dim=block.value_dim,
        softcap=block.softcap,
        learned_sinks=block.sinks is not None,
    )
    projections = _project(lowering, name, block)
    queries, keys, values = projections
    key_stride = head_stride(block.key_dim)
    turn, sink_turn = turns(lowering, block.rope, 0)
    _full_norms(lowering, name, block, queries, keys)
    query_norm = _head_norm(lowering, f"{name} query norm", block, block.query_norm, block.heads)
    key_norm = _head_norm(lowering, f"{name} key norm", block, block.key_norm, block.kv_heads)
    sink_queries = lowering.shared("sink queries", block.heads * key_stride)
    common = {"heads": block.heads, "stride": key_stride, "scale": query_scale(block.scale, block.softcap)}
    place = {"places": lower_places(lowering, index, group), "pages": pages.recent, "group": group}
    lowering.add(
        rotate_queries(
            query_norm,
            sink_turn,
            source=queries,
            target=sink_queries,
            only_if_evicted=True,
            barrier=False,
            **common,  # type: ignore[arg-type]
        ),
        rotate_queries(query_norm, turn, source=queries, target=queries, barrier=False, **common),  # type: ignore[arg-type]
        store_keys(key_norm, turn, source=keys, stride=key_stride, barrier=False, **place),  # type: ignore[arg-type]
        store_values(source=values, stride=head_stride(block.value_dim), barrier=True, **place),  # type: ignore[arg-type]
    )
    learned = 0
    if block.sinks is not None:
        sinks = block.sinks
        learned = environment.weights.vector(f"{name} sinks", lambda: dequantize(sinks).astype(np.float32))
    attended = lower_query_sparse(lowering, index, shape, queries, pages, group)
    if attended is None:
        lower_scores(lowering, index, shape, queries, pages, group)
        if index == len(environment.spec.layers) - 1 and environment.outputs_only and not lowering.single:
            lowering.count, lowering.picked, group, target = Word.OUTPUT_ROWS, True, OUTPUT_GROUP, "picked x"
        attended = attend(lowering, shape, queries, sink_queries, pages, group, learned, prefill=True)
    row_list = Word.OUTPUT_LIST if lowering.picked else 0
    blocks = blocks_of(block.heads * block.value_dim)
    output = environment.weights.matrix(f"{name} output", [block.output.weight], biases=[block.output.bias])
    read_format = output.layout.activation
    none = NormWeights(NormKind.NONE, 1)
    kind = Kind.ATTENTION_OUTPUT
    sources = lowering.prepare("attended", none, attended, blocks, [read_format], row_list=row_list, kind=kind)
    post_norm = lowering.norm(f"{name} post norm", block.post_norm, lowering.width)
    return lowering.add_to_residual(
        output,
        sources[read_format],
        post_norm=post_norm,
        scale=scale,
        target=target,
        residual=lowering.x,
        residual_list=row_list,
        kind=kind,
    )


def attend(
    lowering: Lowering,
    shape: AttentionShape,
    queries: Rows,
    sink_queries: Rows,
    pages: LayerPages,
    group: int,
    learned: int,
    *,
    prefill: bool,
) -> Rows:
    """Attention over the pages; returns where the attended values are: compact heads, padded to whole blocks."""
    environment = lowering.environment
    width = 4 * BLOCK * blocks_of(shape.pages.heads * shape.group * shape.value_dim)
    parts = environment.workspace.words(f"parts {shape.part_bytes}", shape.part_bytes * environment.max_parts)
    output = lowering.local("attended values", width)
    common = {"queries": queries, "sink_queries": sink_queries, "group": group, "pages": pages}
    tiles = prefill and not lowering.single
    if tiles:
        lowering.add(
            attention_prefill(shape, output=output, learned_sinks=learned, barrier=False, **common)  # type: ignore[arg-type]
        )
    lowering.add(attention(shape, output=output, parts=parts, learned_sinks=learned, **common))  # type: ignore[arg-type]
    lowering.add(
        merge_parts(
            shape,
            output=output,
            group=group,
            parts=parts,
            learned_sinks=learned,
            all_threads=lowering.single,
            barrier=not lowering.single,
        )
    )
    return output


def turns(lowering: Lowering, rope: Rope | None, start: int) -> tuple[Turn, Turn]:
    """How a rope turns heads from value `start` on: at the rows' own positions, and at their sink positions."""
    if rope is None:
        return NO_TURN, NO_TURN
    number = lowering.environment.ropes.number(rope)
    lanes = padded(rope.dimensions)
    tables = [lowering.shared(f"{kind} {number}", 8 * lanes) for kind in ("rope", "sink rope")]
    return Turn(start, lanes, tables[0]), Turn(start, lanes, tables[1])


def turning_order(dim: int, rope: Rope | None) -> Order:
    """Where each value of a head comes from, so that rope turns neighbours; padded with -1 to whole tiles."""
    order = np.full(padded(dim), -1)
    order[:dim] = np.arange(dim)
    if rope is not None and not rope.interleaved:
        half = len(rope.inverse_frequencies)
        order[0 : 2 * half : 2] = np.arange(half)
        order[1 : 2 * half : 2] = np.arange(half) + half
    return order


def heads_order(heads: int, dim: int, within: Order) -> Order:
    """`within` for every head of a matrix, padded with -1 to whole blocks of 32 rows."""
    order = np.where(within < 0, -1, within + dim * np.arange(heads)[:, None]).reshape(-1)
    return np.concatenate([order, np.full(-len(order) % BLOCK, -1)])


def _project(lowering: Lowering, name: str, block: Attention) -> tuple[Rows, Rows, Rows]:
    """Queries, keys and values of all rows, side by side in one buffer; matrices of one type become one."""
    turning = turning_order(block.key_dim, block.rope)
    plain = turning_order(block.value_dim, None)
    parts: list[tuple[str, Linear, Order]] = [
        ("query", block.query, heads_order(block.heads, block.key_dim, turning)),
        ("key", block.key, heads_order(block.kv_heads, block.key_dim, turning)),
        ("value", block.value, heads_order(block.kv_heads, block.value_dim, plain)),
    ]
    starts = np.cumsum([0, *(4 * len(order) for *_, order in parts)]).tolist()
    buffer = lowering.shared("queries, keys, values", starts[-1])
    matrices: list[tuple[Matrix, Rows]] = []
    position = 0
    while position < len(parts):
        end = position + 1
        while end < len(parts) and same_type(parts[position][1].weight, parts[end][1].weight):
            end += 1
        run = parts[position:end]
        rows = np.cumsum([0, *(linear.weight.rows for _, linear, _ in run)])
        order = np.concatenate(
            [np.where(order < 0, -1, order + start) for (*_, order), start in zip(run, rows, strict=False)]
        )
        matrix = lowering.environment.weights.matrix(
            f"{name} {' '.join(part for part, *_ in run)}",
            [linear.weight for _, linear, _ in run],
            order,
            [linear.bias for _, linear, _ in run],
        )
        matrices.append((matrix, buffer.at(starts[position])))
        position = end
    formats = [matrix.layout.activation for matrix, _ in matrices]
    sources = lowering.prepare(
        "x", lowering.norm(f"{name} norm", block.norm, lowering.width), lowering.x, lowering.blocks, formats
    )
    for matrix, rows_out in matrices:
        last = matrix is matrices[-1][0]
        source = sources[matrix.layout.activation]
        lowering.add(linear(matrix, source=source, target=rows_out, kind=Kind.QUERY_KEY_VALUE, barrier=last))
    return buffer, buffer.at(starts[1]), buffer.at(starts[2])


def _over_all_heads(norm: Norm | None, heads: int, dim: int) -> bool:
    return norm is not None and norm.weight is not None and norm.weight.shape == (heads * dim,) and heads > 1


def _full_norms(lowering: Lowering, name: str, block: Attention, queries: Rows, keys: Rows) -> None:
    """Norms over all heads together, in place."""
    turning = turning_order(block.key_dim, block.rope)
    found = []
    for part, norm, heads, rows in (
        ("query", block.query_norm, block.heads, queries),
        ("key", block.key_norm, block.kv_heads, keys),
    ):
        if norm is None or not _over_all_heads(norm, heads, block.key_dim):
            continue
        if block.norm_after_rope or norm.subtract_mean:
            raise UnsupportedModelError("a norm over all heads together after rope, or one that subtracts the mean")
        order = heads_order(heads, block.key_dim, turning)
        gain = lowering.environment.weights.vector(f"{name} {part} norm", lambda n=norm, o=order: _arranged(n, o))  # type: ignore[misc]
        found.append((NormWeights(NormKind.RMS, heads * block.key_dim, gain, 0, norm.eps), rows, len(order) // BLOCK))
    for weights, rows, blocks in found:
        lowering.add(
            normalise(
                weights,
                source=rows,
                target=rows,
                blocks=blocks,
                target_format=FLOATS,
                share=lowering.divided,
                kind=Kind.ROTATE,
                barrier=weights is found[-1][0],
            )
        )


def _arranged(norm: Norm, order: Order) -> npt.NDArray[np.float32]:
    """A gain in the order of a matrix's rows."""
    assert norm.weight is not None
    values = dequantize(norm.weight).astype(np.float32).reshape(-1)
    return np.where(order < 0, 0, values[np.maximum(order, 0)]).astype(np.float32)


def _head_norm(lowering: Lowering, name: str, block: Attention, norm: Norm | None, heads: int) -> HeadNorm:
    """A norm over each head."""
    if norm is None or _over_all_heads(norm, heads, block.key_dim):
        return NO_NORM
    within = turning_order(block.key_dim, block.rope)
    per_head = norm.weight is not None and norm.weight.shape == (heads, block.key_dim)
    order = heads_order(heads, block.key_dim, within) if per_head else within

    def vector(tensor: object, missing: float) -> npt.NDArray[np.float32]:
        values = np.full(max(order) + 1, missing) if tensor is None else dequantize(tensor).reshape(-1)  # type: ignore[arg-type]
        return np.where(order < 0, 0, values[np.maximum(order, 0)]).astype(np.float32)

    weights = lowering.environment.weights
    gain = weights.vector(f"{name} gain", lambda: vector(norm.weight, 1.0))
    bias = weights.vector(f"{name} bias", lambda: vector(norm.bias, 0.0)) if norm.subtract_mean else 0
    return HeadNorm(
        kind=NormKind.LAYER if norm.subtract_mean else NormKind.RMS,
        width=block.key_dim,
        gain=gain,
        bias=bias,
        stride=head_stride(block.key_dim) if per_head else 0,
        eps=norm.eps,
        after_rope=block.norm_after_rope,
    )
