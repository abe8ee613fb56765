"""Slices of tensors are views of the same bytes, and slices outside are refused."""

from __future__ import annotations

import numpy as np
import pytest

from localllm.gguf_io import GGUFError, QuantType, Tensor, dequantize, quantize


def make(quant_type: QuantType, *shape: int) -> Tensor:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return Tensor("t", quant_type, shape, quantize(values, quant_type))


def test_sizes() -> None:
    tensor = make(QuantType.Q4_0, 3, 5, 64)
    assert (tensor.rows, tensor.columns, tensor.nbytes) == (5, 64, 3 * 5 * 36)
    assert make(QuantType.F32, 7).rows == 1


@pytest.mark.parametrize("quant_type", [QuantType.Q4_0, QuantType.F16])
def test_rows_of_a_matrix(quant_type: QuantType) -> None:
    tensor = make(quant_type, 5, 64)
    part = tensor.row_slice(1, 4)
    assert part.name == "t[1:4]"
    assert part.shape == (3, 64)
    assert np.shares_memory(part.data, tensor.data)
    np.testing.assert_array_equal(dequantize(part), dequantize(tensor)[1:4])


def test_values_of_a_vector() -> None:
    tensor = make(QuantType.F32, 8)
    np.testing.assert_array_equal(dequantize(tensor.row_slice(2, 5)), dequantize(tensor)[2:5])
    with pytest.raises(GGUFError, match="t: a quantised vector cannot be sliced"):
        make(QuantType.Q8_0, 64).row_slice(0, 32)


def test_an_expert_of_a_stack() -> None:
    tensor = make(QuantType.Q8_0, 3, 4, 32)
    np.testing.assert_array_equal(dequantize(tensor.expert(2)), dequantize(tensor)[2])
    assert tensor.expert(0).name == "t[0]"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 6), (5, 6)])
def test_rows_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(GGUFError, match=rf"tensor t: rows {start}:{stop} are outside its shape \(5, 64\)"):
        make(QuantType.Q4_0, 5, 64).row_slice(start, stop)


def test_experts_outside_are_refused() -> None:
    for tensor, index in (
        (make(QuantType.F16, 3, 4, 5), 3),
        (make(QuantType.F16, 3, 4, 5), -1),
        (make(QuantType.F16, 3, 4), 0),
    ):
        with pytest.raises(GGUFError, match=f"tensor t: no matrix {index} in shape"):
            tensor.expert(index)
