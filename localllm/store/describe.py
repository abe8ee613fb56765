"""What a model file says about itself: facts for `show`, for any architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localllm.errors import LocalLLMError, UnsupportedModelError
from localllm.gguf_io import GGUFError, QuantType, open_gguf
from localllm.models import load_spec

from .memory import KVMemory, kv_memory
from .sources.quants import quant_of
from .text import printable, printable_block

if TYPE_CHECKING:
    from pathlib import Path

    from localllm.gguf_io import GGUFFile, Metadata

_LONGEST_ARRAY = 8  # of metadata that is shown in full
_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class QuantShare:
    """Tensors of one storage type: how many, how many numbers, how many bytes.

    `rewriting`: what the CPU makes of the type where it does not keep the file's codes.
    """

    type_name: str
    tensors: int
    parameters: int
    size_bytes: int | None
    rewriting: str | None = None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Facts of one model. `memory` is empty, and `unsupported` says why, when no executor can run it.

    `metadata` holds scalars and short arrays; long arrays are given as their type and length.
    """

    path: Path
    paths: tuple[Path, ...]
    size_bytes: int
    architecture: str
    name: str | None
    quant: str
    parameters: int
    quants: tuple[QuantShare, ...]
    context_length: int | None
    vocabulary_size: int | None
    tokenizer: str | None
    templates: dict[str, str]
    licence: str | None
    metadata: dict[str, Any]
    memory: tuple[KVMemory, ...]
    unsupported: str | None


def describe(path: Path, file_name: str | None = None, contexts: tuple[int, ...] | None = None) -> ModelDescription:
    """Read a model's facts. `contexts` are the lengths to count KV memory for (default: 4096 up to the trained one).

    Raises GGUFError when the file cannot be read; an unknown architecture or tensor type is no error.
    """
    with open_gguf(path, metadata_only=True) as file:
        metadata = file.metadata
        architecture = _text(metadata, "general.architecture") or "unknown"
        quants = _quant_shares(file)
        trained = _integer(metadata, f"{architecture}.context_length")
        named = quant_of(file_name) if file_name is not None else None
        wanted = contexts or _usual_contexts(trained)
        memory, unsupported = _memory(path, wanted)
        return ModelDescription(
            path=file.path,
            paths=file.paths,
            size_bytes=file.size_bytes,
            architecture=printable(architecture, 80),
            name=_text(metadata, "general.name"),
            quant=named or max(quants, key=lambda share: share.parameters, default=QuantShare("?", 0, 0, 0)).type_name,
            parameters=sum(share.parameters for share in quants),
            quants=quants,
            context_length=trained,
            vocabulary_size=_vocabulary_size(metadata),
            tokenizer=_tokenizer(metadata),
            templates=_templates(metadata),
            licence=_text(metadata, "general.license"),
            metadata={printable(key, 120): _shown(metadata, key) for key in metadata},
            memory=memory,
            unsupported=unsupported,
        )


def _memory(path: Path, contexts: tuple[int, ...]) -> tuple[tuple[KVMemory, ...], str | None]:
    try:
        with open_gguf(path) as file:
            spec = load_spec(file)
    except LocalLLMError as error:
        return (), f"{error.message}. {error.hint}" if error.hint else error.message
    return tuple(kv_memory(spec, context) for context in contexts), None


def _usual_contexts(trained: int | None) -> tuple[int, ...]:
    if trained is None:
        return (4096,)
    return tuple(sorted({context for context in (4096, 32768, trained) if context <= trained} or {trained}))


def _quant_shares(file: GGUFFile) -> tuple[QuantShare, ...]:
    found: dict[str, list[tuple[int, int | None]]] = {}
    for entry in file.entries:
        found.setdefault(entry.type_label, []).append((math.prod(entry.shape), entry.nbytes))
    shares = []
    for type_name, tensors in found.items():
        sizes = [nbytes for _, nbytes in tensors]
        total = None if None in sizes else sum(nbytes for nbytes in sizes if nbytes is not None)
        shares.append(
            QuantShare(type_name, len(tensors), sum(count for count, _ in tensors), total, _rewriting(type_name))
        )
    return tuple(sorted(shares, key=lambda share: -share.parameters))


def _rewriting(type_name: str) -> str | None:
    """What the CPU makes of a type; None too where no executor knows the type (then `unsupported` says so)."""
    from localllm.kernels.cpu.tiles.registry import rewriting

    try:
        return rewriting(QuantType[type_name])
    except (KeyError, UnsupportedModelError):
        return None


def _text(metadata: Metadata, key: str) -> str | None:
    try:
        value = metadata.string(key, None)
    except GGUFError:
        return None
    return None if value is None else printable(value, 200)


def _integer(metadata: Metadata, key: str) -> int | None:
    try:
        return metadata.integer(key, None)
    except GGUFError:
        return None


def _vocabulary_size(metadata: Metadata) -> int | None:
    key = "tokenizer.ggml.tokens"
    return metadata.array_length(key) if metadata.is_array(key) else None


def _tokenizer(metadata: Metadata) -> str | None:
    model, pre = _text(metadata, "tokenizer.ggml.model"), _text(metadata, "tokenizer.ggml.pre")
    return model if pre is None or model is None else f"{model} ({pre})"


def _templates(metadata: Metadata) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in metadata:
        name = "default" if key == _TEMPLATE_KEY else key.removeprefix(f"{_TEMPLATE_KEY}.")
        if key == _TEMPLATE_KEY or key.startswith(f"{_TEMPLATE_KEY}."):
            try:
                found[printable(name, 60)] = printable_block(metadata.string(key))
            except GGUFError:
                continue
    return found


def _shown(metadata: Metadata, key: str) -> Any:
    """A value as JSON can hold it."""
    label = metadata.type_label(key)
    if metadata.is_array(key):
        length = metadata.array_length(key)
        if length > _LONGEST_ARRAY:
            return f"{label}, {length} long"
        return _short_array(metadata, key, label)
    readers = (metadata.boolean, metadata.integer, metadata.floating)
    if label == "string":
        return printable_block(metadata.string(key))
    for read in readers:
        try:
            value = read(key)
        except GGUFError:
            continue
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    return label


def _short_array(metadata: Metadata, key: str, label: str) -> Any:
    if "string" in label:
        return [printable(text, 200) for text in metadata.strings(key)]
    for read in (metadata.booleans, metadata.integers, metadata.floats):
        try:
            values = read(key).tolist()
        except GGUFError:
            continue
        return [value if not isinstance(value, float) or math.isfinite(value) else str(value) for value in values]
    return label
