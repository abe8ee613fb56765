"""What a model is said to need is what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localllm import LLM
from localllm.errors import LocalLLMError
from localllm.needs import bytes_needed


def test_the_kv_cache_is_counted_exactly(shared_fixtures: Path) -> None:
    path = shared_fixtures / "golden" / "arch" / "llama_gqa_tied.gguf"
    keywords: dict[str, Any] = {"context": 64, "parallel": 3}
    with LLM(path, device="cpu", **keywords) as llm:
        assert bytes_needed(path, keywords) == path.stat().st_size + sum(llm.memory().kv.values())


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(LocalLLMError):
        bytes_needed(path, {})
