"""Every tile layout against numpy: repacked, multiplied by one and by several tokens, on every instruction set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import QuantType, Tensor
from localllm.gguf_io.quants import dequantize, has_decomposition, is_supported
from localllm.kernels.cpu.activations import RECORD_BYTES
from localllm.kernels.cpu.compile import KernelCompiler, KernelSource, emit_module
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32X16, Value
from localllm.kernels.cpu.isa import PORTABLE_ARM, Isa, available_isas, choose_isa
from localllm.kernels.cpu.tiles.layout import Activation, TileLayout
from localllm.kernels.cpu.tiles.matmul import FIELDS, matmul_source
from localllm.kernels.cpu.tiles.registry import layout_for, rewriting
from localllm.kernels.errors import UnsupportedModelError

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

TYPES = [kind for kind in QuantType if has_decomposition(kind) or kind.name in ("F32", "F16", "BF16")]
# Each way to pack codes and to scale them, once: other types combine these.
_KINDS = "Q4_0 Q4_1 Q5_0 Q8_0 Q2_K Q3_K Q4_K Q6_K IQ4_XS MXFP4 IQ2_XS F16 BF16 F32"
KINDS = [QuantType[name] for name in _KINDS.split()]
# Where the float16 scales and minimums lie in a block: random bits there would be infinite or NaN.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ1_S"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def random_tensor(kind: QuantType, rows: int, columns: int) -> Tensor:
    """Random blocks with sound scales."""
    random = np.random.default_rng([int(kind), rows, columns])
    blocks = random.integers(0, 256, (rows, columns // kind.block_size, kind.type_size), dtype=np.uint8)
    for start in HALVES.get(kind.name, ()):
        scales = (random.standard_normal(blocks.shape[:2]) * 0.02).astype(np.float16)
        blocks[..., start : start + 2] = scales[..., None].view(np.uint8)
    if kind is QuantType.MXFP4:
        blocks[..., 0] = random.integers(0, 8, blocks.shape[:2]) + 118
    if kind is QuantType.IQ1_M:  # the float16 scale is spread over the top nibbles of four 16-bit words
        blocks[..., 49::2] = (blocks[..., 49::2] & 15) | 0x20
    if kind is QuantType.F32:
        blocks = random.standard_normal((rows, columns)).astype(np.float32).view(np.uint8)
    if kind is QuantType.F16:
        blocks = random.standard_normal((rows, columns)).astype(np.float16).view(np.uint8)
    if kind is QuantType.BF16:
        blocks[..., 1] = (blocks[..., 1] & 0x80) | 0x3F
    tensor = Tensor("weights", kind, (rows, columns), np.ascontiguousarray(blocks.reshape(rows, -1)))
    assert np.isfinite(dequantize(tensor)).all()
    return tensor


def activation_rows(layout: TileLayout, values: Floats) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float64]]:
    """Rows as the kernel reads them, and the numbers they stand for."""
    tokens, columns = values.shape
    if layout.activation is Activation.FLOATS:
        rows = np.zeros((tokens, 32 * layout.blocks(columns)), np.float32)
        rows[:, :columns] = values
        return rows, values.astype(np.float64)
    blocks = values.reshape(tokens, -1, 32)
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    quants = np.rint(blocks / scale[..., None]).astype(np.int8)
    sums = quants.reshape(*quants.shape[:2], 2, 16).sum(axis=-1, dtype=np.int32)
    total = sums.sum(axis=-1)
    records = np.zeros((*blocks.shape[:2], RECORD_BYTES), np.uint8)
    records[..., :32] = quants.view(np.uint8)
    records[..., 32:40] = np.stack([scale, scale * total.astype(np.float32)], axis=-1).view(np.uint8)
    records[..., 40:] = (np.stack([total, sums[..., 0], sums[..., 1]], axis=-1) * -128).astype(np.int32).view(np.uint8)
    return records.reshape(tokens, -1), (quants * scale[..., None].astype(np.float64)).reshape(tokens, columns)


def multiply(
    compiler: KernelCompiler,
    layout: TileLayout,
    tiles: Bytes,
    activations: npt.NDArray[np.generic],
    columns: int,
    at_once: int,
) -> Floats:
    """All tokens by all tiles, `at_once` tokens at a time."""
    outputs = np.full((len(activations), 16 * len(tiles)), np.nan, np.float32)
    fields = {
        "tiles": tiles.ctypes.data,
        "tile_bytes": tiles.strides[0],
        "first_tile": 0,
        "last_tile": len(tiles),
        "blocks": layout.blocks(columns),
        "activations": activations.ctypes.data,
        "activation_stride": activations.strides[0],
        "tokens": len(activations),
        "outputs": outputs.ctypes.data,
        "output_stride": outputs.strides[0],
        "repeats": 1,
    }
    record = np.array([fields[name] for name in FIELDS], np.int64)
    compiler.compile(matmul_source(layout, at_once)).call(record.ctypes.data, 0, 0)
    return outputs


def check(compiler: KernelCompiler, kind: QuantType, rows: int, columns: int, token_counts: tuple[int, ...]) -> None:
    layout, tensor = layout_for(kind), random_tensor(kind, rows, columns)
    tiles = layout.repack(tensor)
    assert tiles.shape == (layout.tiles(rows), layout.tile_bytes(columns))
    values = np.random.default_rng(1).standard_normal((6, columns)).astype(np.float32)
    activations, exact_values = activation_rows(layout, values)
    expected = exact_values @ dequantize(tensor).astype(np.float64).T
    results = [multiply(compiler, layout, tiles, activations, columns, count) for count in token_counts]
    error = np.abs(results[0][:, :rows] - expected).max() / expected.std()
    assert error < 3e-6 * max(1, columns / 256)
    for result in results[1:]:  # bit-equal, whatever the number of tokens computed together
        np.testing.assert_array_equal(result, results[0])
    assert np.isfinite(results[0]).all()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_every_type_on_the_best_instruction_set(kind: QuantType, cache: Path) -> None:
    columns = {1: 40, 32: 96, 64: 192, 256: 768}[kind.block_size]
    check(KernelCompiler(choose_isa(), cache), kind, 37, columns, (1, 3))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_asking_for_weights_ahead_changes_nothing(kind: QuantType, cache: Path) -> None:
    layout, columns = layout_for(kind), max(64, 2 * kind.block_size)
    tiles = layout.repack(random_tensor(kind, 32, columns))
    activations, _ = activation_rows(layout, np.random.default_rng(2).standard_normal((1, columns)).astype(np.float32))
    isas = [replace(choose_isa(), row_ahead=ahead) for ahead in (0, 4096)]
    plain, ahead = (multiply(KernelCompiler(isa, cache), layout, tiles, activations, columns, 1) for isa in isas)
    np.testing.assert_array_equal(ahead, plain)


@pytest.mark.parametrize("isa", available_isas()[1:], ids=lambda isa: isa.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_on_the_other_instruction_sets(kind: QuantType, isa: Isa, cache: Path) -> None:
    check(KernelCompiler(isa, cache), kind, 16, 24 if kind.block_size == 1 else 2 * kind.block_size, (1, 2))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_blocks_from_the_middle_of_a_tile(kind: QuantType, cache: Path) -> None:
    """One super-block at a time, added up, is the whole product."""
    layout, together = layout_for(kind), max(1, kind.block_size // 32)
    tensor = random_tensor(kind, 16, 3 * 32 * together)
    tiles, blocks = layout.repack(tensor), 3 * together
    values = np.random.default_rng(4).standard_normal((1, tensor.columns)).astype(np.float32)
    activations, exact_values = activation_rows(layout, values)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        tile, row, target = e.fields(record, 3)

        def part(start: Value, carried: list[Value]) -> None:
            at = e.at(row, e.mul(start, layout.activation.value))
            (sums,) = layout.emit_dot(e, tile, together, [at], first=start)
            e.store(e.add(e.load(F32X16, target), sums), target)

        e.loop(blocks, [], part, step=together)

    target = np.zeros(16, np.float32)
    record = np.array([tiles.ctypes.data, activations.ctypes.data, target.ctypes.data], np.int64)
    source = KernelSource("parts", f"{layout.name} {blocks}", emit)
    KernelCompiler(choose_isa(), cache).compile(source).call(record.ctypes.data, 0, 0)
    expected = (exact_values @ dequantize(tensor).astype(np.float64).T)[0]
    np.testing.assert_allclose(target, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_instruction_sets_give_nearly_equal_results(cache: Path) -> None:
    tensor = random_tensor(QuantType.Q4_0, 32, 256)
    layout = layout_for(QuantType.Q4_0)
    tiles = layout.repack(tensor)
    activations, _ = activation_rows(layout, np.random.default_rng(2).standard_normal((1, 256)).astype(np.float32))
    results = [multiply(KernelCompiler(isa, cache), layout, tiles, activations, 256, 1) for isa in available_isas()]
    for isa, result in zip(available_isas(), results, strict=True):
        if isa.fused_multiply_add:
            np.testing.assert_array_equal(result, results[0])
        else:
            np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5)


def test_large_sums_do_not_overflow(cache: Path) -> None:
    """The largest codes times the largest activations, all of one sign."""
    for kind in (QuantType.Q4_0, QuantType.Q8_0, QuantType.Q6_K, QuantType.IQ4_NL, QuantType.Q5_1):
        tensor = random_tensor(kind, 16, kind.block_size * 2)
        values = np.full((1, tensor.columns), -3, np.float32)
        layout = layout_for(kind)
        for fill in (0x00, 0xFF, 0x80, 0x7F):
            data = np.full_like(tensor.data.reshape(16, -1, kind.type_size), fill)
            for start in HALVES[kind.name]:
                data[..., start : start + 2] = np.array([1], np.float16).view(np.uint8)
            filled = Tensor("filled", kind, tensor.shape, data.reshape(16, -1))
            activations, exact_values = activation_rows(layout, values)
            expected = exact_values @ dequantize(filled).astype(np.float64).T
            for isa in available_isas():
                tiles = layout.repack(filled)
                result = multiply(KernelCompiler(isa, cache), layout, tiles, activations, tensor.columns, 1)
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("kind", [QuantType.Q4_0, QuantType.Q6_K, QuantType.F32], ids=lambda kind: kind.name)
def test_rows_can_be_chosen_and_tiles_interleaved(kind: QuantType) -> None:
    layout, tensor = layout_for(kind), random_tensor(kind, 40, 256)
    order = np.random.default_rng(3).permutation(40)
    chosen = layout.repack(tensor, rows=order)
    permuted = Tensor("permuted", kind, tensor.shape, tensor.data[order])
    np.testing.assert_array_equal(chosen, layout.repack(permuted))

    both = np.zeros((2 * layout.tiles(40), layout.tile_bytes(256)), np.uint8)
    assert layout.repack(tensor, both[::2]) is not None
    layout.repack(permuted, both[1::2])
    np.testing.assert_array_equal(both[::2], layout.repack(tensor))
    np.testing.assert_array_equal(both[1::2], chosen)

    with_gaps = layout.repack(tensor, rows=np.array([3, -1, 5]))
    zero = Tensor("gaps", kind, (3, 256), tensor.data[[3, 3, 5]].copy())
    zero.data[1] = 0
    np.testing.assert_array_equal(with_gaps, layout.repack(zero))


def test_repacking_in_pieces_is_repacking_at_once() -> None:
    tensor = random_tensor(QuantType.Q4_K, 16 * 300, 256)
    layout = layout_for(QuantType.Q4_K)
    tiles = layout.repack(tensor)
    for start in (0, 123, 299):
        part = layout.repack(tensor.row_slice(16 * start, 16 * start + 16))
        np.testing.assert_array_equal(tiles[start : start + 1], part)


def test_tiles_are_as_small_as_the_file() -> None:
    for kind in TYPES:
        if kind.block_size == 1 or kind.name.startswith(("IQ1", "IQ2", "IQ3", "TQ", "NVFP4")):
            continue
        bits = 8 * layout_for(kind).tile_bytes(2048) / (16 * 2048)
        assert bits <= 8 * kind.type_size / kind.block_size * 1.04, kind


def test_other_number_types_become_float32_and_the_rest_is_refused() -> None:
    values = np.arange(-20, 20, dtype=np.int16).reshape(2, 20)
    tensor = Tensor("integers", QuantType.I16, (2, 20), values.view(np.uint8))
    tiles = layout_for(QuantType.I16).repack(tensor)
    expected = Tensor("floats", QuantType.F32, (2, 20), values.astype(np.float32).view(np.uint8))
    np.testing.assert_array_equal(tiles, layout_for(QuantType.F32).repack(expected))
    for kind in QuantType:
        if not is_supported(kind):
            with pytest.raises(UnsupportedModelError, match=kind.name):
                layout_for(kind)


def test_every_kind_lowers_for_aarch64() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu="generic", opt=1)
    for kind in KINDS:
        source = matmul_source(layout_for(kind), 1)
        module = llvm.parse_assembly(str(emit_module("kernel", source.emit, PORTABLE_ARM, triple)))
        assert machine.emit_object(module).startswith(b"\x7fELF")


def test_types_that_do_not_keep_their_codes_say_so() -> None:
    assert rewriting(QuantType.Q4_K) is None
    assert rewriting(QuantType.MXFP4) is None
    assert rewriting(QuantType.IQ2_XS) == "is repacked without loss as integers times scales (5.0 bits a weight)"
    assert rewriting(QuantType.F64) == "is dequantised to F32"
