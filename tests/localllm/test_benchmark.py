"""The arithmetic of the benchmark, on the reference executor and a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from localllm import benchmark
from localllm.gguf_io import open_gguf
from localllm.kernels.reference import ReferenceExecutor
from localllm.models import load_spec


def test_bytes_of_a_dense_model_are_its_matrices(data_folder: Path) -> None:
    with open_gguf(data_folder / "models" / "gemma3.gguf") as file:
        spec = load_spec(file)
        matrices = [t for name, t in file.tensors.items() if len(t.shape) == 2 and name.startswith("blk.")]
        table = file.tensor("token_embd.weight")
        assert benchmark.weight_bytes_per_token(spec) == sum(t.nbytes for t in matrices) + table.nbytes


def test_samples_and_medians(data_folder: Path) -> None:
    with open_gguf(data_folder / "models" / "gemma3.gguf") as file:
        executor = ReferenceExecutor(load_spec(file))
        seen: list[int] = []
        result = benchmark.run_benchmark(
            executor, prompt_tokens=20, decode_tokens=3, repetitions=3, depth=2, progress=seen.append
        )
        executor.close()
    assert len(result.prefill_samples) == len(result.decode_samples) == 3
    assert seen == [0, 1, 2, 3]
    assert result.decode_tokens_per_second == sorted(result.decode_samples)[1]


def test_memory_bandwidth_is_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PROBE_BYTES", 2**20)
    assert benchmark.measure_memory_bandwidth(2, repetitions=1) > 0
    assert benchmark.measure_product_bandwidth(2, repetitions=1) > 0
