"""What a GGUF file says about its tokens, checked: the metadata is untrusted.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (section "Tokenizer").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import GGUFError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.gguf_io import Metadata

PREFIX = "tokenizer.ggml."
BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"
_OTHER_MODELS = {
    "bert": "WordPiece",
    "t5": "a unigram model",
    "rwkv": "the RWKV tokenizer",
    "plamo2": "the PLaMo 2 tokenizer",
    "gemma4": "the Gemma 4 tokenizer",
    "none": "no vocabulary at all",
    "no_vocab": "no vocabulary at all",
}

# Texts that end an answer in the families that use them, whatever the file says about ids and types. The converters
# write only one end id (`eos_token_id`), and mark some of these as ordinary tokens.
_END_TEXTS = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>"),
        *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[EOT]", "<EOT>", "_<EOT>", "<|EOT|>"),
        *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_utterance>", "<|tool_response>"),
        *("<｜end▁of▁sentence｜>", "<|eot|>"),
        # A model that goes on with the next file, or pads, has nothing more to say.
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    )
)
_END_KEYS = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Where an answer is a series of messages, each closed by <|end|>, the answer ends with one of these pairs instead.
_MESSAGE_END = "<|end|>"
_ANSWER_ENDS = (frozenset(("<|return|>", "<|call|>")), frozenset(("<|flush|>", "<|calls|>")))


class TokenKind(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id. Texts hold bytes that are not UTF-8 as surrogate escapes; `kinds` has one TokenKind a byte."""

    source: str
    model: str
    pre_tokenizer: str | None
    texts: list[str]
    kinds: bytes
    scores: npt.NDArray[np.float32] | None
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    adds_bos: bool | None  # None: the file leaves it to the kind of tokenizer
    adds_space_prefix: bool | None
    model_name: str

    def ids_of(self, *kinds: TokenKind) -> list[int]:
        """All ids of these kinds, in order."""
        return np.flatnonzero(np.isin(np.frombuffer(self.kinds, np.uint8), kinds)).tolist()


def read_kind(metadata: Metadata, source: str) -> str:
    """Which kind of tokenizer a file has, without reading its tokens; raises as `read_vocabulary` does."""
    model = metadata.string(PREFIX + "model")
    if model not in (BYTE_LEVEL, SENTENCE_PIECE):
        what = _OTHER_MODELS.get(model, "a kind of tokenizer that is not known here")
        raise UnsupportedModelError(
            f"{source}: the file uses {what} (metadata key {PREFIX}model is {model[:80]!r}), which is not supported",
            hint=f"Supported are {BYTE_LEVEL!r} (byte-level BPE) and {SENTENCE_PIECE!r} (SentencePiece BPE).",
        )
    return model


def read_vocabulary(metadata: Metadata, source: str) -> Vocabulary:
    """Check and gather a file's tokens; GGUFError names the key that is wrong, UnsupportedModelError the tokenizer."""
    model = read_kind(metadata, source)
    texts = metadata.strings(PREFIX + "tokens")
    if not texts:
        raise GGUFError(f"{source}: the metadata key {PREFIX}tokens holds no token")
    kinds = _kinds(metadata, source, len(texts))
    bos = _token_id(metadata, source, "bos", len(texts))
    eos = _token_id(metadata, source, "eos", len(texts))
    if model == SENTENCE_PIECE:  # the fixed ids of the format, for files that leave them out
        bos = _usual_id(1, kinds) if bos is None else bos
        eos = _usual_id(2, kinds) if eos is None else eos
    ends = _mark_ends(metadata, source, texts, kinds)
    return Vocabulary(
        source=source,
        model=model,
        pre_tokenizer=metadata.string(PREFIX + "pre", None),
        texts=texts,
        kinds=kinds.tobytes(),
        scores=_scores(metadata, source, len(texts)),
        bos_id=bos,
        eos_id=eos,
        end_ids=ends if eos is None else ends | {eos},
        adds_bos=metadata.boolean(PREFIX + "add_bos_token", None),
        adds_space_prefix=metadata.boolean(PREFIX + "add_space_prefix", None),
        model_name=metadata.string("general.name", ""),
    )


def _kinds(metadata: Metadata, source: str, count: int) -> npt.NDArray[np.uint8]:
    key = PREFIX + "token_type"
    if key not in metadata:
        return np.full(count, TokenKind.NORMAL, np.uint8)
    stored = metadata.integers(key)
    _same_length(source, key, len(stored), count)
    known = (stored >= TokenKind.UNDEFINED) & (stored <= TokenKind.BYTE)
    return np.where(known, stored, TokenKind.UNDEFINED).astype(np.uint8)


def _scores(metadata: Metadata, source: str, count: int) -> npt.NDArray[np.float32] | None:
    key = PREFIX + "scores"
    if key not in metadata:
        return None
    scores = metadata.floats(key).astype(np.float32)
    _same_length(source, key, len(scores), count)
    if np.isnan(scores).any():
        raise GGUFError(f"{source}: the metadata key {key} holds a score that is not a number")
    return scores


def _same_length(source: str, key: str, length: int, count: int) -> None:
    if length != count:
        raise GGUFError(f"{source}: the metadata key {key} has {length} entries for {count} tokens")


def _token_id(metadata: Metadata, source: str, name: str, count: int) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.integer(key, None)
    if value is not None and not 0 <= value < count:
        raise GGUFError(f"{source}: the metadata key {key} is {value}, but the file has {count} tokens")
    return value


def _usual_id(token: int, kinds: npt.NDArray[np.uint8]) -> int | None:
    return token if token < len(kinds) and kinds[token] == TokenKind.CONTROL else None


def _mark_ends(metadata: Metadata, source: str, texts: list[str], kinds: npt.NDArray[np.uint8]) -> frozenset[int]:
    """The ids that end an answer. Those known by their text become control tokens, so that no message can hold one."""
    by_text = {text: token for token, text in enumerate(texts) if text in _END_TEXTS}
    kinds[list(by_text.values())] = TokenKind.CONTROL
    if any(pair <= by_text.keys() for pair in _ANSWER_ENDS):
        by_text.pop(_MESSAGE_END, None)
    named = (_token_id(metadata, source, name, len(texts)) for name in _END_KEYS)
    return frozenset(by_text.values()) | {token for token in named if token is not None}
