"""Signs of weights against numpy, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.cpu.activation_format import RECORDS, row_bytes
from localllm.kernels.cpu.compile import KernelCompiler
from localllm.kernels.cpu.isa import Isa, available_isas
from localllm.kernels.cpu.product import product_source
from localllm.kernels.cpu.tiles.sign_layout import SIGNS


@pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (40, 200), (33, 576)])
def test_products(isa: Isa, rows: int, columns: int) -> None:
    rng = np.random.default_rng([rows, columns])
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    values[0, 0] = 0.0  # counts as positive
    scales = rng.random(rows).astype(np.float32)
    tensor = Tensor("gate", QuantType.F32, values.shape, values.view(np.uint8))
    order = np.append(np.arange(rows), np.full(-rows % 16, -1))
    tiles = SIGNS.repack(tensor, None, order)
    SIGNS.fill_scales(tiles, scales)
    blocks = SIGNS.blocks(columns)
    vector = np.zeros(blocks * 32, np.float32)
    vector[:columns] = rng.standard_normal(columns)
    row, output = np.zeros(row_bytes(RECORDS, blocks), np.uint8), np.zeros(16 * len(tiles), np.float32)
    fields = [tiles.ctypes.data, tiles.strides[0], len(tiles), blocks, row.ctypes.data, vector.ctypes.data, blocks]
    record = np.array([*fields, output.ctypes.data], np.int64)
    KernelCompiler(isa).compile(product_source(SIGNS)).call(record.ctypes.data, 0, 0)
    expected = np.where(values >= 0, 1, -1) @ vector[:columns] * scales
    step = np.abs(vector).max() / 127  # activations are rounded to 8 bits a block
    np.testing.assert_allclose(output[:rows], expected, rtol=0, atol=float(step * np.sqrt(columns) * scales.max()))
    np.testing.assert_array_equal(output[rows:], 0)
