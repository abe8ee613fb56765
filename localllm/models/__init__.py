"""Model architectures: one file each, named as `general.architecture` names it, imported when a file asks for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from localllm.errors import GGUFError, UnsupportedModelError

if TYPE_CHECKING:
    from localllm.gguf_io import GGUFFile
    from localllm.kernels.spec import Layer, ModelSpec

ARCHITECTURES = (
    "arcee",
    "baichuan",
    "bamboo",
    "chatglm",
    "cohere2",
    "command-r",
    "deepseek",
    "deepseek2",
    "dots1",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "glm4",
    "glm4moe",
    "gpt-oss",
    "gpt2",
    "gptneox",
    "granite",
    "granitemoe",
    "hunyuan-dense",
    "hunyuan-moe",
    "internlm2",
    "llama",
    "minicpm",
    "minicpm3",
    "minimax-m2",
    "mistral3",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "opt",
    "orion",
    "phi2",
    "phi3",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "stablelm",
    "starcoder",
    "starcoder2",
    "xverse",
)


def load_spec(file: GGUFFile, *, context: int | None = None) -> ModelSpec:
    """What the model in `file` is, for any executor.

    `context` is the length that it will be run at; only longrope models depend on it (None: within the original one).
    Raises UnsupportedModelError for an architecture or variant without support and GGUFError for a file whose metadata
    or tensors do not fit together; errors of metadata and tensors name the file.
    """
    return _build(file, context)


def load_layers_ahead(file: GGUFFile) -> tuple[Layer, ...]:
    """The layers that `load_spec` leaves out, for they predict tokens behind the next one; often there are none.

    Raises what `load_spec` raises.
    """
    architecture = file.metadata.string("general.architecture")
    count = file.metadata.integer(f"{architecture}.nextn_predict_layers", 0)
    return _build(file, None, ahead=True).layers[-count:] if count > 0 else ()


def _build(file: GGUFFile, context: int | None, *, ahead: bool = False) -> ModelSpec:
    from .parts.source import Source

    architecture = file.metadata.string("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"the architecture {architecture!r} is not supported",
            hint=f"Supported: {', '.join(ARCHITECTURES)}. docs/architectures.md says how to add one.",
        )
    module = import_module(f".{architecture.replace('-', '_')}", __name__)
    try:
        spec: ModelSpec = module.build(Source(file, architecture, context, ahead=ahead))
    except (GGUFError, UnsupportedModelError) as error:
        error.message = f"{file.paths[0].name}: {error.message}"
        raise
    return spec
