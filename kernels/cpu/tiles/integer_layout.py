"""Layouts of integers with scales: every quantised type is a packing of codes and a form of scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import Tensor
from localllm.kernels.cpu.activations import (
    HALF_OFFSETS,
    RECORD_BYTES,
    REFINEMENT_BYTES,
    SCALE,
    SCALED_SUM,
    ZERO_POINT,
)
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32, F32X16, I32, I64, Offset, Value

from .dot import codes_for, emit_sums
from .layout import Activation, TileLayout
from .packings import Packing
from .pieces import BLOCK, ROWS, Piece
from .scalings import Factors, Scales, Scaling, times
from .sources import CodeSource

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class IntegerLayout(TileLayout):
    """weight = integer * scale (+ minimum), with a scale for each `groups`-th of a block."""

    name: str
    packing: Packing
    scaling: Scaling
    source: CodeSource
    groups: int = 1
    activation: Activation = Activation.RECORDS

    def tile_bytes(self, columns: int) -> int:
        """Headers and blocks."""
        supers = columns // (BLOCK * self.scaling.super_block)
        return supers * self._super_bytes

    @property
    def _block_bytes(self) -> int:
        return self.scaling.block_bytes + self.packing.block_bytes

    @property
    def _super_bytes(self) -> int:
        return self.scaling.header_bytes + self.scaling.super_block * self._block_bytes

    def _pack_piece(self, tensor: Tensor, target: Bytes) -> None:
        piece, scaling = Piece(tensor), self.scaling
        supers = piece.blocks // scaling.super_block
        result = np.empty((piece.tiles, supers, self._super_bytes), np.uint8)
        headers, scales = scaling.pack(piece)
        result[..., : scaling.header_bytes] = headers
        blocks = result[..., scaling.header_bytes :].reshape(piece.tiles, piece.blocks, self._block_bytes)
        blocks[..., : scaling.block_bytes] = scales
        vectors = self.source.vectors(piece, self.packing)
        blocks[..., scaling.block_bytes :] = vectors.view(np.uint8).reshape(piece.tiles, piece.blocks, -1)
        result[..., scaling.header_bytes :] = blocks.reshape(piece.tiles, supers, -1)
        target[:] = result.reshape(piece.tiles, -1)

    def emit_dot(
        self, e: Emitter, tile: Value, blocks: Offset, activations: Sequence[Value], refinements: Offset = 0
    ) -> list[Value]:
        """See TileLayout."""
        scaling = self.scaling
        codes = codes_for(e.isa, self.packing.bits, not scaling.has_minimum, self.groups)
        tile, rows = e.pointer(tile), [e.pointer(activation) for activation in activations]
        # Without minimums the whole result is scaled at the end. With them the scales are, and where a block has two
        # groups a minimum is multiplied with what the record holds: the sum of q times -128.
        factors = Factors()
        if scaling.has_minimum:
            factors = Factors(codes.sum_scale, 1.0 if codes.groups == 1 else -1.0 / ZERO_POINT)

        def block(
            start: Value, header: Sequence[Value], i: Offset, records: Sequence[Value], totals: Sequence[Value]
        ) -> list[Value]:
            at = e.at(start, e.mul(e.integer(i), self._block_bytes), scaling.header_bytes)
            scales = scaling.emit(e, header, at, factors)
            words = self.packing.emit_words(e, e.at(at, scaling.block_bytes), codes.top)
            integers = emit_sums(e, words, codes, records)
            tokens = zip(totals, integers, records, strict=True)
            return [_accumulate(e, total, sums, scales, record) for total, sums, record in tokens]

        def super_block(index: Value, totals: list[Value]) -> list[Value]:
            start = e.at(tile, e.mul(index, self._super_bytes))
            header, first = scaling.emit_header(e, start, factors), e.mul(index, scaling.super_block)

            def one(i: Offset, inner: list[Value]) -> list[Value]:
                record = e.mul(e.add(first, i), RECORD_BYTES)
                return block(start, header, i, [e.at(row, record) for row in rows], inner)

            return one(0, totals) if scaling.super_block == 1 else e.loop(scaling.super_block, totals, one)

        def refine(row: Value, total: Value) -> Value:
            entries = e.at(row, e.mul(e.integer(blocks), RECORD_BYTES))

            def one(number: Value, inner: list[Value]) -> list[Value]:
                entry = e.at(entries, e.mul(number, REFINEMENT_BYTES))
                index = e.convert(e.load(I32, entry, RECORD_BYTES), I64)
                start = e.at(tile, e.mul(e.div(index, scaling.super_block), self._super_bytes))
                header = scaling.emit_header(e, start, factors)
                return block(start, header, e.remainder(index, scaling.super_block), [entry], inner)

            return e.loop(refinements, [total], one)[0]

        count = e.div(e.integer(blocks), scaling.super_block)
        totals = e.loop(count, [e.constant(F32X16, 0.0)] * len(rows), super_block)
        if not (isinstance(refinements, int) and refinements == 0):
            totals = _each_in_turn(e, refine, rows, totals)
        if not scaling.has_minimum:
            totals = [times(e, total, codes.sum_scale) for total in totals]
        return totals


def _each_in_turn(
    e: Emitter, function: Callable[[Value, Value], Value], rows: Sequence[Value], totals: Sequence[Value]
) -> list[Value]:
    """function(row, total) for every token; several tokens share one copy of its code."""
    if len(rows) == 1:
        return [function(rows[0], totals[0])]
    sums, addresses = e.scratch(64 * len(rows)), e.scratch(8 * len(rows))
    for token, (row, total) in enumerate(zip(rows, totals, strict=True)):
        e.store(e.address(row), addresses, 8 * token)
        e.store(total, sums, 64 * token, align=64)

    def one(token: Value, _: list[Value]) -> None:
        at = e.at(sums, e.mul(token, 64))
        row = e.pointer(e.load(I64, addresses, e.mul(token, 8)))
        e.store(function(row, e.load(F32X16, at, align=64)), at, align=64)

    e.loop(len(rows), [], one)
    return [e.load(F32X16, sums, 64 * token, align=64) for token in range(len(rows))]


def _accumulate(e: Emitter, total: Value, integers: Sequence[Value], scales: Scales, record: Value) -> Value:
    """Add a block's products of one token."""
    floats = [e.convert(group, F32) for group in integers]
    scale = e.load_splat(F32, ROWS, record, SCALE)
    if len(floats) == 1:
        for minimum in scales.minimums:
            total = e.fma(minimum, e.load_splat(F32, ROWS, record, SCALED_SUM), total)
        return e.fma(scales.scales[0], e.mul(floats[0], scale), total)
    products = e.fma(scales.scales[1], floats[1], e.mul(scales.scales[0], floats[0]))
    for minimum, offset in zip(scales.minimums, HALF_OFFSETS, strict=bool(scales.minimums)):
        products = e.fma(minimum, e.convert(e.load_splat(I32, ROWS, record, offset), F32), products)
    return e.fma(products, scale, total)
