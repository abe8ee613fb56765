"""How much memory a model will take, before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_MERGES = "tokenizer.ggml.merges"
# As measured with SmolLM2 (49,152 words, 48,900 merges) and Gemma 3 (262,144 words, none).
_BYTES_A_WORD, _BYTES_A_MERGE = 205, 190
_WORKSPACE_A_WORD, _WORKSPACE_A_VALUE = 112, 25  # a value: of a row as wide as the model
CODE_BYTES = 72 << 20  # of a process, once: LLVM's code and what Numba keeps when it has to compile all kernels


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of a model in memory: weights about as large as their file, the KV cache exactly, the rest about."""

    weights: int
    kv: int
    workspace: int
    vocabulary: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.workspace + self.vocabulary


def bytes_needed(path: Path, keywords: Mapping[str, Any]) -> Needs:
    """What an `LLM` opened with `keywords` will take on the CPU, beside `CODE_BYTES` of the process.

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
        merges = file.metadata.array_length(_MERGES) if _MERGES in file.metadata else 0
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
    words = spec.vocabulary_size
    return Needs(
        path.stat().st_size,
        pages,
        _WORKSPACE_A_WORD * words + _WORKSPACE_A_VALUE * rows * spec.hidden_size,
        _BYTES_A_WORD * words + _BYTES_A_MERGE * merges,
    )
