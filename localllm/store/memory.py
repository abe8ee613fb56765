"""Memory that a model's KV cache takes: per token and for a whole context, for each storage type and kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from localllm.cache import bytes_of_layers
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import PAGE_SIZE, QUANTISED, KVLayout, KVType
from localllm.kernels.spec import LatentAttention

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that keep the same positions. `window` None: all of the context.

    `tokens` are held at the context asked for. By type: bytes of one held position over all `layers`, and of all that
    is allocated (whole pages, one to copy from; for quantised types also the float16 pages of sinks and recent tokens).
    """

    layers: int
    window: int | None
    tokens: int
    bytes_per_token: dict[KVType, int]
    total_bytes: dict[KVType, int]


@dataclass(frozen=True, slots=True)
class KVMemory:
    """The KV cache of one sequence of `context` tokens, in each of the `types` that the model can have."""

    context: int
    types: tuple[KVType, ...]
    kinds: tuple[LayerKind, ...]

    def total_bytes(self, kv_type: KVType) -> int:
        """Bytes of all layers."""
        return sum(kind.total_bytes[kv_type] for kind in self.kinds)

    def bytes_per_token(self, kv_type: KVType) -> int:
        """Bytes of one more position while no window is full."""
        return sum(kind.bytes_per_token[kv_type] for kind in self.kinds)


def kv_memory(spec: ModelSpec, context: int) -> KVMemory:
    """What `spec` keeps for `context` tokens; a layer with a native window holds no more than that."""
    layout = KVLayout.of(spec)
    latent = any(isinstance(layer.attention, LatentAttention) for layer in spec.layers)
    types: tuple[KVType, ...] = tuple(kv for kv in get_args(KVType) if not (latent and kv in QUANTISED))
    rows = ExecutorOptions().max_rows
    totals = {kv: bytes_of_layers(layout, kv, context=context, step_rows=rows) for kv in types}
    kinds = []
    for group in layout.groups:
        held = context if group.window is None else min(context, group.window)
        pages = {kv: sum(layout.layers[index].page_bytes(kv) for index in group.layers) for kv in types}
        kinds.append(
            LayerKind(
                layers=len(group.layers),
                window=group.window,
                tokens=held,
                bytes_per_token={kv: -(-size // PAGE_SIZE) for kv, size in pages.items()},
                total_bytes={kv: sum(totals[kv][index] for index in group.layers) for kv in types},
            )
        )
    return KVMemory(context, types, tuple(kinds))
