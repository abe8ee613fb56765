"""What of a loaded model is where, layer by layer, why, and how fast that should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .backend import LayerState

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import KVType
    from localllm.llm import LLM
    from localllm.placement import Machine, ModelParts, Plan

FEWEST_PLANNED = 64  # tokens that the speed to expect is worked out for


@dataclass(frozen=True, slots=True)
class Placed:
    """`layers`, and `ends`: the bytes of what stands before and behind them, by name. `decode` in tokens a second."""

    layers: tuple[LayerState, ...]
    ends: tuple[tuple[str, int], ...]
    reasons: tuple[str, ...]
    decode: float


def placed(llm: LLM, machine: Machine, kv_type: KVType, tokens: int, gpu_note: str) -> Placed:
    """The plan for as much GPU memory as the weights take there, and a conversation of `tokens`."""
    from localllm.placement import parts_of, plan_placement

    # a prediction is for half of the context being full
    context = min(llm.context, 2 * max(tokens, FEWEST_PLANNED))
    parts = parts_of(llm.spec, context=context, kv_type=kv_type)
    on_gpu = sum(size for device, size in llm.memory().weights.items() if device != "cpu")
    plan = plan_placement(parts, machine, vram=on_gpu)
    return Placed(_layers(parts, plan), _ends(parts, plan), _reasons(plan, gpu_note), plan.prediction.decode)


def _layers(parts: ModelParts, plan: Plan) -> tuple[LayerState, ...]:
    from localllm.placement.cost import gpu_bytes_of

    return tuple(
        LayerState(
            attention_bytes=layer.attention_bytes,
            kv_bytes=layer.kv_bytes,
            feed_forward_bytes=layer.feed_forward.nbytes,
            gpu_bytes=gpu_bytes_of(layer, placement),
        )
        for layer, placement in zip(parts.layers, plan.layers, strict=True)
    )


def _ends(parts: ModelParts, plan: Plan) -> tuple[tuple[str, int], ...]:
    head = f"head, on the {'GPU' if plan.head_on_gpu else 'CPU'}"
    if parts.tied:
        return ((f"{head} (and embedding table)", parts.head_bytes),)
    return (("embedding table, on the CPU: one row a token is read", parts.embedding_bytes), (head, parts.head_bytes))


def _reasons(plan: Plan, gpu_note: str) -> tuple[str, ...]:
    if plan.shape == "cpu":
        return (f"everything is on the CPU: {gpu_note or 'no GPU memory was given'}",)
    if plan.shape == "gpu":
        return ("everything is on the GPU: it has room for all of it, and nothing is faster",)
    return plan.reasons
