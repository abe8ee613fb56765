"""The common shape of a decoder: one norm before each of two blocks; architectures differ by a few choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from localllm.kernels.spec import Activation, FeedForward, Layer, MixtureOfExperts, Norm

from .attention import HeadNorms, read_attention
from .decoder import assemble, read_embed, read_head
from .dimensions import read_dimensions
from .feed_forward import read_feed_forward
from .rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .source import Source


class BlockReader(Protocol):
    """Reads the second block of layer `index`."""

    def __call__(self, source: Source, index: int, hidden: int, norm: Norm) -> FeedForward | MixtureOfExperts:
        """The block's weights, checked against the sizes of the layer."""


def build_plain(
    source: Source,
    *,
    interleaved: bool,
    layer_norm: bool = False,
    parallel: bool = False,
    head_norms: HeadNorms | None = None,
    norm_after_rope: bool = False,
    activation: Activation = Activation.SILU,
    gated: bool = True,
    second_block: BlockReader | None = None,
    block_norm: str = "ffn_norm",
    unrotated_period: int | None = None,
    attention_scale: float | None = None,
    embed_scale: float = 1.0,
    residual_scale: float = 1.0,
    head_scale: float = 1.0,
) -> ModelSpec:
    """A pre-norm decoder; `unrotated_period` N leaves every N-th layer without rope.

    `parallel` blocks read the same x, and share a norm unless the file has one for each. `block_norm` is the name of
    the second block's norm.
    `second_block` reads something else than a dense feed-forward block of `activation`, such as experts.
    """
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=interleaved)
    layers = []
    for index in range(sizes.layers):
        norm = source.norm(f"blk.{index}.attn_norm", sizes.hidden, layer_norm=layer_norm)
        unrotated = unrotated_period is not None and (index + 1) % unrotated_period == 0
        attention = read_attention(
            source,
            index,
            read_dimensions(source, index),
            None if unrotated else rope,
            norm=norm,
            scale=attention_scale,
            head_norms=head_norms,
            norm_after_rope=norm_after_rope,
            layer_norm=layer_norm,
        )
        if not parallel or source.has_tensor(f"blk.{index}.{block_norm}.weight"):
            norm = source.norm(f"blk.{index}.{block_norm}", sizes.hidden, layer_norm=layer_norm)
        block: FeedForward | MixtureOfExperts
        if second_block is not None:
            block = second_block(source, index, sizes.hidden, norm)
        else:
            block = read_feed_forward(source, index, sizes.hidden, norm=norm, activation=activation, gated=gated)
        layers.append(Layer(attention, block, residual_scale, parallel))
    embed = read_embed(source, sizes, scale=embed_scale)
    return assemble(source, sizes, embed, layers, read_head(source, sizes, layer_norm=layer_norm, scale=head_scale))
