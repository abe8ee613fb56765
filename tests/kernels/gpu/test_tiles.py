"""Tiles are as large as the shared memory of a card allows, on cards that nobody here has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.errors import ExecutionError, OutOfMemoryError, UnsupportedModelError
from localllm.models import load_spec

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if TYPE_CHECKING:
    from localllm.kernels.gpu.attention_tiles import AttentionSizes
    from localllm.kernels.gpu.device import Gpu

_MODEL = Path(__file__).resolve().parents[2] / "data" / "models" / "deepseek2.gguf"

# Shared memory of a processor and the capability of an RTX 2060, 3060, 4070, 5070, of an A100 and of an H200.
_CARDS = [(65536, (7, 5)), (102400, (8, 6)), (102400, (8, 9)), (102400, (12, 0)), (167936, (8, 0)), (233472, (9, 0))]
_SMALL, _LARGE = _CARDS[1], _CARDS[-1]


def _card(processor: int, capability: tuple[int, int]) -> Gpu:
    from localllm.kernels.gpu.device import Gpu, shared_memory_of

    shared = shared_memory_of(processor, capability)
    return Gpu(torch.device("cpu"), "a card", False, capability, 28, 3.6e11, 6.4e12, shared)


def _sizes(width: int, group: int = 1, size: int = 2) -> AttentionSizes:
    from localllm.kernels.gpu.attention_tiles import AttentionSizes

    padded = 1 << (width - 1).bit_length()
    return AttentionSizes(width, padded, padded, size, group, exact=True)


@pytest.mark.parametrize("card", _CARDS, ids=lambda card: str(card[1]))
def test_tiles_of_attention_fit(card: tuple[int, tuple[int, int]]) -> None:
    gpu = _card(*card)
    for width in (64, 80, 96, 112, 128, 192, 256):
        for group in (1, 3, 8, 16):
            sizes = _sizes(width, group)
            lines = sizes.most_lines(gpu)
            assert lines >= group
            assert sizes.nbytes(gpu, lines, sizes.most_keys(gpu, lines)) <= gpu.shared_memory, (width, group)


def test_wide_heads_have_fewer_lines_a_tile_on_a_small_card() -> None:
    """Compiled for 8.6, a tile of 128 lines of 256 values takes 147,456 bytes of the 101,376 that there are."""
    sizes = _sizes(256, 2)
    assert sizes.nbytes(_card(*_SMALL), 128, 32) >= 147456
    assert (sizes.most_lines(_card(*_SMALL)), sizes.most_lines(_card(*_LARGE))) == (64, 128)


@pytest.mark.parametrize("card", _CARDS, ids=lambda card: str(card[1]))
def test_tiles_of_products_fit(card: tuple[int, tuple[int, int]]) -> None:
    from localllm.gguf_io import QuantType
    from localllm.kernels.gpu.families import family_of
    from localllm.kernels.gpu.library_products import LibraryProducts
    from localllm.kernels.gpu.matrix import MatrixShape, PackedMatrix
    from localllm.kernels.gpu.matrix_products import MatrixProducts
    from localllm.kernels.gpu.programs.gemm import GATED, PLAIN
    from localllm.kernels.gpu.shared_memory import product_bytes

    gpu, nothing = _card(*card), torch.zeros(0)
    products = MatrixProducts(gpu, LibraryProducts(gpu, nothing, nothing))
    for kind in (QuantType.Q4_0, QuantType.Q8_0, QuantType.Q6_K, QuantType.Q3_K, QuantType.BF16, QuantType.F32):
        matrix = PackedMatrix(MatrixShape(family_of(kind), 4096, 4096), *(torch.zeros(0),) * 4)
        for rows in (5, 16, 17, 32, 33, 64, 65, 512):
            for end in (PLAIN.value, GATED.value):
                tile = products._tile(matrix, rows, end, False, torch.float16)
                lines, outputs, pairs, _, stages = tile
                matrices = 2 if end == GATED.value else 1
                needed = product_bytes(gpu, matrix.shape.family, 2, matrices, lines, outputs, pairs, stages)
                assert needed <= gpu.shared_memory, (kind, rows, end, tile)
                if card == _LARGE and kind is not QuantType.F32:
                    assert tile[2:] == (4 if rows <= 32 else 2 if rows <= 64 else 1, 4 if rows <= 64 else 8, 3)


@pytest.mark.parametrize(
    ("kind", "rows", "gated", "bytes_of_8_6"),
    [  # what Triton 3.9 takes for tiles of these sizes, compiled for 8.6
        ("Q4_0", 128, False, 41984),
        ("Q8_0", 128, False, 50176),
        ("BF16", 128, False, 65536),
        ("Q3_K", 128, False, 57344),
        ("Q5_0", 128, False, 66560),
        ("F32", 128, False, 98304),
        ("Q3_K", 32, True, 131072),
        ("BF16", 32, True, 163840),
        ("BF16", 32, False, 98304),
        ("Q8_0", 64, True, 67584),
    ],
)
def test_what_a_tile_of_a_product_needs(kind: str, rows: int, gated: bool, bytes_of_8_6: int) -> None:
    from localllm.gguf_io import QuantType
    from localllm.kernels.gpu.families import family_of
    from localllm.kernels.gpu.shared_memory import product_bytes

    outputs, pairs = (128, 1) if rows == 128 else (64, 4 if rows == 32 else 2)
    found = product_bytes(_card(*_SMALL), family_of(QuantType[kind]), 2, 1 + gated, rows, outputs, pairs, 3)
    assert bytes_of_8_6 <= found <= 1.15 * bytes_of_8_6


def test_attention_that_no_tile_fits_is_refused_in_numbers() -> None:
    from localllm.kernels.gpu.attention_tiles import check_attention
    from localllm.kernels.gpu.model import ModelBuilder
    from localllm.kernels.gpu.weight_memory import WeightMemory

    gpu = _card(*_SMALL)
    model = ModelBuilder(load_spec(open_gguf(_MODEL)), WeightMemory(gpu)).build()
    check_attention(gpu, model, "f16", exact=True)
    with pytest.raises(UnsupportedModelError, match=r"needs \d+ KiB .* may have 1 KiB"):
        check_attention(replace(gpu, shared_memory=1 << 10), model, "f16", exact=True)


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemoryError, "too little free memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemoryError, "too little free memory"),
    ],
)
def test_a_card_that_runs_out_of_memory_at_a_first_step(error: Exception, expected: type[Exception], text: str) -> None:
    from localllm.kernels.gpu.failures import launching

    with pytest.raises(expected, match=text), launching("a card"):
        raise error


def test_a_kernel_that_does_not_fit() -> None:
    from triton.runtime.errors import OutOfResources

    from localllm.kernels.gpu.failures import launching

    with pytest.raises(ExecutionError, match=r"more of a card than it has .*147456"), launching("a card"):
        raise OutOfResources(147456, 101376, "shared memory")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there Triton starts")
def test_triton_that_cannot_start_says_what_it_needs() -> None:
    from localllm.kernels.gpu.failures import check_triton

    with pytest.raises(UnsupportedModelError, match="Triton cannot start"):
        check_triton()
