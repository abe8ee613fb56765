"""What of a loaded model is where, layer by layer, why, and how fast that should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .backend import LayerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localllm.kernels.hybrid.placement import Placement
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.llm import LLM
    from localllm.placement import Machine, ModelParts
    from localllm.placement.cost import LayerPlacement

FEWEST_PLANNED = 64  # tokens that the speed to expect is worked out for


@dataclass(frozen=True, slots=True)
class Placed:
    """`layers`, and `ends`: the bytes of what stands before and behind them, by name. `decode` in tokens a second."""

    layers: tuple[LayerState, ...]
    ends: tuple[tuple[str, int], ...]
    reasons: tuple[str, ...]
    decode: float


def placed(llm: LLM, machine: Machine, kv_type: KVType, tokens: int, gpu_note: str) -> Placed:
    """What the executor did with the model, and the speed to expect of it in a conversation of `tokens`."""
    from localllm.placement import parts_of

    context = min(llm.context, 2 * max(tokens, FEWEST_PLANNED))  # predictions are for half of it being full
    parts = parts_of(llm.spec, context=context, kv_type=kv_type)
    return place(llm.spec, parts, machine, llm.memory().weights, llm.placement, gpu_note)


def place(
    spec: ModelSpec,
    parts: ModelParts,
    machine: Machine,
    weights: Mapping[str, int],
    hybrid: Placement | None,
    gpu_note: str = "",
) -> Placed:
    """The same from bytes of weights by device and, for a hybrid, its placement."""
    from localllm.placement.cost import LayerPlacement, gpu_bytes_of, predict

    on_gpu = any(size for device, size in weights.items() if device != "cpu")
    if hybrid is not None:
        layers = _of_hybrid(spec, parts, hybrid)
        share = sum(p.units for p in layers) / sum(layer.feed_forward.units for layer in parts.layers)
        whole = sum(layer.attention for layer in hybrid.layers)
        reasons: tuple[str, ...] = (
            "attention, KV and head are on the GPU: every token reads all of them",
            f"{share:.0%} of the feed-forward units are on the GPU, the hottest first; the rest has no room there",
        )
        if whole < len(hybrid.layers):
            reasons = (
                f"the head and the last {whole} layers are on the GPU: not even attention of all has room there",
            )
    elif on_gpu:
        layers = tuple(LayerPlacement(True, True, layer.feed_forward.units) for layer in parts.layers)
        reasons = ("everything is on the GPU: it has room for all of it, and nothing is faster",)
    else:
        layers = (LayerPlacement(False, False, 0),) * len(parts.layers)
        reasons = (f"everything is on the CPU: {gpu_note or 'no GPU is used'}",)
    states = tuple(
        LayerState(layer.attention_bytes, layer.kv_bytes, layer.feed_forward.nbytes, gpu_bytes_of(layer, where))
        for layer, where in zip(parts.layers, layers, strict=True)
    )
    return Placed(states, _ends(parts, on_gpu), reasons, predict(parts, layers, on_gpu, machine).decode)


def _of_hybrid(spec: ModelSpec, parts: ModelParts, hybrid: Placement) -> tuple[LayerPlacement, ...]:
    """The executor's units in the planner's, which may be of another size."""
    from localllm.kernels.hybrid.placement import unit_count
    from localllm.placement.cost import LayerPlacement

    found = []
    for layer, part, where in zip(spec.layers, parts.layers, hybrid.layers, strict=True):
        share = len(where.units) / unit_count(layer.feed_forward)
        whole = where.attention and (part.feed_forward.gate_bytes == 0 or where.gate)
        found.append(LayerPlacement(where.attention, whole, round(share * part.feed_forward.units)))
    return tuple(found)


def _ends(parts: ModelParts, on_gpu: bool) -> tuple[tuple[str, int], ...]:
    head = f"head, on the {'GPU' if on_gpu else 'CPU'}"
    if parts.tied:
        return ((f"{head} (and embedding table)", parts.head_bytes),)
    return (("embedding table: one row a token is read", parts.embedding_bytes), (head, parts.head_bytes))
