"""How fast the tile kernels of this machine are: `python bench/tiles.py [--types Q4_0,Q6_K]`.

For each layout, on one core, interleaved: one token over a matrix that does not fit any cache (GB/s of weights, and the
fraction of a plain read of the same bytes in the same run), one token over a matrix in cache, and a block of tokens
(billions of multiply-adds a second).
"""

from __future__ import annotations

import argparse
import json
import mmap
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType
from localllm.kernels.cpu.compile import Kernel, KernelCompiler, KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import I64, Value, vector
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.tiles.layout import TileLayout
from localllm.kernels.cpu.tiles.matmul import FIELDS, matmul_source
from localllm.kernels.cpu.tiles.registry import layout_for

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 F16 BF16 F32"
_LARGE, _SMALL = (24576, 4096), (1536, 512)  # rows, columns
_TOKENS = 64


def emit_read(e: Emitter, record: Value, step: Value, thread: Value) -> None:
    """Read memory (record: address, bytes, where a check sum goes) in order, as fast as one core can."""
    address, size, target = e.fields(record, 3)
    kind, count = vector(I64, 8), 8
    pointer = e.pointer(address)

    def lines(at: Value, sums: list[Value]) -> list[Value]:
        return [e.bit_xor(a, e.load(kind, pointer, at, 64 * i)) for i, a in enumerate(sums)]

    sums = e.loop(size, [e.constant(kind, 0)] * count, lines, step=64 * count)
    for i, a in enumerate(sums):
        e.store(a, target, 64 * i)


def huge_pages(size: int) -> Bytes:
    """Private memory, in transparent huge pages where the system has them, filled with small numbers."""
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if sys.platform != "win32" else {}
    memory = mmap.mmap(-1, size, **flags)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE)
    content = np.frombuffer(memory, np.uint8)
    content[:] = np.random.default_rng(0).integers(0, 60, size, dtype=np.uint8)
    return content


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A product to time."""

    kernel: Kernel
    record: npt.NDArray[np.int64]
    keep: tuple[npt.NDArray[np.generic], ...]  # what the record points to

    def seconds(self) -> float:
        """Time of one call."""
        start = time.perf_counter()
        self.kernel.call(self.record.ctypes.data, 0, 0)
        return time.perf_counter() - start


def product(
    kernel: Kernel, layout: TileLayout, shape: tuple[int, int], weights: Bytes, tokens: int, repeats: int
) -> Case:
    """`tokens` rows by a matrix of this shape."""
    rows, columns = shape
    tiles, stride = layout.tiles(rows), layout.blocks(columns) * layout.activation.value
    activations = np.zeros(tokens * stride, np.uint8)
    outputs = np.zeros((tokens, 16 * tiles), np.float32)
    fields = {
        "tiles": weights.ctypes.data,
        "tile_bytes": layout.tile_bytes(columns),
        "first_tile": 0,
        "last_tile": tiles,
        "blocks": layout.blocks(columns),
        "activations": activations.ctypes.data,
        "activation_stride": stride,
        "tokens": tokens,
        "outputs": outputs.ctypes.data,
        "output_stride": outputs.strides[0],
        "repeats": repeats,
    }
    record = np.array([fields[name] for name in FIELDS], np.int64)
    return Case(kernel, record, (weights, activations, outputs))


def measure(layout: TileLayout, compiler: KernelCompiler, weights: Bytes, rounds: int) -> tuple[float, ...]:
    """GB/s from memory, GB/s of the plain read, GB/s in cache, GMAC/s of a block of tokens."""
    one, many, read = compiler.compile_all(
        [
            matmul_source(layout, 1),
            matmul_source(layout, compiler.isa.token_block),
            KernelSource("read_memory", "", emit_read),
        ]
    )
    large, small = (layout.tiles(rows) * layout.tile_bytes(columns) for rows, columns in (_LARGE, _SMALL))
    target = np.zeros(512, np.uint8)
    plain = np.array([weights.ctypes.data, large // 512 * 512, target.ctypes.data], np.int64)
    cases = [
        product(one, layout, _LARGE, weights, 1, 1),
        Case(read, plain, (weights, target)),
        product(one, layout, _SMALL, weights, 1, 200),
        product(many, layout, _SMALL, weights, _TOKENS, 4),
    ]
    times = [[case.seconds() for case in cases] for _ in range(rounds)]
    seconds = [median(column) for column in zip(*times, strict=True)]
    multiplications = _SMALL[0] * _SMALL[1] * _TOKENS * 4
    amounts = (large, large, small * 200, multiplications)
    return tuple(amount / second / 1e9 for amount, second in zip(amounts, seconds, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python bench/tiles.py", description=__doc__)
    parser.add_argument("--types", default=TYPES.replace(" ", ","))
    parser.add_argument("--isa", default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    facts = {}
    compiler = KernelCompiler(choose_isa(options.isa))
    layouts = [(name, layout_for(QuantType[name])) for name in options.types.split(",")]
    largest = max(layout.tiles(_LARGE[0]) * layout.tile_bytes(_LARGE[1]) for _, layout in layouts)
    weights = huge_pages(largest)
    print(f"{compiler.isa.name}, one core; {_LARGE[0]} x {_LARGE[1]} from memory, {_SMALL[0]} x {_SMALL[1]} in cache")
    print(f"{'type':8}{'bits':>7}{'memory':>10}{'of read':>9}{'cache':>10}{'block':>13}")
    for name, layout in layouts:
        memory, read, cache, block = measure(layout, compiler, weights, options.rounds)
        facts |= {f"{name}_of_read": memory / read, f"{name}_gmac_s": block}
        bits = 8 * layout.tile_bytes(_LARGE[1]) / (16 * _LARGE[1])
        print(f"{name:8}{bits:7.3f}{memory:6.1f}GB/s{memory / read:9.0%}{cache:6.1f}GB/s{block:8.1f}GMAC/s")
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
