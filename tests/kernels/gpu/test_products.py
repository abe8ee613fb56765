"""Packed matrices against numpy: every quant type, odd shapes, few rows and many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import QuantType, Tensor, dequantize, quantize

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if TYPE_CHECKING:
    from localllm.kernels.gpu.activations import Activation as Rows
    from localllm.kernels.gpu.device import Gpu

_SCALES = {  # where a block holds float16 scales: random bytes there would be infinite or not a number
    QuantType.Q4_0: (0,),
    QuantType.Q4_1: (0, 2),
    QuantType.Q5_0: (0,),
    QuantType.Q5_1: (0, 2),
    QuantType.Q8_0: (0,),
    QuantType.Q4_K: (0, 2),
    QuantType.Q5_K: (0, 2),
    QuantType.Q6_K: (208,),
    QuantType.Q2_K: (80, 82),
    QuantType.IQ4_NL: (0,),
}
_CASES = [
    (QuantType.Q4_0, 37, 96),
    (QuantType.Q4_1, 24, 160),
    (QuantType.Q5_0, 20, 160),
    (QuantType.Q5_1, 20, 96),
    (QuantType.Q8_0, 20, 160),
    (QuantType.Q4_K, 24, 512),
    (QuantType.Q5_K, 18, 256),
    (QuantType.Q6_K, 24, 512),
    (QuantType.Q2_K, 24, 256),
    (QuantType.IQ4_NL, 24, 96),
    (QuantType.F32, 10, 100),
    (QuantType.F16, 10, 96),
    (QuantType.BF16, 10, 72),
]


def _matrix(kind: QuantType, rows: int, columns: int, rng: np.random.Generator) -> Tensor:
    """Random blocks, every bit pattern of quants and sub-scales included."""
    if kind not in _SCALES:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        return Tensor("w", kind, (rows, columns), quantize(values, kind).reshape(rows, -1))
    blocks = columns // kind.block_size
    data = rng.integers(0, 256, (rows, blocks, kind.type_size), dtype=np.uint8)
    for offset in _SCALES[kind]:
        scales = (rng.standard_normal((rows, blocks)) * 0.01).astype(np.float16)
        data[..., offset : offset + 2] = scales[..., None].view(np.uint8)
    return Tensor("w", kind, (rows, columns), data.reshape(rows, -1))


def _relative_error(found: npt.NDArray[np.floating], exact: npt.NDArray[np.floating]) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize(("kind", "rows", "columns"), _CASES, ids=lambda value: getattr(value, "name", None))
def test_products_with_packed_matrices(
    gpu: Gpu, rng: np.random.Generator, kind: QuantType, rows: int, columns: int
) -> None:
    from localllm.kernels.gpu.activations import Format, make_activation
    from localllm.kernels.gpu.library_products import LibraryProducts
    from localllm.kernels.gpu.linear import GpuLinear
    from localllm.kernels.gpu.matrix_products import MatrixProducts
    from localllm.kernels.gpu.row_launch import store_rows
    from localllm.kernels.gpu.vector_products import VectorProducts
    from localllm.kernels.gpu.weight_memory import WeightMemory

    tensor = _matrix(kind, rows, columns, rng)
    planned = WeightMemory(gpu)
    planned.matrix([tensor])
    memory = WeightMemory(gpu, torch.zeros(planned.words, dtype=torch.int32, device=gpu.device))
    bias = rng.standard_normal(rows).astype(np.float32)
    linear = GpuLinear((memory.matrix([tensor]),), torch.from_numpy(bias).to(gpu.device))
    x = rng.standard_normal((11, columns)).astype(np.float32)
    exact = x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T + bias
    values = torch.from_numpy(x).to(gpu.device)
    for arithmetic, tolerance in (("float32", 1e-5), ("int8", 0.01)):
        vectors = VectorProducts(gpu, arithmetic)  # type: ignore[arg-type]
        few = make_activation(gpu, columns, 4, 4, vectors.all_formats, Format.NONE, torch.float32)
        store_rows(gpu, values[:3], None, vectors.formats(*linear.matrices), few)
        y = torch.zeros(4, rows, device=gpu.device)
        vectors.plain(linear, few, 3, y.view(-1), rows)
        assert _relative_error(y[:3].cpu().numpy(), exact[:3]) < tolerance
    nothing = torch.zeros(1, device=gpu.device)
    y = torch.zeros(8 * 11 * rows, device=gpu.device)
    matrices = MatrixProducts(gpu, LibraryProducts(gpu, nothing, nothing))
    many = make_activation(gpu, columns, 11, 11, Format.SHORT, Format.NONE, torch.float32)
    store_rows(gpu, values, None, Format.SHORT, many)
    parts = matrices.plain(linear, many, 11, y)
    found = y[: parts * 11 * rows].view(parts, 11, rows).sum(0).cpu().numpy()
    assert _relative_error(found, exact) < 1e-5


@pytest.mark.parametrize(
    ("kind", "columns", "count", "splits"),
    [
        (QuantType.Q4_0, 1152, 7, 1),
        (QuantType.Q4_1, 96, 8, 1),
        (QuantType.Q4_K, 512, 3, 1),
        (QuantType.Q4_0, 640, 12, 1),
        (QuantType.Q4_1, 96, 17, 1),
        (QuantType.Q4_K, 512, 9, 2),
        (QuantType.Q4_0, 320, 29, 2),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_fragments_of_packed_weights(
    gpu: Gpu, rng: np.random.Generator, kind: QuantType, columns: int, count: int, splits: int
) -> None:
    """On tensor cores: the product, and a block's first half in the order in which the second reads it."""
    from localllm.kernels.gpu.activations import Format, make_activation
    from localllm.kernels.gpu.fragment_products import FragmentProducts
    from localllm.kernels.gpu.library_products import LibraryProducts
    from localllm.kernels.gpu.linear import GpuLinear
    from localllm.kernels.gpu.matrix_products import MatrixProducts
    from localllm.kernels.gpu.row_launch import store_rows
    from localllm.kernels.gpu.weight_memory import WeightMemory
    from localllm.kernels.spec import Activation

    rows = 20 if count <= 8 else 52
    tensors = [_matrix(kind, rows, columns, rng) for _ in range(2)]
    planned = WeightMemory(gpu)
    for tensor in tensors:
        planned.matrix([tensor])
    memory = WeightMemory(gpu, torch.zeros(planned.words, dtype=torch.int32, device=gpu.device))
    bias = rng.standard_normal(rows).astype(np.float32)
    gate, up = (GpuLinear((memory.matrix([t]),), torch.from_numpy(bias).to(gpu.device)) for t in tensors)
    x = rng.standard_normal((count, columns)).astype(np.float16)
    exact = [x.astype(np.float64) @ dequantize(t).astype(np.float64).T + bias for t in tensors]
    nothing = torch.zeros(1, device=gpu.device)
    matrices = MatrixProducts(gpu, LibraryProducts(gpu, nothing, nothing), FragmentProducts(gpu))

    def stored(values: npt.NDArray[np.floating]) -> Rows:
        found = make_activation(gpu, values.shape[1], 4, 64, Format.FRAGMENTS, Format.SHORT, torch.float16)
        store_rows(gpu, torch.from_numpy(values.astype(np.float32)).to(gpu.device), None, Format.FRAGMENTS, found)
        return found

    few = stored(x)
    assert matrices.formats(gate.matrices, count) is Format.FRAGMENTS
    y = torch.full((splits * count * rows,), torch.nan, device=gpu.device)
    assert matrices.plain(gate, few, count, y, splits=splits) == splits
    assert _relative_error(y.view(splits, count, rows).sum(0).cpu().numpy(), exact[0]) < 2e-3
    inner = stored(np.zeros((count, rows)))
    assert matrices.activated(gate, up, few, count, Activation.RELU, inner, Format.FRAGMENTS) is Format.FRAGMENTS
    wanted = stored(np.maximum(exact[0], 0) * exact[1] / 64)
    assert _relative_error(inner.fragments.float().cpu().numpy(), wanted.fragments.float().cpu().numpy()) < 2e-3


def test_float32_products_of_subnormal_bit_fields_are_not_flushed(gpu: Gpu, rng: np.random.Generator) -> None:
    """Quants are read as subnormal floats; were those flushed to zero, every product would vanish."""
    from localllm.kernels.gpu.activations import Format, make_activation
    from localllm.kernels.gpu.linear import GpuLinear
    from localllm.kernels.gpu.row_launch import store_rows
    from localllm.kernels.gpu.vector_products import VectorProducts
    from localllm.kernels.gpu.weight_memory import WeightMemory

    tensor = _matrix(QuantType.Q4_0, 16, 64, rng)
    memory = WeightMemory(gpu, torch.zeros(4096, dtype=torch.int32, device=gpu.device))
    linear = GpuLinear((memory.matrix([tensor]),))
    vectors = VectorProducts(gpu, "float32")
    x = make_activation(gpu, 64, 4, 4, Format.PLANES, Format.NONE, torch.float32)
    y = torch.zeros(4, 16, device=gpu.device)
    for size in (1e-6, 1e6):
        values = torch.full((1, 64), size, device=gpu.device)
        store_rows(gpu, values, None, Format.PLANES, x)
        vectors.plain(linear, x, 1, y.view(-1), 16)
        exact = dequantize(tensor).astype(np.float64).sum(1) * size
        np.testing.assert_allclose(y[0].cpu().numpy(), exact, rtol=1e-4, atol=size * 1e-5)
