"""A whole model as operations: the embedding, each layer's attention and feed-forward block, the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import LatentAttention, MixtureOfExperts

from .activation_format import FLOATS
from .embedding import embed_rows, unit_rows
from .linear import Matrix, linear
from .lower_attention import lower_attention
from .lower_experts import lower_experts, lower_router
from .lower_feed_forward import lower_feed_forward
from .lower_latent_attention import lower_latent_attention
from .lower_shortlist import lower_shortlist
from .lower_sparse import lower_sparse
from .lowering import BLOCK, Lowering
from .normalise import NormWeights, finish_logits, normalise
from .operation import Kind, Operation
from .page_types import padded
from .step_state import Word

if TYPE_CHECKING:
    from .lowering import Environment


def lower(environment: Environment, *, single: bool, hidden: bool, logits: bool = False) -> list[Operation]:
    """The operations of a step of one row (`single`) or of any number, ending in `hidden` vectors, `logits` or both.

    Logits are the default.
    """
    return _model(Lowering(environment, single), hidden, logits or not hidden)


def _model(lowering: Lowering, hidden: bool, logits: bool) -> list[Operation]:
    spec = lowering.environment.spec
    _embedding(lowering)
    for index, layer in enumerate(spec.layers):
        before, block = lowering.x, layer.feed_forward
        choice = None
        if isinstance(block, MixtureOfExperts) and block.router_reads_layer_input:
            choice = lower_router(lowering, index, block, None)
        target = "second x" if layer.parallel else "x"
        if isinstance(layer.attention, LatentAttention):
            attended = lower_latent_attention(lowering, index, layer.attention, layer.residual_scale, target)
        else:
            attended = lower_attention(lowering, index, layer.attention, layer.residual_scale, target)
        lowering.x = before if layer.parallel else attended
        if lowering.environment.inputs is not None:
            lowering.add(lowering.environment.inputs.copy(lowering, index))
        other = lowering.environment.blocks.get(index)
        if other is not None:
            lowering.x = other(lowering, index, layer.residual_scale, attended, choice)
        elif isinstance(block, MixtureOfExperts):
            lowering.x = lower_experts(lowering, index, block, layer.residual_scale, attended, choice)
        elif index in lowering.environment.sparse_layers:
            lowering.x = lower_sparse(lowering, index, block, layer.residual_scale, attended)
        else:
            lowering.x = lower_feed_forward(lowering, index, block, layer.residual_scale, attended)
        if hidden and index in lowering.environment.taps:
            _hand_out(lowering, lowering.norm("tap", None, lowering.width), 1 + lowering.environment.taps.index(index))
    _head(lowering, hidden, logits)
    return lowering.operations


def _embedding(lowering: Lowering) -> None:
    environment = lowering.environment
    if environment.tied:
        matrix = _head_matrix(environment)
        units = environment.weights.blob("unit vectors", lambda: unit_rows(matrix.layout))
        scale = environment.spec.embed.scale
        lowering.add(embed_rows(matrix, units=units, tokens=environment.tokens, target=lowering.x, scale=scale))
    norm = environment.spec.embed.norm
    if norm is not None:
        weights = lowering.norm("embedding norm", norm, lowering.width)
        arguments = {"source": lowering.x, "target": lowering.x, "blocks": lowering.blocks, "target_format": FLOATS}
        lowering.add(normalise(weights, **arguments, share=lowering.divided, kind=Kind.EMBED))  # type: ignore[arg-type]


def _head_matrix(environment: Environment) -> Matrix:
    head = environment.spec.head.linear
    return environment.weights.matrix("head", [head.weight], biases=[head.bias])


def _hand_out(lowering: Lowering, norm: NormWeights, place: int) -> None:
    """Write norm(x) of the rows whose output is wanted beside the hidden vectors."""
    count, lowering.count = lowering.count, Word.OUTPUT_ROWS
    lowering.add(
        normalise(
            norm,
            source=lowering.x,
            target=lowering.environment.hidden.at(4 * BLOCK * lowering.blocks * place),
            blocks=lowering.blocks,
            target_format=FLOATS,
            share=lowering.divided,
            row_list=0 if lowering.picked else Word.OUTPUT_LIST,
            kind=Kind.HEAD,
        )
    )
    lowering.count = count


def _head(lowering: Lowering, hidden: bool, logits: bool) -> None:
    environment = lowering.environment
    head = environment.spec.head
    norm = lowering.norm("head norm", head.norm, lowering.width)
    lowering.count = Word.OUTPUT_ROWS
    row_list = 0 if lowering.picked else Word.OUTPUT_LIST
    if hidden:
        _hand_out(lowering, norm, 0)
    if not logits:
        return
    target = environment.logits
    if environment.shortlist is not None:
        lower_shortlist(lowering, head, norm, environment.shortlist, row_list)
    else:
        matrix = _head_matrix(environment)
        read_format = matrix.layout.activation
        source = lowering.prepare(
            "head", norm, lowering.x, lowering.blocks, [read_format], row_list=row_list, kind=Kind.HEAD
        )[read_format]
        lowering.add(linear(matrix, source=source, target=target, count=lowering.count, kind=Kind.HEAD))
    finish = head.softcap is not None or head.scale != 1.0
    if finish:
        width = padded(environment.spec.vocabulary_size)
        lowering.add(
            finish_logits(logits=target, width=width, scale=head.scale, softcap=head.softcap, share=lowering.divided)
        )
