"""What is planned for the KV cache is what the CPU executor allocates, to the byte, for every type and layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localllm.cache import bytes_of_layers, pool_sizes
from localllm.cache.full import FullPolicy
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import KVType
from localllm.kernels.spec import Layer

EXACT: tuple[KVType, ...] = ("f32", "f16")
ALL: tuple[KVType, ...] = (*EXACT, "q8", "q4", "q2")


@pytest.mark.parametrize(
    ("kind", "kv_type"),
    [
        *((kind, kv_type) for kind in ("windows", "odd sizes", "wide") for kv_type in ALL),
        *(("latent", kv_type) for kv_type in EXACT),  # latents are not quantised
    ],
)
def test_planned_is_allocated(kind: str, kv_type: KVType, spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    attentions = {
        "windows": [maker.attention(), maker.attention(window=40), maker.attention(window=900)],
        "odd sizes": [maker.attention(heads=3, kv_heads=3, dim=20, value_dim=12)],
        "wide": [maker.attention(heads=9, kv_heads=9, dim=144), maker.attention(heads=2, kv_heads=1, dim=64)],
        "latent": [maker.latent_attention()],
    }[kind]
    spec = maker.model(*(Layer(attention, maker.feed_forward()) for attention in attentions))
    executor = CpuExecutor(spec, ExecutorOptions(threads=1, max_rows=48))
    for context in (1, 100, 1000):
        sizes = pool_sizes(executor.layout, FullPolicy(context), kv_type, parallel=1, step_rows=48)
        executor.allocate_kv(sizes.main, kv_type, sizes.staging or (0,) * len(sizes.main))
        planned = bytes_of_layers(executor.layout, kv_type, context=context, step_rows=48)
        assert executor.memory().kv["cpu"] == sum(planned)
    executor.close()
