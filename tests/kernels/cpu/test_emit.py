"""The emitter and the vector functions against numpy, on every instruction set that this host can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest

from localllm.kernels.cpu import vector_math
from localllm.kernels.cpu.atomics import atomic_add, atomic_load, atomic_store, pause
from localllm.kernels.cpu.compile import KernelCompiler, KernelSource, emit_module
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32, F32X16, I16, I32X16, I64, Value, vector
from localllm.kernels.cpu.isa import (
    AVX2,
    AVX512_VNNI,
    PORTABLE_ARM,
    ROW_AHEAD,
    Isa,
    available_isas,
    choose_isa,
    for_processor,
    isas_of,
)
from localllm.kernels.errors import ExecutionError

ISAS = pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
Floats = npt.NDArray[np.float32]


def run_unary(
    isa: Isa, tmp_path: Path, function: Callable[[Emitter, Value], Value], values: npt.NDArray[np.float32]
) -> Floats:
    """Apply a vector function to a multiple of 16 floats."""

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, target, count = e.fields(record, 3)

        def body(i: Value, carried: list[Value]) -> None:
            e.store(function(e, e.load(F32X16, source, e.mul(i, 4))), target, e.mul(i, 4))

        e.loop(count, [], body, step=16)

    kernel = KernelCompiler(isa, tmp_path).compile(KernelSource("unary", function.__name__, emit))
    result = np.full_like(values, np.nan)
    record = np.array([values.ctypes.data, result.ctypes.data, values.size], np.int64)
    kernel.call(record.ctypes.data, 0, 0)
    return result


def test_isas_are_chosen_by_features() -> None:
    v4 = frozenset(["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"])
    assert [isa.name for isa in isas_of("x86_64-linux", v4)] == [
        "avx512vnni",
        "avxvnni",
        "avx2",
        "portable",
    ]
    assert [isa.name for isa in isas_of("x86_64-pc-windows", frozenset())] == ["portable"]
    alder_lake = frozenset(["avx2", "fma", "f16c", "avxvnni"])
    assert [isa.name for isa in isas_of("x86_64-x", alder_lake)] == ["avxvnni", "avx2", "portable"]
    assert isas_of("aarch64-apple-darwin", frozenset()) == (PORTABLE_ARM,)
    with pytest.raises(ExecutionError, match="sparc"):
        choose_isa("sparc")


def test_who_asks_for_weights_ahead_depends_on_the_processor() -> None:
    assert for_processor(AVX512_VNNI, "sapphirerapids").row_ahead == ROW_AHEAD
    for isa, processor in ((AVX512_VNNI, "znver4"), (AVX512_VNNI, "generic"), (AVX2, "haswell"), (PORTABLE_ARM, "x")):
        assert for_processor(isa, processor) == isa


@ISAS
def test_exp_and_its_relatives(isa: Isa, tmp_path: Path) -> None:
    x = np.concatenate([np.linspace(-87, 88, 4096 - 32), np.linspace(-1e-3, 1e-3, 32)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(run_unary(isa, tmp_path, vector_math.exp, x) / exact - 1)) < 3e-7
    wide = np.exp(np.minimum(-x.astype(np.float64), 700))
    np.testing.assert_allclose(run_unary(isa, tmp_path, vector_math.sigmoid, x), 1 / (1 + wide), rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(run_unary(isa, tmp_path, vector_math.tanh, x), np.tanh(x), rtol=0, atol=3e-7)
    edge = np.array([-np.inf, np.inf, np.nan, 1e30, -1e30, 0, -0.0, 1] * 2, np.float32)
    with np.errstate(all="ignore"):
        result = run_unary(isa, tmp_path, vector_math.exp, edge)
    assert np.isnan(result[2])
    assert result[0] < 1e-37
    assert result[4] < 1e-37
    assert result[1] > 1e38
    assert result[5] == result[6] == 1


@ISAS
def test_half_conversions_are_exact(isa: Isa, tmp_path: Path) -> None:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        halves, floats, again = e.fields(record, 3)

        def body(i: Value, carried: list[Value]) -> None:
            x = vector_math.load_half(e, 16, halves, e.mul(i, 2))
            e.store(x, floats, e.mul(i, 4))
            e.store(vector_math.float_to_half(e, e.mul(x, 1.0001)), again, e.mul(i, 2))

        e.loop(65536, [], body, step=16)

    kernel = KernelCompiler(isa, tmp_path).compile(KernelSource("half", "", emit))
    bits = np.arange(65536, dtype=np.uint16)
    floats, again = np.empty(65536, np.float32), np.empty(65536, np.float16)
    record = np.array([bits.ctypes.data, floats.ctypes.data, again.ctypes.data], np.int64)
    kernel.call(record.ctypes.data, 0, 0)
    expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(floats, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(floats[number]), np.signbit(expected[number]))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(again, (expected * np.float32(1.0001)).astype(np.float16))


@ISAS
def test_rounding_masks_and_reductions(isa: Isa, tmp_path: Path) -> None:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, target, count, rounded = e.fields(record, 4)
        mask = e.lane_mask(16, count)
        x = e.select(mask, e.load(F32X16, source), e.constant(F32X16, 0.0))
        e.store_masked(x, mask, target)
        reductions = e.horizontal_sum(x), e.horizontal_max(x), e.horizontal_min(x)
        for i, value in enumerate(reductions):
            e.store(value, target, 64 + 4 * i)
        e.store(vector_math.round_to_integer(e, x), rounded)

    kernel = KernelCompiler(isa, tmp_path).compile(KernelSource("reduce", "", emit))
    source = np.array([0.5, 1.5, -2.5, 3.49, -4.51, 126.5, -127.5, 7, 9, 9, 9, 9, 9, 9, 9, 9], np.float32)
    for count in (0, 1, 7, 16, 20):
        target, rounded = np.full(19, -1, np.float32), np.zeros(16, np.int32)
        record = np.array([source.ctypes.data, target.ctypes.data, count, rounded.ctypes.data], np.int64)
        kernel.call(record.ctypes.data, 0, 0)
        x = np.where(np.arange(16) < count, source, 0)
        np.testing.assert_array_equal(target[:16], np.where(np.arange(16) < count, source, -1))
        np.testing.assert_allclose(target[16:], [x.sum(), x.max(), x.min()], rtol=1e-5)
        np.testing.assert_array_equal(rounded, np.rint(x).astype(np.int32))


@ISAS
def test_control_flow_atomics_and_calls(isa: Isa, tmp_path: Path) -> None:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        counter, limit, other = e.fields(record, 3)

        def body(carried: list[Value]) -> list[Value]:
            atomic_add(e, carried[0], counter)
            pause(e)
            return [e.add(carried[0], 1)]

        last = e.repeat_while([e.integer(0)], lambda carried: e.compare("<", carried[0], limit), body)[0]
        with e.either(e.compare("==", e.remainder(limit, 2), 0)) as (then, otherwise):
            with then:
                e.store(last, counter, 8)
            with otherwise:
                e.store(e.neg(last), counter, 8)
        with e.when(e.compare("!=", other, 0)):
            e.call_address(other, counter, step, thread)
        e.outline("twice", lambda f, values: atomic_store(f, f.mul(atomic_load(f, values[0]), 2), values[0]), [counter])
        e.outline("twice", lambda f, values: None, [counter])
        scratch = e.scratch(64)
        e.store(e.load_splat(I64, 8, counter), scratch, align=64)
        e.store(e.lane(e.load(vector(I64, 8), scratch), 7), counter, 16)

    def emit_other(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        atomic_add(e, e.add(step, thread), record)

    compiler = KernelCompiler(isa, tmp_path)
    other = compiler.compile(KernelSource("other", "", emit_other))
    kernel = compiler.compile(KernelSource("flow", "", emit))
    for limit, address in ((4, 0), (5, other.address)):
        counter = np.zeros(3, np.int64)
        record = np.array([counter.ctypes.data, limit, address], np.int64)
        kernel.call(record.ctypes.data, 1000, 20000)
        total = 4 * (limit * (limit - 1) // 2 + (21000 if address else 0))
        assert counter.tolist() == [total, limit if limit % 2 == 0 else -limit, total]


def test_kernels_lower_for_aarch64() -> None:
    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        x = vector_math.load_half(e, 16, record)
        e.store(vector_math.exp(e, x), record)
        e.store(vector_math.float_to_half(e, vector_math.tanh(e, x)), record)
        e.store(vector_math.load_bfloat(e, 16, record), record)
        e.store(e.convert(e.bitcast(x, I32X16), I16), record)
        e.store(e.horizontal_max(e.fma(x, x, e.splat(e.load(F32, record), 16))), record)
        atomic_add(e, 1, record)
        e.prefetch(record, 64)
        pause(e)

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    module = llvm.parse_assembly(str(emit_module("kernel", emit, PORTABLE_ARM, triple)))
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu="generic", opt=2)
    assert machine.emit_object(module).startswith(b"\x7fELF")
    assembly = machine.emit_assembly(module)
    assert "fcvtl" in assembly
    assert "fmla" in assembly
