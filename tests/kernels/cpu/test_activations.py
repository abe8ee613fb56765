"""Activation records against numpy, on every instruction set that this host can run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localllm.kernels.cpu.activations import BLOCK, RECORD_BYTES, emit_quantize_block, emit_quantize_rows
from localllm.kernels.cpu.compile import KernelCompiler, KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32X16, Value
from localllm.kernels.cpu.isa import Isa, available_isas


def emit_row(e: Emitter, record: Value, step: Value, thread: Value) -> None:
    source, target, blocks = e.fields(record, 3)

    def block(i: Value, carried: list[Value]) -> None:
        at = e.at(source, e.mul(i, 4 * BLOCK))
        emit_quantize_block(e, e.load(F32X16, at), e.load(F32X16, at, 64), e.at(target, e.mul(i, RECORD_BYTES)))

    e.loop(blocks, [], block)


def emit_rows(e: Emitter, record: Value, step: Value, thread: Value) -> None:
    source, target, _ = e.fields(record, 3)
    first = 0
    for count in (8, 4, 2, 1):
        start = first
        emit_quantize_rows(
            e,
            count,
            e.at(source, 4 * BLOCK * start),
            lambda i, start=start: e.at(target, e.mul(e.add(i, start), RECORD_BYTES)),  # type: ignore[misc]
        )
        first += count


@pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
def test_rows_together_are_what_they_are_alone(isa: Isa, tmp_path: Path) -> None:
    values = (np.random.default_rng(6).standard_normal((15, BLOCK)) * 10.0 ** np.arange(-7, 8)[:, None]).astype(
        np.float32
    )
    values[2] = 0
    records = np.zeros((2, 15, RECORD_BYTES), np.uint8)
    for emit, target in zip((emit_row, emit_rows), records, strict=True):
        record = np.array([values.ctypes.data, target.ctypes.data, 15], np.int64)
        KernelCompiler(isa, tmp_path).compile(KernelSource(emit.__name__, "", emit)).call(record.ctypes.data, 0, 0)
    np.testing.assert_array_equal(*records)


@pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
def test_records_are_rounded_to_the_nearest_of_127_steps(isa: Isa, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    values = (random.standard_normal((9, BLOCK)) * 10.0 ** np.arange(-6, 3)[:, None]).astype(np.float32)
    values[3] = 0
    values[4, :] = 0.25
    values[5, 7] = 1e4
    records = np.full((9, RECORD_BYTES), 0xAB, np.uint8)
    record = np.array([values.ctypes.data, records.ctypes.data, 9], np.int64)
    KernelCompiler(isa, tmp_path).compile(KernelSource("quantise", "", emit_row)).call(record.ctypes.data, 0, 0)

    largest = np.abs(values).max(axis=1, keepdims=True)
    scale = largest * np.float32(1 / 127)
    with np.errstate(invalid="ignore", divide="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, 0).astype(np.float32)
    quants = np.rint(values * inverse).astype(np.int32)
    np.testing.assert_array_equal(records[:, :32].view(np.int8), quants)
    np.testing.assert_array_equal(records[:, 32:36].copy().view(np.float32), scale)
    sums = quants.sum(axis=1, dtype=np.int32)
    np.testing.assert_array_equal(
        records[:, 36:40].copy().view(np.float32)[:, 0], scale[:, 0] * sums.astype(np.float32)
    )
    halves = quants.reshape(9, 2, 16).sum(axis=2)
    offsets = np.concatenate([sums[:, None], halves], axis=1)
    np.testing.assert_array_equal(records[:, 40:].copy().view(np.int32), -128 * offsets)
    assert np.abs(quants).max() == 127
