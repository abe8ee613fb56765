"""Selective attention: lossy policies with which an executor may be opened. They are off unless asked for.

`HeavyHitters` keeps a part of the keys, `QuerySparse` reads a part of them. Both apply to the layers without a native
window; those with one keep little already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import UnsupportedModelError
from .kv_layout import QUANTISED
from .spec import LatentAttention

if TYPE_CHECKING:
    from .kv_layout import KVType
    from .spec import ModelSpec


@dataclass(frozen=True, slots=True)
class HeavyHitters:
    """H2O: every layer and KV head keeps `tokens` keys, the `recent` latest ones and those that got most attention.

    Paper: https://arxiv.org/abs/2306.14048, algorithm 1. A key's score is the attention that it got from all rows since
    it came; when a row comes and there are `tokens` keys, the lowest score outside the latest `recent` (the row itself
    included) leaves. Query heads that share a KV head add up their attention. Keys stay rotated at their own positions.

    In a Step, the groups without a window have pages for `tokens` keys, of which logical index `min(position, tokens -
    1)` is a row's last; a row that comes when all are taken has slot -1, and every layer and head finds its own place.
    """

    tokens: int
    recent: int


@dataclass(frozen=True, slots=True)
class QuerySparse:
    """SparQ: a row finds its `tokens` best keys from the `components` largest components of its query.

    Paper: https://arxiv.org/abs/2312.04985, algorithm 1. The estimate is softmax(q' k' * scale / sqrt(|q'| / |q|)); the
    quote marks the chosen components, | | is the sum of magnitudes; the `recent` latest keys are always among the best.
    The result is a * attention(best keys) + (1 - a) * (mean of all values), a being the estimate's share of the best.
    Query heads that share a KV head choose together, by the sums of their magnitudes and of their estimates.
    """

    components: int
    tokens: int
    recent: int


SelectivePolicy = HeavyHitters | QuerySparse


def check_model(policy: SelectivePolicy | None, spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model whose attention the policies do not cover."""
    if policy is None:
        return
    attentions = [layer.attention for layer in spec.layers if layer.attention.window is None]
    if not attentions:
        raise UnsupportedModelError("every layer has a window of its own, so a selective KV policy has nothing to do")
    if any(isinstance(attention, LatentAttention) or attention.sinks is not None for attention in attentions):
        raise UnsupportedModelError(
            f"selective KV policies do not cover the attention of {spec.architecture} models (latents or learned sinks)"
        )
    size = min(attention.key_dim for attention in attentions if not isinstance(attention, LatentAttention))
    if isinstance(policy, QuerySparse) and policy.components > size:
        raise UnsupportedModelError(
            f"sparq cannot read {policy.components} components of a query: the attention heads of this model have a "
            f"size of {size}",
            hint=f"Use 1 to {size} components, such as sparq:{max(1, size // 4)}:{policy.tokens}.",
        )


def check_type(policy: SelectivePolicy | None, kv_type: KVType) -> None:
    """Raise UnsupportedModelError for a quantised cache."""
    if policy is not None and kv_type in QUANTISED:
        raise UnsupportedModelError(
            f"selective KV policies read float pages, not {kv_type}", hint="Use an f16 or f32 KV cache."
        )
