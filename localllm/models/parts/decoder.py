"""The two ends of a decoder, and the spec around its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Embed, Head, Layer, Linear, ModelSpec, Norm

if TYPE_CHECKING:
    from .dimensions import Dimensions
    from .source import Source


def read_embed(source: Source, sizes: Dimensions, *, scale: float = 1.0) -> Embed:
    """The token embedding table."""
    return Embed(source.tensor("token_embd.weight", (sizes.vocabulary, sizes.hidden)), scale)


def read_head(
    source: Source,
    sizes: Dimensions,
    *,
    layer_norm: bool = False,
    scale: float = 1.0,
    softcap: float | None = None,
) -> Head:
    """The final norm and the output matrix."""
    return read_output(source, sizes, source.norm("output_norm", sizes.hidden, layer_norm=layer_norm), scale, softcap)


def read_output(
    source: Source, sizes: Dimensions, norm: Norm, scale: float = 1.0, softcap: float | None = None
) -> Head:
    """The output matrix behind `norm`: `output.weight`, or the embedding table where the file has none."""
    if source.has_tensor("output.weight"):
        linear = source.linear("output", sizes.vocabulary, sizes.hidden)
    else:
        table = source.tensor("token_embd.weight", (sizes.vocabulary, sizes.hidden))
        linear = Linear(table, source.optional_vector("output.bias", sizes.vocabulary))
    return Head(norm, linear, scale, softcap)


def assemble(source: Source, sizes: Dimensions, embed: Embed, layers: list[Layer], head: Head) -> ModelSpec:
    """The whole spec, once it is certain that no tensor of the file was overlooked."""
    source.finish()
    return ModelSpec(
        architecture=source.architecture,
        name=source.file.metadata.string("general.name", source.architecture),
        vocabulary_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        context_length=sizes.context,
        embed=embed,
        layers=tuple(layers),
        head=head,
    )
