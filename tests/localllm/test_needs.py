"""What a model is said to need is what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localllm import LLM
from localllm.errors import LocalLLMError
from localllm.needs import CODE_BYTES, bytes_needed


def test_the_kv_cache_is_counted_exactly(shared_fixtures: Path) -> None:
    path = shared_fixtures / "golden" / "arch" / "llama_gqa_tied.gguf"
    keywords: dict[str, Any] = {"context": 64, "parallel": 3}
    with LLM(path, device="cpu", **keywords) as llm:
        needs = bytes_needed(path, keywords)
        assert (needs.weights, needs.kv) == (path.stat().st_size, sum(llm.memory().kv.values()))


_FIRST_LOAD = """
import sys
from pathlib import Path
from localllm.spare_memory import give_back, use_one_arena
use_one_arena()
import numba, numpy, tokenizers
import localllm.chat_template, localllm.engine, localllm.kernels.cpu.executor, localllm.tokenizer
from localllm.llm import LLM

def resident():
    give_back()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

before = resident()
with LLM(sys.argv[1], device="cpu", threads=2, context=256, parallel=2) as llm:
    for number in range(4):
        llm.generate(list(range(100 + number, 340 + number)), max_tokens=4)
    print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own account of memory is read")
def test_a_first_load_stays_within_what_is_planned(smollm2_path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "LOCALLLM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", _FIRST_LOAD, str(smollm2_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    needs = bytes_needed(smollm2_path, {"context": 256, "parallel": 2})
    assert needs.weights < int(run.stdout) <= needs.total + CODE_BYTES


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(LocalLLMError):
        bytes_needed(path, {})
