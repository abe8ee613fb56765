"""For which model a file that guesses was made: from vectors of another of the same size it would guess in vain."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import ConfigurationError
from localllm.gguf_io import dequantize
from localllm.gguf_io.cursor import shown

from .heads import ARCHITECTURE

if TYPE_CHECKING:
    from localllm.gguf_io import GGUFFile

_LOG = logging.getLogger("localllm.speculation")
FINGERPRINT, NAME = "speculator.model.fingerprint", "speculator.model.name"
_TOKENS = "tokenizer.ggml.tokens"


def fingerprint(model: GGUFFile) -> str:
    """The identity of a model, whatever its quantisation: its vocabulary and its norms, which no file quantises."""
    digest = hashlib.sha256(model.metadata.string("general.architecture", "").encode())
    if _TOKENS in model.metadata:
        digest.update(b"\n".join(model.metadata.string_bytes(_TOKENS)))
    for name, tensor in sorted(model.tensors.items()):
        if name.endswith("norm.weight"):
            digest.update(f"{name} {tensor.shape}".encode())
            digest.update(np.asarray(dequantize(tensor), "<f4").tobytes())
    return digest.hexdigest()


def made_for(model: GGUFFile) -> dict[str, str]:
    """Keys that say so in a drafter's file."""
    return {NAME: model.path.name, FINGERPRINT: fingerprint(model)}


def check_made_for(file: GGUFFile, model: GGUFFile) -> None:
    """ConfigurationError if `file` guesses for another model; files that do not say for which are taken with a note."""
    if FINGERPRINT not in file.metadata and file.metadata.string("general.architecture", "") != ARCHITECTURE:
        return  # no such file at all, which whoever reads it says
    if FINGERPRINT not in file.metadata:
        _LOG.warning("%s does not say for which model it was made; if its guesses are bad, make it anew", file.path)
        return
    if file.metadata.string(FINGERPRINT) != fingerprint(model):
        other = shown(file.metadata.string(NAME, "")) or "another model"
        raise ConfigurationError(
            f"{file.path} was made for {other} and cannot guess for {model.path.name}",
            hint="make one for this model with scripts/train_drafter.py",
        )
