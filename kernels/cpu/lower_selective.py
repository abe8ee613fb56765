"""Attention under a selective policy as operations, in the layers without a native window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.selective import HeavyHitters, QuerySparse

from .heavy_hitters import add_attention, choose_places
from .lowering import BLOCK, blocks_of
from .page_types import LANES
from .query_sparse import query_sparse, sum_values

if TYPE_CHECKING:
    from .attention_shape import AttentionShape
    from .lowering import Lowering
    from .operation import Rows
    from .page_types import LayerPages


def lower_places(lowering: Lowering, index: int, group: int) -> Rows | None:
    """Where heavy hitters put the keys of a layer's rows; None: into the slots of the step."""
    state = lowering.environment.selective
    if not isinstance(state.policy, HeavyHitters) or not state.applies(index):
        return None
    heads = lowering.environment.pages[index].recent.shape.heads
    places = lowering.shared("places", 8 * heads)
    recent = state.policy.recent
    lowering.add(choose_places(places=places, heads=heads, group=group, state=state.scores[index], recent=recent))
    return places


def lower_scores(
    lowering: Lowering, index: int, shape: AttentionShape, queries: Rows, pages: LayerPages, group: int
) -> None:
    """Count what the rows attend to, if heavy hitters decide over the layer."""
    state = lowering.environment.selective
    if index in state.scores:
        buffer = lowering.environment.workspace.private("attention of a row", 4 * state.most_keys)
        common = {"queries": queries, "group": group, "buffer": buffer}
        lowering.add(
            add_attention(shape, pages=pages.recent, state=state.scores[index], **common)  # type: ignore[arg-type]
        )


def lower_query_sparse(
    lowering: Lowering, index: int, shape: AttentionShape, queries: Rows, pages: LayerPages, group: int
) -> Rows | None:
    """Attended values, as of `lower_attention.attend`; None when the layer is read in full."""
    state = lowering.environment.selective
    if not isinstance(state.policy, QuerySparse) or not state.applies(index):
        return None
    floats = (shape.group + 1) * (state.most_keys + LANES)
    buffer = lowering.environment.workspace.private("estimates", 4 * floats)
    width = 4 * BLOCK * blocks_of(shape.pages.heads * shape.group * shape.value_dim)
    output = lowering.shared("attended together", width)
    sums = state.sums(index)
    lowering.add(
        sum_values(pages=pages.recent, group=group, sums=sums),
        query_sparse(
            shape,
            state.policy,
            queries=queries,
            output=output,
            pages=pages.recent,
            group=group,
            sums=sums,
            buffer=buffer,
        ),
    )
    return output
