"""Sums of products of 16-bit integers, on every instruction set that this machine can run."""

from __future__ import annotations

import numpy as np
import pytest

from localllm.kernels.cpu.compile import KernelCompiler, KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32X16, I32X16, Value
from localllm.kernels.cpu.isa import Isa, available_isas
from localllm.kernels.cpu.pair_dot import I16X32, LARGEST, emit_pair_dot, multiplier_limit, round_to_pairs


@pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
def test_products_of_all_signs_and_the_largest_numbers(isa: Isa) -> None:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        codes, multipliers, totals = e.fields(record, 3)
        total = emit_pair_dot(e, e.load(I32X16, totals), e.load(I16X32, codes), e.pointer(multipliers))
        e.store(total, totals)

    kernel = KernelCompiler(isa).compile(KernelSource("pair_dot", "", emit))
    random = np.random.default_rng(1)
    for first, second in ((LARGEST, -LARGEST), (-LARGEST, -LARGEST), (LARGEST, LARGEST), (-3, 20000), (0, -1)):
        codes = random.integers(0, 256, (16, 2)).astype(np.int16)
        codes[0], codes[1] = 255, 0
        multipliers = np.array([first, second], np.int16)
        totals = random.integers(-(2**24), 2**24, 16).astype(np.int32)
        expected = totals + codes.astype(np.int32) @ multipliers.astype(np.int32)
        record = np.array([codes.ctypes.data, multipliers.ctypes.data, totals.ctypes.data], np.int64)
        kernel.call(record.ctypes.data, 0, 0)
        np.testing.assert_array_equal(totals, expected)


@pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
def test_rounding(isa: Isa) -> None:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, integers, floats = e.fields(record, 3)
        whole, rounded = round_to_pairs(e, e.load(F32X16, source))
        e.store(whole, integers)
        e.store(rounded, floats)

    kernel = KernelCompiler(isa).compile(KernelSource("round_to_pairs", "", emit))
    values = np.array(
        [0, -0.4, 0.5, 1.5, 2.5, -2.5, -1.7, 32767, -32767, 32766.6, 3e-30, 100, 255, -9, 8191.5, -4096.5]
    )
    source = np.array(values, np.float32)
    integers, floats = np.zeros(16, np.int16), np.zeros(16, np.float32)
    record = np.array([source.ctypes.data, integers.ctypes.data, floats.ctypes.data], np.int64)
    kernel.call(record.ctypes.data, 0, 0)
    np.testing.assert_array_equal(integers, np.rint(source).astype(np.int16))
    np.testing.assert_array_equal(floats, np.rint(source))


@pytest.mark.parametrize("code", [255, 15, 3])
@pytest.mark.parametrize("products", [16, 64, 256, 512, 2048])
def test_the_largest_sum_fits(code: int, products: int) -> None:
    limit = multiplier_limit(code, products)
    assert 1 <= limit <= LARGEST
    assert code * limit * products < 2**31
