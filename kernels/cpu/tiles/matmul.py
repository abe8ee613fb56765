"""A plain matrix product over tiles as a kernel of its own: tests, benchmarks, and the pattern for fused operations."""

from __future__ import annotations

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import Value

from .layout import TileLayout
from .pieces import ROWS

FIELDS = (
    "tiles",  # address of the first tile
    "tile_bytes",
    "first_tile",
    "last_tile",  # exclusive
    "blocks",  # of an activation row
    "activations",  # address of the first row
    "activation_stride",  # bytes
    "tokens",  # a multiple of the kernel's own number
    "outputs",  # float32 [tokens, 16 * tiles]
    "output_stride",  # bytes
    "repeats",  # the whole product again: for benchmarks
)


def matmul_source(layout: TileLayout, tokens: int) -> KernelSource:
    """outputs[m, 16 t + r] = weights[16 t + r] . activations[m], `tokens` rows m at a time. The record: FIELDS."""

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        fields = dict(zip(FIELDS, e.fields(record, len(FIELDS)), strict=True))

        def tile(index: Value, carried: list[Value]) -> None:
            weights = e.at(fields["tiles"], e.mul(index, fields["tile_bytes"]))

            def some_tokens(first: Value, carried: list[Value]) -> None:
                rows = [e.at(fields["activations"], e.mul(first, fields["activation_stride"]))]
                target = e.at(fields["outputs"], e.mul(first, fields["output_stride"]), e.mul(index, 4 * ROWS))
                for _ in range(1, tokens):
                    rows.append(e.at(rows[-1], fields["activation_stride"]))
                for total in layout.emit_dot(e, weights, fields["blocks"], rows):
                    e.store(total, target)
                    target = e.at(target, fields["output_stride"])

            e.loop(fields["tokens"], [], some_tokens, step=tokens)

        def once(index: Value, carried: list[Value]) -> None:
            e.loop(fields["last_tile"], [], tile, start=fields["first_tile"])

        e.loop(fields["repeats"], [], once)

    return KernelSource(f"matmul_{layout.name}_{tokens}", "", emit)
