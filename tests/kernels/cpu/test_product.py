"""A matrix times a vector, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import QuantType, Tensor, dequantize
from localllm.gguf_io.quants.quantise import quantize
from localllm.kernels.cpu.compile import KernelCompiler
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.product import TiledProduct


@pytest.mark.parametrize("kind", [QuantType.Q8_0, QuantType.F16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (37, 96), (64, 576)])
def test_a_product_is_that_of_numpy(kind: QuantType, rows: int, columns: int, tmp_path: Path) -> None:
    random = np.random.default_rng(rows)
    values = random.standard_normal((rows, columns)).astype(np.float32)
    tensor = Tensor("weights", kind, (rows, columns), quantize(values, kind))
    product = TiledProduct(KernelCompiler(choose_isa(), tmp_path), tensor)
    for _ in range(2):
        vector = random.standard_normal(columns).astype(np.float32)
        expected = dequantize(tensor).astype(np.float32) @ vector
        np.testing.assert_allclose(product(vector), expected, rtol=0, atol=0.02 * np.sqrt(columns))
