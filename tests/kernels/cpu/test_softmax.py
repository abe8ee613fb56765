"""The arithmetic of attention weights."""

from __future__ import annotations

import numpy as np

from localllm.kernels.cpu.compile import KernelCompiler, KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32X16, Value
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.normalise import erf
from localllm.kernels.cpu.softmax import exp2


def _apply(
    name: str, function: object, values: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, target, count = e.fields(record, 3)

        def body(i: Value, _: list[Value]) -> None:
            x = e.load(F32X16, source, e.mul(i, 4))
            e.store(function(e, x), target, e.mul(i, 4))  # type: ignore[operator]

        e.loop(count, [], body, step=16)

    kernel = KernelCompiler(choose_isa()).compile(KernelSource(f"apply_{name}", "", emit))
    result = np.empty_like(values)
    record = np.array([values.ctypes.data, result.ctypes.data, len(values)], np.int64)
    kernel.call(record.ctypes.data, 0, 0)
    return result


def test_exp2_is_exact_at_whole_numbers_and_close_between() -> None:
    x = np.concatenate([-np.arange(127.0), np.linspace(-126, 0, 16385)]).astype(np.float32)
    y = _apply("exp2", exp2, np.ascontiguousarray(x[: len(x) // 16 * 16]))
    expected = np.exp2(x[: len(y)].astype(np.float64))
    assert (y[:126] == expected[:126]).all()
    assert np.abs(y / expected - 1).max() < 3e-7


def test_exp2_of_very_small_numbers_is_finite_and_tiny() -> None:
    y = _apply("exp2", exp2, np.full(16, -1e30, np.float32))
    assert (y >= 0).all()
    assert (y < 1e-37).all()


def test_erf() -> None:
    import math

    x = np.linspace(-6, 6, 4096).astype(np.float32)
    expected = [math.erf(float(value)) for value in x]
    assert np.abs(_apply("erf", erf, x) - expected).max() < 1e-6
