"""Memory of a card: what is counted is what is cut, in whole grains, and the library's workspace is in the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from localllm.kernels.gpu.card_memory import (
    GRAIN,
    LEAST_PIECE,
    LOADING,
    MOST_PIECE,
    Arena,
    in_grains,
    make_arena,
    piece_bytes,
)
from localllm.kernels.gpu.cublas import WORKSPACE_BYTES, open_cublas
from localllm.kernels.gpu.device import Gpu
from localllm.kernels.gpu.planning import plan_memory
from localllm.kernels.gpu.vector_products import VectorProducts
from localllm.kernels.spec import Layer

SHAPES: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((3, 5), torch.float32),
    ((0, 7), torch.int32),
    ((1,), torch.uint8),
    ((2, 2, 9), torch.float16),
]


def test_an_arena_cuts_what_it_counted(gpu: Gpu) -> None:
    counted = Arena()
    for shape, dtype in SHAPES:
        assert counted.take(shape, dtype).device.type == "meta"
    arena = make_arena(gpu, counted.used)
    buffers = [arena.take(shape, dtype) for shape, dtype in SHAPES]
    assert arena.used == counted.used
    assert arena.nbytes == in_grains(gpu, counted.used)
    for number, (buffer, (shape, dtype)) in enumerate(zip(buffers, SHAPES, strict=True)):
        assert (tuple(buffer.shape), buffer.dtype) == (shape, dtype)
        assert not buffer.numel() or buffer.data_ptr() % 64 == 0
        assert not buffer.any()
        buffer.fill_(number + 1)
    assert [float(buffer.double().sum()) for buffer in buffers] == [15.0, 0.0, 3.0, 144.0]  # none lies in another


def test_a_card_is_planned_in_grains_with_room_to_load(
    spec_maker: Callable[..., Any], gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    card = replace(gpu, interpreted=False, capability=(9, 0), processors=132)
    maker = spec_maker()
    spec = maker.model(Layer(maker.attention(), maker.feed_forward(96)))
    vectors = VectorProducts(card, "float32")
    few, many = (plan_memory(spec, card, vectors, rows, torch.float16)[0] for rows in (16, 512))
    for planned in (few, many):
        assert planned.weights % GRAIN == planned.slots % GRAIN == planned.buffers % GRAIN == 0
        assert planned.buffers + planned.loading >= LOADING
        assert planned.total > planned.weights + planned.workspace  # what the allocator keeps for itself
    assert many.buffers - few.buffers >= WORKSPACE_BYTES


def test_pieces_are_as_large_as_packing_has_room(gpu: Gpu) -> None:
    card = replace(gpu, interpreted=False)
    sizes = [piece_bytes(card, room) for room in (0, LOADING, 100 << 20, 1 << 40)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (LEAST_PIECE, MOST_PIECE)
    assert 16 * sizes[1] <= LOADING


def test_the_library_multiplies_in_memory_that_it_is_given(gpu: Gpu) -> None:
    library = open_cublas(gpu)
    if library is None:
        pytest.skip("needs a card")
    torch.manual_seed(1)
    for rows, outputs, columns in ((200, 96, 320), (511, 1000, 960)):
        x = torch.randn(rows, columns, device=gpu.device).half()
        weights = torch.randn(outputs, columns, device=gpu.device).half()
        out = torch.full((rows, outputs + 16), torch.nan, device=gpu.device)
        exact = 3.0 * (x.double() @ weights.double().t())
        for size in (0, WORKSPACE_BYTES):
            workspace = gpu.empty((size,), torch.uint8)
            held = torch.cuda.memory_allocated()
            library.multiply(x, weights, out[:, 16:], 3.0, workspace)
            assert torch.cuda.memory_allocated() == held
            assert float((out[:, 16:] - exact).norm() / exact.norm()) < 1e-3
            assert bool(out[:, :16].isnan().all())
    library.close()
    library.close()
