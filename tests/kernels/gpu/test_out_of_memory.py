"""Allocations of a card that fail themselves, as when another program took its memory, are said; nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.errors import OutOfMemoryError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import simple_step
from localllm.models import load_spec

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if TYPE_CHECKING:
    from localllm.kernels.gpu.executor import GpuExecutor

_MODEL = Path(__file__).resolve().parents[2] / "data" / "models" / "llama_gqa_tied_f16.gguf"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its allocator is what fails")


def _executor() -> GpuExecutor:
    from localllm.kernels.gpu.executor import GpuExecutor

    return GpuExecutor(load_spec(open_gguf(_MODEL)), ExecutorOptions(max_rows=32))


@contextmanager
def _nothing_left() -> Iterator[None]:
    """PyTorch's allocator gets no more of the card: what it holds free is returned, and no new block is given."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.0)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_weights_that_cannot_be_allocated() -> None:
    before = torch.cuda.memory_allocated()
    with _nothing_left(), pytest.raises(OutOfMemoryError, match=r"needs .* GiB on .* which has .* GiB free"):
        _executor()
    assert torch.cuda.memory_allocated() <= before
    executor = _executor()
    executor.allocate_kv((2,), "f16")
    assert executor.forward(simple_step(executor.layout, [1, 2])).shape[0] == 2
    executor.close()


def test_a_cache_that_cannot_be_allocated() -> None:
    executor = _executor()
    with _nothing_left(), pytest.raises(OutOfMemoryError, match=r"KV cache needs .* GiB free"):
        executor.allocate_kv((200_000,), "f16")
    executor.allocate_kv((2,), "f16")
    assert executor.forward(simple_step(executor.layout, [1, 2])).shape[0] == 2
    executor.close()
