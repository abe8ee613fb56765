"""Quantised values stay as close as the type allows, and the `gguf` package reads the blocks as we do."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import GGUFError, QuantType, Tensor, dequantize, quantize

Floats = npt.NDArray[np.float32]

# The largest error of a group of values, as a share of (largest - smallest value with zero among them): half a step of
# the finest grid that the type can put there, and the rounding of its scales.
LARGEST_ERROR = {
    QuantType.F32: 0,
    QuantType.F16: 2**-11,
    QuantType.BF16: 2**-8,
    QuantType.Q4_0: 1 / 8,  # the far end of the other sign is cut off
    QuantType.Q4_1: 0.51 / 15,
    QuantType.Q5_0: 1 / 16,
    QuantType.Q5_1: 0.53 / 31,
    QuantType.Q8_0: 0.51 / 127,
    QuantType.Q4_K: 0.5 / 15 + 1.5 / 63,
    QuantType.Q6_K: 1 / 32 + 1 / 127,
}
TYPES = list(LARGEST_ERROR)


def read_back(values: Floats, quant_type: QuantType) -> Floats:
    return dequantize(Tensor("t", quant_type, values.shape, quantize(values, quant_type)))


def random_values(seed: int, shift: float = 0.0) -> Floats:
    random = np.random.default_rng(seed)
    magnitudes = 10.0 ** random.uniform(-3, 2, (6, 5, 1))
    return ((random.standard_normal((6, 5, 512)) + shift) * magnitudes).astype(np.float32)


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
@pytest.mark.parametrize("quant_type", TYPES)
def test_the_error_is_bounded_by_the_step_of_the_type(quant_type: QuantType, shift: float) -> None:
    values = random_values(quant_type, shift)
    group = 256 if quant_type.name.endswith("_K") else 32
    error = np.abs(read_back(values, quant_type) - values).reshape(-1, group)
    grouped = values.reshape(-1, group)
    reach = np.maximum(grouped.max(axis=1), 0) - np.minimum(grouped.min(axis=1), 0)
    assert (error.max(axis=1) <= reach * LARGEST_ERROR[quant_type] + 1e-7).all()


@pytest.mark.parametrize("quant_type", TYPES)
def test_noise_is_about_that_of_a_uniform_grid(quant_type: QuantType) -> None:
    values = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    error = read_back(values, quant_type) - values
    # a group of 32 normal values spans 4 to 5 standard deviations
    bits = {QuantType.Q4_0: 4, QuantType.Q4_1: 4, QuantType.Q4_K: 4, QuantType.Q5_0: 5, QuantType.Q5_1: 5}
    steps = 2.0 ** bits.get(quant_type, 6 if quant_type is QuantType.Q6_K else 8)
    assert np.sqrt(np.mean(error**2)) < 5.2 / steps / np.sqrt(12) * 1.1


@pytest.mark.parametrize("quant_type", TYPES)
def test_the_published_package_reads_the_same_values(quant_type: QuantType) -> None:
    packed = quantize(random_values(3), quant_type)
    theirs = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType(int(quant_type)))
    ours = dequantize(Tensor("t", quant_type, (6, 5, 512), packed))
    np.testing.assert_array_equal(ours, theirs.reshape(ours.shape))


@pytest.mark.parametrize("quant_type", TYPES)
def test_zeros_constants_and_tiny_values(quant_type: QuantType) -> None:
    np.testing.assert_array_equal(read_back(np.zeros((2, 256), np.float32), quant_type), 0)
    for constant in (1.0, -1.0, 240.0):
        values = np.full((1, 256), constant, np.float32)
        np.testing.assert_allclose(read_back(values, quant_type), values, rtol=0.02)
    tiny = np.full((1, 256), 1e-30, np.float32)  # below what an f16 scale can hold
    assert np.isfinite(read_back(tiny, quant_type)).all()


@pytest.mark.parametrize("quant_type", [kind for kind in TYPES if kind is not QuantType.F32])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(quant_type: QuantType, bad: float) -> None:
    values = np.ones((2, 256), np.float32)
    values[1, 77] = bad
    with pytest.raises(GGUFError, match="not finite"):
        quantize(values, quant_type)


@pytest.mark.parametrize("quant_type", [QuantType.F16, QuantType.Q4_0, QuantType.Q4_1, QuantType.Q4_K, QuantType.Q6_K])
def test_values_beyond_the_scale_are_refused(quant_type: QuantType) -> None:
    with pytest.raises(GGUFError, match="do not fit"):
        quantize(np.linspace(-3e38, 3e38, 256, dtype=np.float32), quant_type)


def test_wrong_rows_and_types_are_refused() -> None:
    with pytest.raises(GGUFError, match="whole number of Q4_K blocks"):
        quantize(np.zeros((4, 128), np.float32), QuantType.Q4_K)
    with pytest.raises(GGUFError, match="IQ2_XS cannot be written"):
        quantize(np.zeros((4, 256), np.float32), QuantType.IQ2_XS)


def test_pieces_meet_without_a_seam() -> None:
    values = np.random.default_rng(5).standard_normal((5, 1 << 17)).astype(np.float32)
    whole = quantize(values, QuantType.Q5_1)
    for row in range(len(values)):
        np.testing.assert_array_equal(whole[row], quantize(values[row], QuantType.Q5_1))
