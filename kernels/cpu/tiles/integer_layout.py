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
from .layout import CACHE_LINE, Activation, TileLayout, emit_prefetch
from .packings import Packing
from .pieces import BLOCK, ROWS, Piece
from .scalings import Factors, Scales, Scaling, times
from .sources import CodeSource

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A small part beside a large one, again and again, with the large ones on whole cache lines.

    The large part's size is a multiple of a line. Where the small one is half a line, the odd pairs begin in the middle
    of a line: there the small part comes first, in even pairs last (6 to 8% faster from memory than always first).
    """

    small: int
    large: int

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self.small + self.large

    @property
    def _alternates(self) -> bool:
        return self.small % CACHE_LINE == CACHE_LINE // 2 and self.large % CACHE_LINE == 0

    def join(self, small: Bytes, large: Bytes) -> Bytes:
        """Parts uint8 [n, count, small] and [n, count, large] as [n, count, size]."""
        both = np.empty((*small.shape[:2], self.size), np.uint8)
        both[..., : self.small], both[..., self.small :] = small, large
        if self._alternates:
            both[:, ::2, : self.large], both[:, ::2, self.large :] = large[:, ::2], small[:, ::2]
        return both

    def emit_offsets(self, e: Emitter, index: Offset) -> tuple[Offset, Offset]:
        """Where the two parts of a pair start."""
        if not self._alternates:
            return 0, self.small
        odd = e.bit_and(e.integer(index), 1)
        return e.mul(e.sub(1, odd), self.large), e.mul(odd, self.small)


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
        return columns // (BLOCK * self.scaling.super_block) * self._super.size

    @property
    def _block(self) -> _Pair:
        return _Pair(self.scaling.block_bytes, self.packing.block_bytes)

    @property
    def _super(self) -> _Pair:
        return _Pair(self.scaling.header_bytes, self.scaling.super_block * self._block.size)

    def _pack_piece(self, tensor: Tensor, target: Bytes) -> None:
        piece = Piece(tensor)
        headers, scales = self.scaling.pack(piece)
        vectors = self.source.vectors(piece, self.packing).view(np.uint8).reshape(*scales.shape[:2], -1)
        blocks = self._block.join(scales, vectors)
        if self.scaling.header_bytes:
            blocks = self._super.join(headers, blocks.reshape(*headers.shape[:2], -1))
        target[:] = blocks.reshape(piece.tiles, -1)

    def emit_dot(
        self,
        e: Emitter,
        tile: Value,
        blocks: Offset,
        activations: Sequence[Value],
        refinements: Offset = 0,
        *,
        first: Offset = 0,
        beside: Callable[[], None] | None = None,
    ) -> list[Value]:
        """See TileLayout."""
        scaling = self.scaling
        codes = codes_for(e.isa, self.packing.bits, not scaling.has_minimum, self.groups)
        tile, rows = e.pointer(tile), [e.pointer(activation) for activation in activations]
        first_super = e.div(e.integer(first), scaling.super_block)
        # Without minimums the whole result is scaled at the end. With them the scales are, and where a block has two
        # groups a minimum is multiplied with what the record holds: the sum of q times -128.
        factors = Factors()
        if scaling.has_minimum:
            factors = Factors(codes.sum_scale, 1.0 if codes.groups == 1 else -1.0 / ZERO_POINT)

        def super_at(index: Value) -> tuple[Sequence[Value], Value]:
            """The header of a super-block and where its blocks start."""
            start = e.at(tile, e.mul(index, self._super.size))
            header_at, blocks_at = self._super.emit_offsets(e, index) if scaling.header_bytes else (0, 0)
            return scaling.emit_header(e, e.at(start, header_at), factors), e.at(start, blocks_at)

        def block(
            header: Sequence[Value], at: Value, number: Value, records: Sequence[Value], totals: Sequence[Value]
        ) -> list[Value]:
            scales_at, codes_at = self._block.emit_offsets(e, number)
            scales = scaling.emit(e, header, e.at(at, scales_at), factors)
            words = self.packing.emit_words(e, e.at(at, codes_at), codes.top)
            integers = emit_sums(e, words, codes, records)
            tokens = zip(totals, integers, records, strict=True)
            return [_accumulate(e, total, sums, scales, record) for total, sums, record in tokens]

        def super_block(index: Value, totals: list[Value]) -> list[Value]:
            header, start = super_at(e.add(first_super, index))
            before = e.mul(index, scaling.super_block)

            def one(i: Value, inner: list[Value]) -> list[Value]:
                at, number = e.at(start, e.mul(i, self._block.size)), e.add(before, i)
                emit_prefetch(e, at, self._block.size, len(rows))
                if beside is not None:
                    beside()
                records = [e.at(row, e.mul(number, RECORD_BYTES)) for row in rows]
                return block(header, at, e.add(number, first), records, inner)

            if scaling.super_block == 1:
                return one(e.integer(0), totals)
            return e.loop(scaling.super_block, totals, one)

        def refine(row: Value, total: Value) -> Value:
            entries = e.at(row, e.mul(e.integer(blocks), RECORD_BYTES))

            def one(i: Value, inner: list[Value]) -> list[Value]:
                entry = e.at(entries, e.mul(i, REFINEMENT_BYTES))
                number = e.convert(e.load(I32, entry, RECORD_BYTES), I64)
                header, start = super_at(e.div(number, scaling.super_block))
                at = e.at(start, e.mul(e.remainder(number, scaling.super_block), self._block.size))
                return block(header, at, number, [entry], inner)

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
