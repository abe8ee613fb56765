"""Attention over paged keys: which keys a row sees, and what it makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.selective import HeavyHitters

from .heavy_hitters import attend_heavy_hitters
from .operations import normalise, rotate, softcap, softmax
from .query_sparse import attend_query_sparse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from localllm.kernels.selective import SelectivePolicy
    from localllm.kernels.spec import Attention, LatentAttention, Norm
    from localllm.kernels.step import GroupTables, Step

    from .cache import LayerPages
    from .heavy_hitters import KeyScores
    from .weights import Real, Weights


def attend(x: Real, block: Attention, step: Step, tables: GroupTables, stored: LayerPages, weights: Weights) -> Real:
    """What grouped-query attention adds to x [M, hidden]; stores the rows' keys and values first."""
    far_query, sink_query, key, value = _rotated(x, block, step, weights)
    stored.write(tables.slots, key, value)
    rows = len(x)
    attended = np.zeros((rows, block.heads, block.value_dim), x.dtype)
    sink_logits = None if block.sinks is None else weights.array(block.sinks)
    for view in _sequences(step, tables, stored, block.window):
        keys = _spread(stored.keys[view.slots].astype(x.dtype), block.heads)
        values = _spread(stored.values[view.slots].astype(x.dtype), block.heads)
        scores = np.einsum("mhd,lhd->mhl", far_query[view.rows], keys)
        sinks = slice(0, view.sinks)
        scores[..., sinks] = np.einsum("mhd,lhd->mhl", sink_query[view.rows], keys[sinks])
        shares = _shares(scores * x.dtype.type(block.scale), block.softcap, view.visible, sink_logits)
        attended[view.rows] = np.einsum("mhl,lhd->mhd", shares, values)
    return _output(attended, block, weights)


def attend_selectively(
    x: Real,
    block: Attention,
    step: Step,
    tables: GroupTables,
    stored: LayerPages,
    weights: Weights,
    policy: SelectivePolicy,
    scores: KeyScores,
) -> Real:
    """The same under a selective policy; `scores` are those of the layer, for heavy hitters."""
    query, _, key, value = _rotated(x, block, step, weights)
    if isinstance(policy, HeavyHitters):
        attended = attend_heavy_hitters(policy, block, step, tables, stored, scores, (query, key, value))
        return _output(attended, block, weights)
    stored.write(tables.slots, key, value)
    attended = np.zeros((len(x), block.heads, block.value_dim), x.dtype)
    for view in _sequences(step, tables, stored, None):
        keys, values = stored.keys[view.slots].astype(x.dtype), stored.values[view.slots].astype(x.dtype)
        attended[view.rows] = attend_query_sparse(policy, block, query[view.rows], keys, values, view.visible)
    return _output(attended, block, weights)


def _rotated(x: Real, block: Attention, step: Step, weights: Weights) -> tuple[Real, Real, Real, Real]:
    """Queries [M, heads, key_dim], the same for sinks, keys and values [M, kv_heads, d] of the rows x [M, hidden]."""
    if block.norm is not None:
        x = normalise(x, block.norm, weights)
    rows = len(x)
    query = weights.linear(x, block.query).reshape(rows, block.heads, block.key_dim)
    key = weights.linear(x, block.key).reshape(rows, block.kv_heads, block.key_dim)
    value = weights.linear(x, block.value).reshape(rows, block.kv_heads, block.value_dim)

    def placed(vectors: Real, norm: Norm | None, positions: npt.NDArray[np.int64]) -> Real:
        if block.norm_after_rope:
            return _normalise_heads(rotate(vectors, positions, block.rope), norm, weights)
        return rotate(_normalise_heads(vectors, norm, weights), positions, block.rope)

    far_query = placed(query, block.query_norm, step.positions)
    sink_query = far_query
    if step.sink_positions is not None:
        sink_query = placed(query, block.query_norm, step.sink_positions)
    return far_query, sink_query, placed(key, block.key_norm, step.positions), value


def _output(attended: Real, block: Attention, weights: Weights) -> Real:
    """[M, hidden] of attended values [M, heads, value_dim]."""
    y = weights.linear(attended.reshape(len(attended), -1), block.output)
    return y if block.post_norm is None else normalise(y, block.post_norm, weights)


def attend_latent(
    x: Real, block: LatentAttention, step: Step, tables: GroupTables, stored: LayerPages, weights: Weights
) -> Real:
    """What latent attention adds to x [M, hidden]: queries are moved into latent space, keys are their own values."""
    if block.norm is not None:
        x = normalise(x, block.norm, weights)
    rows = len(x)
    if isinstance(block.query, tuple):
        down, norm, up = block.query
        query = weights.linear(normalise(weights.linear(x, down), norm, weights), up)
    else:
        query = weights.linear(x, block.query)
    query = query.reshape(rows, block.heads, block.nope_dim + block.rope.dimensions)
    still, turning = query[..., : block.nope_dim], query[..., block.nope_dim :]
    still = np.einsum("mhd,hrd->mhr", still, weights.array(block.key_up))

    def placed(positions: npt.NDArray[np.int64]) -> Real:
        return np.concatenate([still, rotate(turning, positions, block.rope)], axis=-1)

    compressed = weights.linear(x, block.key_value_down)
    latent = normalise(compressed[:, : block.latent_rank], block.latent_norm, weights)
    turned = rotate(compressed[:, None, block.latent_rank :], step.positions, block.rope)
    stored.write(tables.slots, np.concatenate([latent[:, None], turned], axis=-1), None)
    far_query = placed(step.positions)
    sink_query = far_query if step.sink_positions is None else placed(step.sink_positions)

    attended = np.zeros((rows, block.heads, block.value_dim), x.dtype)
    for view in _sequences(step, tables, stored, block.window):
        keys = stored.keys[view.slots, 0].astype(x.dtype)
        scores = far_query[view.rows] @ keys.T
        sinks = slice(0, view.sinks)
        scores[..., sinks] = sink_query[view.rows] @ keys[sinks].T
        shares = _shares(scores * x.dtype.type(block.scale), None, view.visible, None)
        latents = shares @ keys[:, : block.latent_rank]
        attended[view.rows] = np.einsum("mhr,hvr->mhv", latents, weights.array(block.value_up))
    return weights.linear(attended.reshape(rows, -1), block.output)


class _SequenceView:
    """The rows of one sequence and the L keys that some of them see."""

    __slots__ = ("rows", "sinks", "slots", "visible")

    def __init__(self, step: Step, tables: GroupTables, stored: LayerPages, sequence: int, window: int | None) -> None:
        self.rows = np.flatnonzero(step.sequences == sequence)
        own = tables.row_index[self.rows].astype(np.int64)
        index = np.arange(own.max() + 1)
        page = tables.pages[sequence, index // PAGE_SIZE].astype(np.int64)
        self.slots = stored.slots_of(page, index)
        self.sinks = int(tables.sink_tokens[sequence])
        key_positions = np.where(index < self.sinks, index, tables.window_start[sequence] + index - self.sinks)
        key_positions[own] = step.positions[self.rows]  # in a tree, siblings share a position
        if step.tree is None:
            self.visible = index <= own[:, None]  # [rows, L]
        else:
            self.visible = np.broadcast_to(index < own[0], (len(own), len(index))).copy()
            self.visible[:, own] = step.tree.ancestors[np.ix_(self.rows, self.rows)]
        if window is not None:
            own_positions = np.where(index < self.sinks, _near(step)[self.rows, None], step.positions[self.rows, None])
            self.visible &= key_positions > own_positions - window


def _near(step: Step) -> npt.NDArray[np.int64]:
    """The positions [M] from which rows see sinks."""
    return step.positions if step.sink_positions is None else step.sink_positions


def _sequences(step: Step, tables: GroupTables, stored: LayerPages, window: int | None) -> Iterator[_SequenceView]:
    for sequence in np.unique(step.sequences):
        yield _SequenceView(step, tables, stored, int(sequence), window)


def _shares(scores: Real, cap: float | None, visible: npt.NDArray[np.bool_], sink_logits: Real | None) -> Real:
    """Softmax of scores [rows, heads, L] over the visible keys; a head's sink takes a share that goes nowhere."""
    scores = np.where(visible[:, None], softcap(scores, cap), -np.inf)
    if sink_logits is None:
        return softmax(scores)
    sinks = np.broadcast_to(sink_logits[:, None], (*scores.shape[:2], 1))
    return softmax(np.concatenate([scores, sinks], axis=-1))[..., :-1]


def _spread(vectors: Real, heads: int) -> Real:
    """Repeat each key/value head of [L, kv_heads, d] for the query heads that share it."""
    return np.repeat(vectors, heads // vectors.shape[1], axis=1)


def _normalise_heads(x: Real, norm: Norm | None, weights: Weights) -> Real:
    """Normalise x [M, heads, d] over each head, or over all heads together when the gain is that long."""
    if norm is None:
        return x
    if norm.weight is not None and norm.weight.shape == (x.shape[1] * x.shape[2],) and x.shape[1] > 1:
        return normalise(x.reshape(len(x), -1), norm, weights).reshape(x.shape)
    return normalise(x, norm, weights)
