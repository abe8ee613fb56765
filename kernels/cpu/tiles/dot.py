"""Sums of products of unsigned weight codes and int8 activations, 16 rows side by side, on every instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localllm.kernels.cpu.activations import HALF_OFFSETS, OFFSET, ZERO_POINT
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import I1, I8, I16, I32, I32X16, Value, vector
from localllm.kernels.cpu.isa import DotProduct, Isa

WORDS = 8  # in a block of 32 inputs: word w has inputs 4 w to 4 w + 3 of 16 rows, byte 4 r + i is row r's
U8X64 = vector(I8, 64)
_LARGEST_UNSIGNED = 32767 // (2 * 127)  # two products of such codes fit into int16


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of a layout: `bits` wide, below bit `top` of their byte; `groups` (1 or 2) of inputs with a scale each.

    With a zero point, which is half of what the bits below `top` can hold, the weight is (code - zero point) * scale;
    without one it is code * scale + minimum.
    """

    bits: int
    zero_point: bool
    groups: int
    top: int

    @property
    def sum_scale(self) -> float:
        """What turns the sums into sums of products of the integers, which have no bits below them."""
        return 0.5 ** (self.top - self.bits)


def codes_for(isa: Isa, bits: int, zero_point: bool, groups: int) -> Codes:
    """Where the codes of a layout should lie in their bytes.

    At the top the zero point is 128, and a sum starts from what the activation record holds. At the bottom pmaddubsw
    overflows late, and nibbles come as easily.
    """
    bottom = isa.dot_product is DotProduct.MADDUBS or (bits == 4 and not zero_point)
    return Codes(bits, zero_point, groups, bits if bottom else 8)


def emit_sums(e: Emitter, words: Sequence[Value], codes: Codes, records: Sequence[Value]) -> list[list[Value]]:
    """The sums of (code - zero point) * q over a block: int32 of 16 rows for each token and group.

    `words` are the 8 words of the block, `records` point to the activation record of this block for each token.
    """
    offsets = (OFFSET, None) if codes.groups == 1 else HALF_OFFSETS
    whole, halves = tuple(range(WORDS)), (tuple(range(WORDS // 2)), tuple(range(WORDS // 2, WORDS)))
    # One token alone: two chains hide the latency that other tokens would hide.
    chains = [(whole, OFFSET)] if codes.groups == 1 and len(records) > 1 else list(zip(halves, offsets, strict=True))
    emit_chain = {
        DotProduct.VNNI_512: _chain_vnni_512,
        DotProduct.VNNI_256: _chain_vnni_256,
        DotProduct.MADDUBS: _chain_maddubs,
        DotProduct.PLAIN: _chain_plain,
    }[e.isa.dot_product]
    by_chain = []
    for numbers, offset in chains:
        starts = [_start(e, codes, record, offset) for record in records]
        by_chain.append(emit_chain(e, [(i, words[i]) for i in numbers], codes, records, starts))
    by_token = [list(sums) for sums in zip(*by_chain, strict=True)]
    if len(chains) > codes.groups:
        return [[e.add(*sums)] for sums in by_token]
    return by_token


def _start(e: Emitter, codes: Codes, record: Value, offset: int | None) -> Value:
    """What a sum starts from: minus the zero point times the sum of q, which is ready in the record."""
    if offset is None or not codes.zero_point:
        return e.constant(I32X16, 0)
    if codes.top < 8:
        return e.splat(e.shift_right(e.load(I32, record, offset), 8 - codes.top, signed=True), 16)
    if e.isa.dot_product is DotProduct.MADDUBS:  # `_chain_maddubs` takes the zero point off the codes
        return e.constant(I32X16, 0)
    return e.load_splat(I32, 16, record, offset)


NumberedWords = Sequence[tuple[int, Value]]


def _chain_vnni_512(
    e: Emitter, words: NumberedWords, codes: Codes, records: Sequence[Value], starts: Sequence[Value]
) -> list[Value]:
    sums = list(starts)
    for number, word in words:
        for token, record in enumerate(records):
            quants = e.bitcast(e.load_splat(I32, 16, record, 4 * number), U8X64)
            sums[token] = e.call("llvm.x86.avx512.vpdpbusd.512", I32X16, sums[token], word, quants)
    return sums


def _chain_vnni_256(
    e: Emitter, words: NumberedWords, codes: Codes, records: Sequence[Value], starts: Sequence[Value]
) -> list[Value]:
    halves = []
    for half in range(2):
        sums = [e.part(start, half, 2) for start in starts]
        for number, word in words:
            part = e.part(word, half, 2)
            for token, record in enumerate(records):
                quants = e.bitcast(e.load_splat(I32, 8, record, 4 * number), part.type)
                sums[token] = e.call("llvm.x86.avx512.vpdpbusd.256", vector(I32, 8), sums[token], part, quants)
        halves.append(sums)
    return [e.concatenate(low, high) for low, high in zip(*halves, strict=True)]


def _chain_maddubs(
    e: Emitter, words: NumberedWords, codes: Codes, records: Sequence[Value], starts: Sequence[Value]
) -> list[Value]:
    """pmaddubsw adds two products in int16: as many as cannot overflow are added up before they are widened."""
    kind, largest = vector(I16, 16), (1 << codes.top) - 1
    signed, at_once = largest > _LARGEST_UNSIGNED, max(1, _LARGEST_UNSIGNED // largest)
    results = []
    for record, start in zip(records, starts, strict=True):
        halves = []
        for half in range(2):
            total, pairs = e.part(start, half, 2), None
            for position, (number, word) in enumerate(words, 1):
                part = e.part(word, half, 2)
                quants = e.bitcast(e.load_splat(I32, 8, record, 4 * number), part.type)
                if signed:  # |code - 128| times q with the sign of code - 128
                    part = e.bit_xor(part, -ZERO_POINT)
                    quants = e.call("llvm.x86.avx2.psign.b", part.type, quants, part)
                    part = e.call("llvm.abs.v32i8", part.type, part, e.constant(I1, 0))
                products = e.call("llvm.x86.avx2.pmadd.ub.sw", kind, part, quants)
                pairs = products if pairs is None else e.add(pairs, products)
                if position % at_once == 0 or position == len(words):
                    ones = e.constant(kind, 1)
                    total = e.add(total, e.call("llvm.x86.avx2.pmadd.wd", total.type, pairs, ones))
                    pairs = None
            halves.append(total)
        results.append(e.concatenate(*halves))
    return results


def _chain_plain(
    e: Emitter, words: NumberedWords, codes: Codes, records: Sequence[Value], starts: Sequence[Value]
) -> list[Value]:
    """Even and odd bytes as int16 products (255 * 127 fits), then both halves of each int32 lane."""
    sums, kind = list(starts), vector(I16, 32)
    for number, word in words:
        wide = e.bitcast(word, kind)
        even, odd = e.bit_and(wide, 255), e.shift_right(wide, 8)
        for token, record in enumerate(records):
            quants = e.bitcast(e.load_splat(I32, 16, record, 4 * number), kind)
            quants_even = e.shift_right(e.shift_left(quants, 8), 8, signed=True)
            quants_odd = e.shift_right(quants, 8, signed=True)
            for product in (e.mul(even, quants_even), e.mul(odd, quants_odd)):
                pairs = e.bitcast(product, I32X16)
                low = e.shift_right(e.shift_left(pairs, 16), 16, signed=True)
                sums[token] = e.add(sums[token], e.add(low, e.shift_right(pairs, 16, signed=True)))
    return sums
