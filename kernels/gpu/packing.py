"""GGUF blocks to the packed layouts of `layouts.py`, in torch on the device that will hold them.

Each type is first taken apart into quants in natural order, one byte each, and scale words; then all are packed by the
same code. Bit for bit the numbers of the file, in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from localllm.gguf_io import QuantType

from .families import Form

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Rows taken apart: `quants` uint8 [N, K]; `scales` int32 [N, pairs, words]; `supers` int32 [N, K/256] or None."""

    quants: torch.Tensor
    scales: torch.Tensor
    supers: torch.Tensor | None = None


def padded_columns(columns: int) -> int:
    """Columns of a packed row: a whole number of pairs of 64."""
    return -(-columns // 64) * 64


def padded_rows(rows: int) -> int:
    """Rows of a packed matrix: whole groups of 16, so that no program looks beyond the end."""
    return -(-rows // 16) * 16


def take_apart(quant_type: QuantType, blocks: torch.Tensor) -> Parts:
    """Quants and scales of uint8 blocks [N, blocks of a row, bytes of a block], an odd last one paired with zeros."""
    return _UNPACK[quant_type](blocks)


def pack_low(quants: torch.Tensor) -> torch.Tensor:
    """The lowest four bits of uint8 quants [N, KP]: int32 [N, KP/8], block 2p in low nibbles, 2p + 1 in high ones."""
    pair = (quants & 15).view(len(quants), -1, 2, 32)
    return (pair[:, :, 0] | (pair[:, :, 1] << 4)).contiguous().view(torch.int32).view(len(quants), -1)


def pack_high(quants: torch.Tensor, bits: int) -> torch.Tensor:
    """The bits above: of 6-bit quants int32 [N, KP/16], of 5-bit ones [N, KP/32].

    Column i of a pair's blocks makes a field (low block's bits, then the high block's above them); fields of columns
    i, i + 16 (6 bits) or i, i + 8, i + 16, i + 24 (5 bits) share a byte.
    """
    pair = (quants >> 4).view(len(quants), -1, 2, 32)
    width = bits - 4
    field = pair[:, :, 0] | (pair[:, :, 1] << width)
    shared = 4 // width
    field = field.view(len(quants), -1, shared, 32 // shared)
    byte = field[:, :, 0].clone()
    for i in range(1, shared):
        byte |= field[:, :, i] << (2 * width * i)
    return byte.contiguous().view(torch.int32).view(len(quants), -1)


def interleave(words: torch.Tensor) -> torch.Tensor:
    """Scale words [N, n, w] as [N/4, n, w, 4]: four rows side by side."""
    rows, count, width = words.shape
    return words.view(rows // 4, 4, count, width).permute(0, 2, 3, 1).contiguous()


def pad(x: torch.Tensor, size: int, dimension: int) -> torch.Tensor:
    """`x` with zeros appended until `dimension` has `size` entries."""
    missing = size - x.shape[dimension]
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[dimension] = missing
    return torch.cat([x, torch.zeros(shape, dtype=x.dtype, device=x.device)], dimension)


def pair_words(halves: torch.Tensor) -> torch.Tensor:
    """Two bytes of a block each, uint8 [N, blocks, 2]: int32 [N, pairs, 1], the even block in the low half."""
    blocks = halves.shape[1]
    return pad(halves, blocks + blocks % 2, 1).reshape(len(halves), -1).view(torch.int32).unsqueeze(-1)


def _pad_pairs(quants: torch.Tensor) -> torch.Tensor:
    return pad(quants, padded_columns(quants.shape[1]), 1)


def _nibbles(data: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 2n]: all low nibbles, then all high ones."""
    return torch.cat([data & 15, data >> 4], -1)


def _bits(data: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to their bits [..., 8n], lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=data.device)
    return ((data[..., None] >> shifts) & 1).flatten(-2)


def _q4_0(blocks: torch.Tensor) -> Parts:
    return Parts(_pad_pairs(_nibbles(blocks[..., 2:]).flatten(1)), pair_words(blocks[..., :2]))


def _q4_1(blocks: torch.Tensor) -> Parts:
    scales = torch.cat([pair_words(blocks[..., :2]), pair_words(blocks[..., 2:4])], -1)
    return Parts(_pad_pairs(_nibbles(blocks[..., 4:]).flatten(1)), scales)


def _q5_0(blocks: torch.Tensor) -> Parts:
    quants = _nibbles(blocks[..., 6:]) | (_bits(blocks[..., 2:6]) << 4)
    return Parts(_pad_pairs(quants.flatten(1)), pair_words(blocks[..., :2]))


def _q5_1(blocks: torch.Tensor) -> Parts:
    quants = _nibbles(blocks[..., 8:]) | (_bits(blocks[..., 4:8]) << 4)
    scales = torch.cat([pair_words(blocks[..., :2]), pair_words(blocks[..., 2:4])], -1)
    return Parts(_pad_pairs(quants.flatten(1)), scales)


def _q8_0(blocks: torch.Tensor) -> Parts:
    return Parts(_pad_pairs(blocks[..., 2:].flatten(1)), pair_words(blocks[..., :2]))


def _super_scales(packed: torch.Tensor) -> torch.Tensor:
    """The 12 packed bytes of a K-quant to [..., 8, 2] bytes: 6-bit scale and minimum of each block of 32."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minimums = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    return torch.stack([scales, minimums], -1)


def _factors(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.int32).view(len(blocks), -1)


def _q4_k(blocks: torch.Tensor) -> Parts:
    quants = _nibbles(blocks[..., 16:].unflatten(-1, (4, 32)))
    scales = _super_scales(blocks[..., 4:16]).flatten(1, 2)
    return Parts(quants.flatten(1), pair_words(scales), _factors(blocks[..., :4]))


def _q5_k(blocks: torch.Tensor) -> Parts:
    low = _nibbles(blocks[..., 48:].unflatten(-1, (4, 32))).flatten(-2)
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    high = ((blocks[..., None, 16:48] >> shifts) & 1).flatten(-2)
    scales = _super_scales(blocks[..., 4:16]).flatten(1, 2)
    return Parts((low | (high << 4)).flatten(1), pair_words(scales), _factors(blocks[..., :4]))


def _q6_k(blocks: torch.Tensor) -> Parts:
    low = blocks[..., :128].unflatten(-1, (2, 64))
    high = blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    quants = _nibbles(low).flatten(-2) | (((high >> shifts) & 3) << 4).flatten(-3)
    scales = blocks[..., 192:208].flatten(1).contiguous().view(torch.int32).unsqueeze(-1)
    return Parts(quants.flatten(1), scales, _factors(pad(blocks[..., 208:210], 4, -1)))


_UNPACK: dict[QuantType, Callable[[torch.Tensor], Parts]] = {
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
}


def grouped_words(scales: torch.Tensor, minimums: torch.Tensor | None, group_size: int, columns: int) -> torch.Tensor:
    """Form.GROUP's words of float32 scales and minimums [N, groups]: int32 [N, pairs, 8]."""
    repeat = max(1, group_size // 16)
    groups = padded_columns(columns) // 16
    parts = [scales, torch.zeros_like(scales) if minimums is None else minimums]
    words = [pad(part.repeat_interleave(repeat, 1), groups, 1).view(len(scales), -1, 4) for part in parts]
    return torch.cat(words, -1).contiguous().view(torch.int32)


__all__ = [
    "Form",
    "Parts",
    "grouped_words",
    "interleave",
    "pack_high",
    "pack_low",
    "pad",
    "padded_columns",
    "padded_rows",
    "take_apart",
]
