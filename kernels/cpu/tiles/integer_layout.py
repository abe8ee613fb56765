"""Layouts of integers with scales: every quantised type is a packing of codes and a form of scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import Tensor
from localllm.kernels.cpu.activations import HALF_OFFSETS, RECORD_BYTES, SCALE, SCALED_SUM, ZERO_POINT
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32, F32X16, I32, Offset, Value

from .dot import WORDS, Codes, emit_sums, sum_scale
from .layout import Activation, TileLayout
from .packings import WORD_BYTES, Levels, Packing
from .scalings import BLOCK, ROWS, Piece, Scales, Scaling

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class IntegerLayout(TileLayout):
    """weight = integer * scale (+ minimum), with a scale for each `groups`-th of a block.

    `codes_start`: where the codes start in the file's block, if they lie there in the order of our words already.
    """

    name: str
    packing: Packing
    scaling: Scaling
    groups: int = 1
    codes_start: int | None = None
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

    @property
    def _codes(self) -> Codes:
        return Codes(self.packing.bits, not self.scaling.has_minimum, self.groups)

    def _pack_piece(self, tensor: Tensor, target: Bytes) -> None:
        piece, scaling = Piece(tensor), self.scaling
        supers = piece.blocks // scaling.super_block
        result = np.empty((piece.tiles, supers, self._super_bytes), np.uint8)
        headers, scales = scaling.pack(piece)
        result[..., : scaling.header_bytes] = headers
        blocks = result[..., scaling.header_bytes :].reshape(piece.tiles, piece.blocks, self._block_bytes)
        blocks[..., : scaling.block_bytes] = scales
        blocks[..., scaling.block_bytes :] = self._packed_codes(piece)
        result[..., scaling.header_bytes :] = blocks.reshape(piece.tiles, supers, -1)
        target[:] = result.reshape(piece.tiles, -1)

    def _packed_codes(self, piece: Piece) -> Bytes:
        if self.codes_start is not None:
            packed = piece.bytes_of_blocks(self.codes_start, piece.tensor.quant_type.type_size)
            by_row = packed.reshape(piece.tiles, -1, ROWS, self.scaling.super_block, self.packing.block_bytes // ROWS)
            by_row = by_row.transpose(0, 1, 3, 2, 4).reshape(piece.tiles * piece.blocks, ROWS, -1)
            if self.packing.bits == 8 and not isinstance(self.packing, Levels):
                by_row = by_row ^ np.uint8(ZERO_POINT)
            dwords = np.ascontiguousarray(by_row).view(np.uint32)
            vectors = np.ascontiguousarray(dwords.transpose(0, 2, 1)).view(np.uint8)
        else:
            integers = self._integers(piece).reshape(piece.tiles, ROWS, piece.blocks, WORDS, 4)
            words = np.ascontiguousarray(integers.transpose(0, 2, 3, 1, 4))
            vectors = self.packing.pack(words.reshape(-1, WORDS, WORD_BYTES))
        return vectors.reshape(piece.tiles, piece.blocks, -1)

    def _integers(self, piece: Piece) -> Bytes:
        quants = piece.decomposition.quants
        if isinstance(self.packing, Levels):
            return self.packing.indices_of(quants)
        zero = 0 if self.scaling.has_minimum else 1 << (self.packing.bits - 1)
        return quants.view(np.uint8) + np.uint8(zero)

    def emit_dot(self, e: Emitter, tile: Value, blocks: Offset, activations: Sequence[Value]) -> list[Value]:
        """See TileLayout."""
        scaling, tokens = self.scaling, len(activations)
        tile, rows = e.pointer(tile), [e.pointer(activation) for activation in activations]
        zero = e.constant(F32X16, 0.0)

        def one_block(block: Value, header: Sequence[Value], record: Value, sums: list[Value]) -> list[Value]:
            records = [e.at(row, e.mul(record, RECORD_BYTES)) for row in rows]
            return self._emit_block(e, scaling.emit(e, header, block), block, records, sums)

        def super_block(index: Value, sums: list[Value]) -> list[Value]:
            start = e.at(tile, e.mul(index, self._super_bytes))
            header, first = scaling.emit_header(e, start), e.mul(index, scaling.super_block)
            if scaling.super_block == 1:
                return one_block(start, header, first, sums)
            return e.loop(
                scaling.super_block,
                sums,
                lambda i, inner: one_block(
                    e.at(start, e.mul(i, self._block_bytes), scaling.header_bytes), header, e.add(first, i), inner
                ),
            )

        count = e.div(e.integer(blocks), scaling.super_block)
        sums = e.loop(count, [zero] * tokens, super_block)
        if scaling.has_minimum:
            return sums
        return [e.mul(total, sum_scale(e.isa, self._codes)) for total in sums]

    def _emit_block(
        self, e: Emitter, scales: Scales, block: Value, records: Sequence[Value], sums: Sequence[Value]
    ) -> list[Value]:
        words = self.packing.emit_words(e, e.at(block, self.scaling.block_bytes))
        integers = emit_sums(e, words, self._codes, records)
        factors, minimums = list(scales.scales), list(scales.minimums)
        if minimums:  # without them the whole result is scaled at the end
            factors = [e.mul(factor, sum_scale(e.isa, self._codes)) for factor in factors]
        if self.groups == 2:
            minimums = [e.mul(minimum, -1.0 / ZERO_POINT) for minimum in minimums]
        results = []
        for record, groups, total in zip(records, integers, sums, strict=True):
            floats = [e.convert(group, F32) for group in groups]
            scale = e.load_splat(F32, ROWS, record, SCALE)
            if self.groups == 1:
                for minimum in minimums:
                    total = e.fma(minimum, e.load_splat(F32, ROWS, record, SCALED_SUM), total)
                results.append(e.fma(factors[0], e.mul(floats[0], scale), total))
                continue
            products = e.fma(factors[1], floats[1], e.mul(factors[0], floats[0]))
            for minimum, offset in zip(minimums, HALF_OFFSETS, strict=bool(minimums)):
                offsets = e.convert(e.load_splat(I32, ROWS, record, offset), F32)
                products = e.fma(minimum, offsets, products)
            results.append(e.fma(products, scale, total))
        return results
