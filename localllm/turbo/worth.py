"""What a token costs in a layer, as bytes of one long stream, so that ways to compute it can be compared.

From measurements of decoding on a core (docs/sparse.md): pieces that lie apart come slower than a stream, short ones
most, and one-bit weights are bound by instructions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from localllm.kernels.turbo import EXTRA_BYTES

if TYPE_CHECKING:
    from localllm.gguf_io import Tensor
    from localllm.kernels.spec import FeedForward

    from .curve import Cut

_SHORT, _SHORT_SPEED = 640, 0.35  # bytes, and their speed relative to a stream
_LONG, _LONG_SPEED = 4608, 0.57
_BIT_COST = 1.7  # of a byte of signs
_CONSTANTS = 12  # bytes a neuron: scale, bias, threshold


def dense_cost(block: FeedForward) -> float:
    """All weights."""
    parts = (block.gate, block.up, block.down)
    return float(sum(part.weight.nbytes for part in parts if part is not None))


def gate_cost(block: FeedForward, cut: Cut) -> float:
    """All gates, then what the kept neurons need."""
    first, rest = _parts(block)
    return _neurons(block) * (first + cut.kept * _apart(rest))


def sketch_cost(block: FeedForward, cut: Cut) -> float:
    """A sketch, the gates of those that it names, and what those of them that fire need."""
    first, rest = _parts(block)
    coarse = _BIT_COST * block.up.weight.columns / 8 + EXTRA_BYTES + _CONSTANTS
    return _neurons(block) * (coarse + cut.kept * _apart(first) + cut.fired * _apart(rest))


def _neurons(block: FeedForward) -> int:
    return block.up.weight.rows


def _parts(block: FeedForward) -> tuple[float, float]:
    """Bytes a neuron: of the matrix that says what fires, and of the rest."""
    first = (block.gate or block.up).weight.nbytes / _neurons(block)
    return first, dense_cost(block) / _neurons(block) - first


def _apart(size: float) -> float:
    """Bytes of a stream that take as long as a piece of `size` bytes that lies alone."""
    place = math.log(max(size, 1) / _SHORT) / math.log(_LONG / _SHORT)
    return size / min(0.8, max(0.2, _SHORT_SPEED + (_LONG_SPEED - _SHORT_SPEED) * place))


def shortlist_cost(head: Tensor, candidates: float) -> float:
    """A head of 4.5 bits and its corrections, then so many rows of the head; logits are written and looked at twice."""
    coarse = head.rows * (4.5 / 8 * head.columns + EXTRA_BYTES + 6)
    return coarse + candidates * _apart(head.nbytes / head.rows)
