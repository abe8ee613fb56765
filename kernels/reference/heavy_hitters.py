"""H2O attention: row after row, each KV head keeps the latest keys and those that got most attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError
from localllm.kernels.kv_layout import PAGE_SIZE

from .operations import softcap, softmax

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.selective import HeavyHitters
    from localllm.kernels.spec import Attention
    from localllm.kernels.step import GroupTables, Step

    from .cache import LayerPages
    from .weights import Real


class KeyScores:
    """For every slot and KV head of a layer: the position of the key that lies there, and the attention it got."""

    __slots__ = ("positions", "scores")

    def __init__(self, slots: int, heads: int) -> None:
        self.positions = np.zeros((slots, heads), np.int64)
        self.scores = np.zeros((slots, heads))

    def victims(self, seen: npt.NDArray[np.int64], position: int, policy: HeavyHitters) -> npt.NDArray[np.int64]:
        """The slot of `seen` that each head gives up for the row at `position`."""
        old = self.positions[seen] <= position - policy.recent
        result: npt.NDArray[np.int64] = seen[np.where(old, self.scores[seen], np.inf).argmin(axis=0)]
        return result


def attend_heavy_hitters(
    policy: HeavyHitters,
    block: Attention,
    step: Step,
    tables: GroupTables,
    stored: LayerPages,
    scores: KeyScores,
    rotated: tuple[Real, Real, Real],
) -> Real:
    """Attended values [M, heads, value_dim] of rotated queries [M, heads, d], keys and values [M, kv_heads, d]."""
    if step.tree is not None or step.sink_positions is not None:
        raise ExecutionError("heavy hitters know neither trees of guesses nor sinks")
    queries, keys, values = rotated
    heads = np.arange(block.kv_heads)
    attended = np.zeros((len(queries), block.heads, block.value_dim), queries.dtype)
    for row, sequence in enumerate(step.sequences.tolist()):
        index = np.arange(int(tables.row_index[row]) + 1)
        seen = stored.slots_of(tables.pages[sequence, index // PAGE_SIZE].astype(np.int64), index)
        position, slot = int(step.positions[row]), int(tables.slots[row])
        places = scores.victims(seen, position, policy) if slot < 0 else np.full(block.kv_heads, slot)
        stored.keys[places, heads] = keys[row].astype(stored.written)
        stored.values[places, heads] = values[row].astype(stored.written)
        scores.positions[places, heads], scores.scores[places, heads] = position, 0.0
        query = queries[row].reshape(block.kv_heads, -1, block.key_dim)
        products = np.einsum("hgd,lhd->hgl", query, stored.keys[seen].astype(queries.dtype))
        shares = softmax(softcap(products * queries.dtype.type(block.scale), block.softcap))
        scores.scores[seen] += shares.sum(axis=1).T
        output = np.einsum("hgl,lhd->hgd", shares, stored.values[seen].astype(queries.dtype))
        attended[row] = output.reshape(block.heads, block.value_dim)
    return attended
