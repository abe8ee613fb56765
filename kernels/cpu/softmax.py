"""Online softmax over fixed chunks of keys, the arithmetic that every attention kernel shares.

A query's keys are cut into chunks of 256 by logical index: first those of the sinks, then, from the first key of the
window, all others. Within a chunk the scores are complete before the values are summed; chunks are merged in order.
So a query's result does not depend on which kernel computed it, in which batch, or by how many threads, and a long
context can be divided among threads chunk by chunk. Scores are in units of log 2, so that exp2 serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from .ir_types import I32, Value, vector
from .page_types import LANES
from .vector_math import tanh

if TYPE_CHECKING:
    from .emit import Emitter

CHUNK = 256
CHUNK_PAGES = CHUNK // LANES
LOG2_E = 1.4426950408889634
MASKED = -1e30  # the score of a key that must not be seen
_NOTHING = -1e29  # scores below are masked ones
_ROUNDING = 12582912.0
# Minimax polynomial of 2**f on |f| <= 1/2 with the constant fixed at one, so that exp2(0) is exactly 1; 9e-8 relative.
_EXP2 = (1.3264727e-3, 9.6715127e-3, 5.5507337e-2, 2.4022242e-1, 6.9314698e-1)


class RowPlan(IntEnum):
    """Words of what one row may see in a cache group: int64, eight to a row."""

    SINKS = 0  # logical indices below are sink keys
    LAST = 1  # the last visible logical index: the row's own
    LOW = 2  # the first visible logical index beyond the sinks
    LOW_SINK = 3  # the first visible sink
    PAGES = 4  # address of the sequence's int32 page table
    TREE = 5  # address of a byte for each key from TREE_START on, 0 if there is no tree: non-zero is visible
    TREE_START = 6  # a multiple of the page size
    POSITION = 7  # the row's own
    SIZE = 8


def exp2(e: Emitter, x: Value) -> Value:
    """2**x of float32 lanes for x <= 0; below -126 it stays at 2**-126."""
    x = e.max(x, -126.0)
    shifted = e.add(x, _ROUNDING)
    fraction = e.sub(x, e.sub(shifted, _ROUNDING))
    p = e.constant(x.type, _EXP2[0])
    for coefficient in _EXP2[1:]:
        p = e.fma(p, fraction, e.constant(x.type, coefficient))
    p = e.fma(p, fraction, e.constant(x.type, 1.0))
    kind = vector(I32, x.type.count)
    exponent = e.shift_left(e.bitcast(shifted, kind), 23)  # the low bits of `shifted` are the rounded x
    return e.bitcast(e.add(e.bitcast(p, kind), exponent), x.type)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a row's keys, inside a kernel."""

    start: Value  # logical index of its first key, a multiple of the page size
    stop: Value  # behind its last key
    low: Value  # the first visible key, may be below start
    is_sink: Value


def chunk_of(e: Emitter, plan: Value, index: Value) -> Chunk:
    """The `index`-th chunk of the row whose RowPlan is at `plan`."""
    sinks, last = e.field(plan, RowPlan.SINKS), e.field(plan, RowPlan.LAST)
    sink_chunks = e.div(e.add(sinks, CHUNK - 1), CHUNK)
    is_sink = e.compare("<", index, sink_chunks)
    start = e.select(is_sink, e.mul(index, CHUNK), e.add(sinks, e.mul(e.sub(index, sink_chunks), CHUNK)))
    end = e.select(is_sink, sinks, e.add(last, 1))
    low = e.select(is_sink, e.field(plan, RowPlan.LOW_SINK), e.field(plan, RowPlan.LOW))
    return Chunk(start, e.min(e.add(start, CHUNK), end), low, is_sink)


def key_numbers(e: Emitter, first: Value) -> Value:
    """The logical indices of a page's keys as int32 lanes."""
    return e.add(e.constant(vector(I32, LANES), range(LANES)), e.splat(e.convert(first, I32), LANES))


def softcap(e: Emitter, scores: Value, cap: float | None) -> Value:
    """cap * tanh(s / cap), in units of log 2; without a cap the query carries the factor already."""
    if cap is None:
        return scores
    return e.mul(tanh(e, e.mul(scores, 1.0 / cap)), cap * LOG2_E)


def query_scale(scale: float, cap: float | None) -> float:
    """What a query is multiplied by before the scores are taken."""
    return scale if cap is not None else scale * LOG2_E


def weights_of(e: Emitter, scores: Value, largest: Value) -> Value:
    """exp2(scores - largest), zero where masked."""
    weights = exp2(e, e.sub(scores, largest))
    return e.select(e.compare(">", scores, _NOTHING), weights, 0.0)


def merge_factors(e: Emitter, old: Value, new: Value) -> tuple[Value, Value, Value]:
    """(largest, factor of the old sums, factor of the new sums) for two partial softmaxes with these maxima."""
    largest = e.max(old, new)
    return largest, exp2(e, e.sub(old, largest)), exp2(e, e.sub(new, largest))


def merge(e: Emitter, old: Value, new: Value, old_factor: Value, new_factor: Value) -> Value:
    """Sums of two partial softmaxes together."""
    return e.fma(new, new_factor, e.mul(old, old_factor))
