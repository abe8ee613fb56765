"""SparQ attention: a row's best keys are found from a few components of its query, and only they are read whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .operations import softcap, softmax

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.selective import QuerySparse
    from localllm.kernels.spec import Attention

    from .weights import Real


def attend_query_sparse(
    policy: QuerySparse, block: Attention, queries: Real, keys: Real, values: Real, visible: npt.NDArray[np.bool_]
) -> Real:
    """Attended values [M, heads, value_dim] of queries [M, heads, d] over keys and values [L, kv_heads, d].

    `visible` [M, L]: what each row sees; the later a key, the more recent it is.
    """
    attended = np.zeros((len(queries), block.kv_heads, block.heads // block.kv_heads, block.value_dim), queries.dtype)
    for row, mask in enumerate(visible):
        grouped = queries[row].reshape(block.kv_heads, -1, block.key_dim)
        for head, query in enumerate(grouped):
            attended[row, head] = _one_head(policy, block, query, keys[mask, head], values[mask, head])
    return attended.reshape(len(queries), block.heads, block.value_dim)


def _one_head(policy: QuerySparse, block: Attention, query: Real, keys: Real, values: Real) -> Real:
    """[group, value_dim] of the queries [group, d] that share the keys [L, d] and values."""
    scale = query.dtype.type(block.scale)
    if len(keys) <= policy.tokens:
        exact: Real = softmax(softcap(query @ keys.T * scale, block.softcap)) @ values
        return exact
    chosen = np.argsort(-np.abs(query).sum(axis=0), kind="stable")[: policy.components]
    share = np.abs(query[:, chosen]).sum(axis=1) / np.abs(query).sum(axis=1)
    estimate = softmax(softcap(query[:, chosen] @ keys[:, chosen].T * scale / np.sqrt(share)[:, None], block.softcap))
    best = estimate.sum(axis=0)
    if policy.recent:
        best[-policy.recent :] = np.inf
    kept = best >= np.partition(best, len(best) - policy.tokens)[len(best) - policy.tokens]
    exact = softmax(softcap(query @ keys[kept].T * scale, block.softcap)) @ values[kept]
    covered = estimate[:, kept].sum(axis=1, keepdims=True)
    result: Real = covered * exact + (1 - covered) * values.mean(axis=0)
    return result
