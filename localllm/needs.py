"""How much memory a model will take, before it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def bytes_needed(path: Path, keywords: Mapping[str, Any]) -> int:
    """Weights, about as large as their file, and the KV cache of an `LLM` opened with `keywords`; without workspace.

    Raises LocalLLMError for a file that is no model, or that cannot be run.
    """
    from localllm.cache import pool_sizes
    from localllm.engine import EngineOptions
    from localllm.gguf_io import open_gguf
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.kv_layout import KVLayout
    from localllm.models import load_spec

    from .llm import DEFAULT_CONTEXT

    context, kv = keywords.get("context"), keywords.get("kv", "f16")
    with open_gguf(path) as file:
        spec = load_spec(file, context=context)
        layout = KVLayout.of(spec)
    options = EngineOptions(
        context=context or min(spec.context_length, DEFAULT_CONTEXT),
        kv_type=kv,
        window=keywords.get("window"),
        sinks=keywords.get("sinks"),
        context_policy=keywords.get("context_policy", "error"),
        parallel=keywords.get("parallel", 1),
    )
    rows = ExecutorOptions().max_rows
    sizes = pool_sizes(layout, options.policy(spec), kv, parallel=options.parallel, step_rows=rows)
    staging = sizes.staging or (0,) * len(sizes.main)
    pages = 0
    for index, layer in enumerate(layout.layers):
        group = layout.group_of(index)
        pages += sizes.main[group] * layer.page_bytes(kv) + staging[group] * layer.page_bytes("f16")
    return path.stat().st_size + pages
