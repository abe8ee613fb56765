"""Which neurons a guess names, and which of them fire: the beginning of a feed-forward block in mode turbo.

A score for every neuron comes from few bytes; the gates of those with a high one are computed exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import dequantize
from localllm.kernels.spec import Activation

from .activation_format import FLOATS, RECORDS
from .linear import Matrix, linear
from .lower_correction import add_corrected
from .lower_feed_forward import padded_order
from .lowering import BLOCK, Lowering, blocks_of
from .normalise import NormKind, NormWeights, activate
from .operation import Kind, Rows
from .sparse.active import ActiveLists, active_bytes, compact, keep_firing
from .sparse.codes import codes_of, units_of
from .sparse.guessed_gates import GateRows, guessed_gates
from .sparse.levels import level_rows, levels_bytes
from .sparse.records import RecordRow, pack_record_rows, row_codes
from .sparse.rows import NeuronRows, pack_rows, row_bytes, up_rows
from .tiles.sign_layout import SIGNS

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.spec import FeedForward, Linear
    from localllm.kernels.turbo import LayerTurbo, Sketch

    from .activation_format import Form

TILE = 16


def add_guess(
    lowering: Lowering, index: int, block: FeedForward, turbo: LayerTurbo, active: ActiveLists
) -> dict[Form, Rows]:
    """Fill the lists of neurons that fire, as far as the guess sees them; returns norm(x) in float32 and records."""
    name = f"layer {index} feed-forward"
    norm = lowering.norm(f"{name} norm", block.norm, lowering.width)
    sources = lowering.prepare("x", norm, lowering.x, lowering.blocks, [RECORDS, FLOATS])
    if turbo.sketch is not None:
        scores = _sketched(lowering, name, block, turbo.sketch, sources)
    else:
        scores = _stored(lowering, name, block)
    guessed = ActiveLists(lowering.local("guessed neurons", active_bytes(active.blocks)), active.blocks)
    alone = {"share": lowering.everyone, "kind": Kind.GATE_UP, "barrier": not lowering.single}
    lowering.add(
        compact(None, gate=scores, active=guessed, thresholds=thresholds_of(lowering, name, turbo), **alone)  # type: ignore[arg-type]
    )
    gates = _gates(lowering, name, block.gate or block.up, sources[FLOATS], guessed)
    lowering.add(keep_firing(block.activation, gate=gates, guessed=guessed, active=active, **alone))  # type: ignore[arg-type]
    return sources


def thresholds_of(lowering: Lowering, name: str, turbo: LayerTurbo) -> int:
    """Address of the thresholds; what pads them is never passed."""
    count = len(turbo.thresholds)
    padded = np.full(count + -count % BLOCK, np.inf, np.float32)
    padded[:count] = turbo.thresholds
    return lowering.environment.weights.vector(f"{name} thresholds", lambda: padded)


def _sketched(lowering: Lowering, name: str, block: FeedForward, sketch: Sketch, sources: dict[Form, Rows]) -> Rows:
    weights, weight = lowering.environment.weights, (block.gate or block.up).weight
    tiles = blocks_of(weight.rows) * BLOCK // TILE
    size = SIGNS.tile_bytes(weight.columns)

    def fill(target: npt.NDArray[np.uint8]) -> None:
        packed = target.reshape(tiles, size)
        SIGNS.repack(weight, packed, padded_order(weight.rows))
        SIGNS.fill_scales(packed, sketch.scales)

    signs = Matrix(
        layout=SIGNS,
        address=weights.region(f"{name} signs", tiles * size, fill),
        tiles=tiles,
        tile_bytes=size,
        blocks=SIGNS.blocks(weight.columns),
        bias=weights.vector(f"{name} sketch bias", lambda: _padded(sketch.bias)),
    )
    scores = lowering.shared("scores", 4 * BLOCK * blocks_of(weight.rows))
    order = padded_order(weight.rows)
    add_corrected(
        lowering, name, signs, sketch, weight.rows, sources=sources, target=scores, order=order, kind=Kind.GATE_UP
    )
    return scores


def _stored(lowering: Lowering, name: str, block: FeedForward) -> Rows:
    """second(relu(first(x))) of the residual stream before its norm, as PowerInfer's files mean it."""
    assert block.predictor is not None
    weights = lowering.environment.weights
    first, second = block.predictor
    matrices = [
        weights.matrix(f"{name} predictor {i}", [one.weight], padded_order(one.weight.rows), [one.bias])
        for i, one in enumerate((first, second))
    ]
    forms = [matrix.layout.activation for matrix in matrices]
    nothing = NormWeights(NormKind.NONE, lowering.width)
    x = lowering.prepare("plain x", nothing, lowering.x, lowering.blocks, [forms[0]], kind=Kind.GATE_UP)[forms[0]]
    rank = blocks_of(first.weight.rows)
    middle = lowering.shared("predictor", 4 * BLOCK * rank)
    lowering.add(linear(matrices[0], source=x, target=middle, kind=Kind.GATE_UP))
    positive = lowering.local(f"predictor {forms[1].name}", rank * forms[1].value)
    lowering.add(
        activate(
            Activation.RELU,
            gate=None,
            up=middle,
            target=positive,
            blocks=rank,
            target_format=forms[1],
            share=lowering.everyone,
            kind=Kind.GATE_UP,
        )
    )
    scores = lowering.shared("scores", 4 * BLOCK * blocks_of(second.weight.rows))
    lowering.add(linear(matrices[1], source=positive, target=scores, kind=Kind.GATE_UP))
    return scores


def _gates(lowering: Lowering, name: str, gate: Linear, x: Rows, guessed: ActiveLists) -> Rows:
    """The gates of the guessed neurons in the order of their lists."""
    hidden = lowering.shared("guessed gates", 4 * BLOCK * (guessed.blocks + 1))
    weights, weight = lowering.environment.weights, gate.weight
    bias = 0
    if gate.bias is not None:
        tensor = gate.bias
        bias = weights.vector(f"{name} guessed bias", lambda: np.asarray(dequantize(tensor), np.float32).reshape(-1))
    codes, units = row_codes(weight), units_of(weight.columns)
    if codes is None:
        wide = codes_of(weight.quant_type)
        assert wide is not None  # by `turbo_support`
        address = weights.region(
            f"{name} gate rows", weight.rows * row_bytes(wide, units), lambda target: pack_rows(wide, weight, target)
        )
        lowering.add(
            up_rows(
                NeuronRows(wide, address, units, bias),
                source=x,
                active=guessed,
                hidden=hidden,
                positive=False,
                count=lowering.count,
                kind=Kind.GATE_UP,
            )
        )
        return hidden
    row = RecordRow(codes, 0, units)
    stride = GateRows(row, 0).stride

    def fill(target: npt.NDArray[np.uint8]) -> None:
        target[:] = 0
        pack_record_rows(row, weight, target.reshape(weight.rows, stride))

    address = weights.region(f"{name} gate rows", weight.rows * stride, fill)
    levels = lowering.local(f"gate levels {codes.name}", levels_bytes(units))
    lowering.add(
        level_rows(
            source=x,
            target=levels,
            blocks=units,
            zero_point=0 if codes.minimum else codes.zero_point,
            share=lowering.everyone,
            kind=Kind.GATE_UP,
            barrier=not lowering.single,
        ),
        guessed_gates(
            GateRows(row, address, bias),
            source=levels,
            guessed=guessed,
            hidden=hidden,
            count=lowering.count,
            kind=Kind.GATE_UP,
        ),
    )
    return hidden


def _padded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    result = np.zeros(len(values) + -len(values) % BLOCK, np.float32)
    result[: len(values)] = values
    return result
