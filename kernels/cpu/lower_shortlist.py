"""The head in mode turbo: a coarse one guesses all logits, then those of likely tokens are computed exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor, dequantize, quantize

from .activation_format import FLOATS, RECORDS
from .lower_correction import add_corrected
from .operation import Kind
from .page_types import padded
from .shortlist import exact_logits, find_largest
from .sparse.codes import codes_of, units_of
from .sparse.rows import NeuronRows, pack_rows, row_bytes
from .step_state import Word

if TYPE_CHECKING:
    from localllm.kernels.spec import Head
    from localllm.kernels.turbo import Shortlist

    from .lowering import Lowering
    from .normalise import NormWeights

_ROWS_AT_ONCE = 4096
_COARSE = QuantType.Q4_0


def coarse_head(weight: Tensor) -> Tensor:
    """The head in Q4_0."""
    parts = [
        quantize(np.asarray(dequantize(weight.row_slice(i, min(i + _ROWS_AT_ONCE, weight.rows))), np.float32), _COARSE)
        for i in range(0, weight.rows, _ROWS_AT_ONCE)
    ]
    return Tensor("coarse head", _COARSE, weight.shape, np.concatenate(parts))


def lower_shortlist(lowering: Lowering, head: Head, norm: NormWeights, shortlist: Shortlist, row_list: int) -> None:
    """Fill the logits of the output rows; padding columns have those of rows of zeros."""
    environment, count = lowering.environment, Word.OUTPUT_ROWS
    weights, weight = environment.weights, head.linear.weight
    sources = lowering.prepare(
        "head", norm, lowering.x, lowering.blocks, [RECORDS, FLOATS], row_list=row_list, kind=Kind.HEAD
    )
    coarse = weights.matrix("coarse head", [weights.derived("coarse head", lambda: coarse_head(weight))])
    width = padded(environment.spec.vocabulary_size)
    codes, units = codes_of(weight.quant_type), units_of(weight.columns)
    assert codes is not None  # by `check_shortlist`
    address = weights.region(
        "head rows", weight.rows * row_bytes(codes, units), lambda target: pack_rows(codes, weight, target)
    )
    logits = environment.logits
    largest = environment.workspace.private("head largest", 4 * environment.workspace.max_rows)
    chosen = environment.workspace.private("head chosen", 4 * (width + 16))
    add_corrected(lowering, "head", coarse, shortlist, weight.rows, sources=sources, target=logits, kind=Kind.HEAD)
    # Columns that only pad are never looked at: they could be the largest.
    whole = weight.rows // 16 * 16
    lowering.add(
        find_largest(logits=logits, width=whole, largest=largest, count=count),
        exact_logits(
            NeuronRows(codes, address, units),
            source=sources[FLOATS],
            logits=logits,
            width=whole,
            largest=largest,
            margin=shortlist.margin,
            chosen=chosen,
            count=count,
        ),
    )
