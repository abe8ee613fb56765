"""Memory that a model's KV cache takes: per token and for a whole context, for each storage type and kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.kv_layout import KVLayout
from localllm.placement.parts import KV_BYTES

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that keep the same positions. `window` None: all of the context.

    `values_per_token` counts stored numbers over all `layers`; `tokens` are held at the context asked for.
    """

    layers: int
    window: int | None
    values_per_token: int
    tokens: int

    def bytes_per_token(self, kv_type: str) -> int:
        """Bytes that one position takes while it is held."""
        return round(self.values_per_token * KV_BYTES[kv_type])

    def total_bytes(self, kv_type: str) -> int:
        """Bytes at the context asked for."""
        return round(self.values_per_token * KV_BYTES[kv_type] * self.tokens)


@dataclass(frozen=True, slots=True)
class KVMemory:
    """The KV cache of one sequence of `context` tokens."""

    context: int
    kinds: tuple[LayerKind, ...]

    def total_bytes(self, kv_type: str) -> int:
        """Bytes of all layers."""
        return sum(kind.total_bytes(kv_type) for kind in self.kinds)

    def bytes_per_token(self, kv_type: str) -> int:
        """Bytes of one more position while no window is full."""
        return sum(kind.bytes_per_token(kv_type) for kind in self.kinds)


KV_TYPES = tuple(KV_BYTES)


def kv_memory(spec: ModelSpec, context: int) -> KVMemory:
    """What `spec` keeps for `context` tokens; a layer with a native window holds no more than that."""
    layout = KVLayout.of(spec)
    kinds = []
    for index, group in enumerate(layout.groups):
        tokens = context if group.window is None else min(context, group.window)
        kinds.append(LayerKind(len(group.layers), group.window, layout.values_per_token(index), tokens))
    return KVMemory(context, tuple(kinds))
