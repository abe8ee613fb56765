"""Every block type against reference values: 64 blocks each, with extreme scales and bit patterns among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import GGUFError, QuantType, Tensor, decompose, dequantize, has_decomposition, is_supported

BLOCKS = Path(__file__).parents[2] / "data" / "blocks"
NAMES = sorted(path.stem for path in BLOCKS.glob("*.npz"))


def read_blocks(name: str) -> tuple[Tensor, npt.NDArray[np.float32]]:
    with np.load(BLOCKS / f"{name}.npz") as stored:
        values = stored["values"]
        return Tensor(name, QuantType(int(stored["ggml_type"])), values.shape, stored["raw"]), values


def bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """The stored bits: equal for -0 and NaN too only where they are the same."""
    return values.view(np.uint32)


def test_every_type_of_blocks_has_reference_values() -> None:
    tested = {read_blocks(name)[0].quant_type for name in NAMES}
    supported = {quant_type for quant_type in QuantType if has_decomposition(quant_type)}
    assert supported | {QuantType.F16, QuantType.BF16} == tested


@pytest.mark.parametrize("name", NAMES)
def test_dequantised_values_have_the_bits_of_the_reference(name: str) -> None:
    tensor, values = read_blocks(name)
    result = dequantize(tensor)
    assert result.dtype == np.float32
    assert result.shape == values.shape
    np.testing.assert_array_equal(bits(result), bits(values))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("f16", "bf16")])
def test_integers_times_scales_plus_minimums_are_the_values(name: str) -> None:
    tensor, values = read_blocks(name)
    parts = decompose(tensor)
    assert parts.quants.dtype == np.int8
    assert parts.scales.dtype == np.float32
    by_group = parts.quants.reshape(-1, parts.group_size)
    exact = by_group.astype(np.float64) * parts.scales.astype(np.float64).reshape(-1, 1)
    product = exact.astype(np.float32)
    np.testing.assert_array_equal(product.astype(np.float64), exact)  # no rounding: a fused multiply-add is the same
    if parts.minimums is not None:
        assert parts.minimums.shape == parts.scales.shape
        product += parts.minimums.reshape(-1, 1)
    np.testing.assert_array_equal(bits(product.reshape(values.shape)), bits(values))


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "iq3_s"])
def test_a_stack_of_experts_and_its_slices_agree(name: str) -> None:
    tensor, values = read_blocks(name)
    columns = 2 * values.shape[1]
    stack = Tensor(name, tensor.quant_type, (4, 8, columns), tensor.data.reshape(4, 8, -1))
    whole = dequantize(stack)
    np.testing.assert_array_equal(whole.reshape(values.shape), values)
    np.testing.assert_array_equal(dequantize(stack.expert(2)), whole[2])
    np.testing.assert_array_equal(dequantize(stack.row_slice(3, 6)), whole[:, 3:6])  # not contiguous in the file
    np.testing.assert_array_equal(decompose(stack.row_slice(3, 6)).quants, decompose(stack).quants[:, 3:6])


def test_pieces_meet_without_a_seam() -> None:
    tensor, values = read_blocks("q4_k")
    rows = 40  # 40 x 64 blocks of 256 values: ten pieces of the inner loop
    many = Tensor("many", tensor.quant_type, (rows, values.size), np.tile(tensor.data.reshape(-1), (rows, 1)))
    np.testing.assert_array_equal(dequantize(many), np.tile(values.reshape(-1), (rows, 1)))


@pytest.mark.parametrize(
    ("quant_type", "dtype"),
    [
        (QuantType.F32, "<f4"),
        (QuantType.F64, "<f8"),
        (QuantType.I8, "<i1"),
        (QuantType.I16, "<i2"),
        (QuantType.I32, "<i4"),
        (QuantType.I64, "<i8"),
    ],
)
def test_plain_numbers_become_float32(quant_type: QuantType, dtype: str) -> None:
    stored = np.array([[0, 1, -1], [100, -128, 127]], dtype)
    data = stored.view(np.uint8).reshape(2, -1)
    np.testing.assert_array_equal(dequantize(Tensor("t", quant_type, (2, 3), data)), stored.astype(np.float32))


def test_broken_scales_give_infinities_and_nan_but_no_warning() -> None:
    for name in NAMES:
        tensor, values = read_blocks(name)
        data = np.full_like(tensor.data, 0xFF)  # an f16 scale of all ones is NaN
        data[::2] = 0x7C  # and 0x7C7C one as well; an exponent byte of 255 overflows
        broken = Tensor(name, tensor.quant_type, values.shape, data)
        assert dequantize(broken).shape == values.shape


def test_a_type_without_reference_is_refused_by_name() -> None:
    tensor = Tensor("blk.0.weight", QuantType.Q8_K, (1, 256), np.zeros((1, 292), np.uint8))
    assert not is_supported(tensor.quant_type)
    with pytest.raises(GGUFError, match=r"blk\.0\.weight: Q8_K"):
        dequantize(tensor)
    with pytest.raises(GGUFError, match="F32"):
        decompose(Tensor("norm", QuantType.F32, (1,), np.zeros(4, np.uint8)))
