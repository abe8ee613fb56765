"""The tokenizer of a model file: text to ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localllm.errors import RequestError

from .byte_level import MERGES, ByteLevelEncoder, letters_to_bytes
from .pre_tokenizers import DEFAULT_NAME, pre_tokenizer
from .sentence_piece import SentencePieceEncoder, piece_bytes
from .special import SpecialTokens
from .stream import StreamDecoder
from .vocabulary import BYTE_LEVEL, TokenKind, Vocabulary, read_kind, read_vocabulary

if TYPE_CHECKING:
    from localllm.gguf_io import GGUFFile, Metadata

_SURROGATE = re.compile("[\ud800-\udfff]")


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt. `trusted`: it comes from the template, not from a message, and may hold control tokens."""

    text: str
    trusted: bool


class Tokenizer:
    """Encodes and decodes with the vocabulary of a GGUF file (a file without tensors will do).

    `warnings` holds, in words, what the file leaves unsaid and had to be assumed.
    """

    def __init__(self, vocabulary: Vocabulary, encoder: _Encoder, *, adds_bos: bool, warnings: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._special = SpecialTokens(vocabulary)
        self._byte_level = vocabulary.model == BYTE_LEVEL
        self._space_prefix = not self._byte_level and vocabulary.adds_space_prefix is not False
        self.adds_bos = adds_bos and vocabulary.bos_id is not None
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        self.warnings = tuple(warnings)

    @classmethod
    def from_gguf(cls, file: str | Path | GGUFFile) -> Tokenizer:
        """The tokenizer of a file or of one that is already open.

        GGUFError names the key of broken metadata, UnsupportedModelError a tokenizer or pre-tokenizer without support.
        """
        if not isinstance(file, (str, Path)):
            return cls.from_metadata(file.metadata, str(file.path))
        from localllm.gguf_io import open_gguf

        with open_gguf(file, metadata_only=True) as opened:
            return cls.from_metadata(opened.metadata, str(file))

    @staticmethod
    def check_kind(file: GGUFFile) -> None:
        """Raise at once where `from_gguf` would because the file has no tokenizer, or one of an unsupported kind."""
        read_kind(file.metadata, str(file.path))

    @classmethod
    def from_metadata(cls, metadata: Metadata, source: str) -> Tokenizer:
        """The tokenizer that this metadata describes; `source` names the file in errors. Keeps no hold of the file."""
        vocabulary = read_vocabulary(metadata, source)
        if vocabulary.model != BYTE_LEVEL:
            adds_bos = vocabulary.adds_bos is not False
            return cls(vocabulary, SentencePieceEncoder(vocabulary), adds_bos=adds_bos, warnings=())
        warnings = []
        if vocabulary.pre_tokenizer is None:
            warnings.append(
                "The file does not say how text is cut before it is tokenized (metadata key tokenizer.ggml.pre); "
                "the oldest rule is used, and answers may be worse than with a newer conversion of the model."
            )
        cuts = pre_tokenizer(vocabulary.pre_tokenizer or DEFAULT_NAME, source)
        encoder = ByteLevelEncoder(vocabulary, metadata.strings(MERGES), cuts)
        adds_bos = cuts.adds_bos if vocabulary.adds_bos is None else vocabulary.adds_bos
        return cls(vocabulary, encoder, adds_bos=adds_bos, warnings=warnings)

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens in the file; the model's logits may be wider."""
        return len(self._vocabulary.texts)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Every control token by its text."""
        texts = self._vocabulary.texts
        return {texts[token]: token for token in self._vocabulary.ids_of(TokenKind.CONTROL)}

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token; those that end an answer always are."""
        return self._kind(token) == TokenKind.CONTROL or token in self.end_ids

    def token_text(self, token: int) -> str:
        """The token as the vocabulary spells it, for lists and for templates (not for output: see `decode`)."""
        self._kind(token)
        return self._vocabulary.texts[token]

    def encode(self, text: str, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """Ids of `text`; any string will do (a lone surrogate becomes U+FFFD).

        `add_bos`: None does what the model wants, True and False overrule it (True adds none where there is none).
        `parse_special`: control tokens written in the text count as such; else they are plain text. User-defined
        tokens always count: they are text to the model.
        """
        return self.encode_segments((Segment(text, parse_special),), add_bos)

    def encode_prompt(self, text: str, parse_special: bool = True) -> list[int]:
        """Ids of a raw prompt that may be written with or without its beginning token: there is one if the model
        wants it, never two."""
        return self._with_one_bos(self.encode(text, False, parse_special))

    def encode_segments(self, segments: Iterable[Segment], add_bos: bool | None = None) -> list[int]:
        """Ids of the joined segments, in which only trusted ones can hold control tokens (see `encode`).

        Merging does not stop at the border of segments: where no text looks like a control token, the ids are those of
        the whole text.
        """
        texts: list[str] = []
        trusted: list[tuple[int, int]] = []
        position = 0
        for segment in segments:
            text = _without_surrogates(segment.text)
            end = position + len(text)
            if segment.trusted and trusted and trusted[-1][1] == position:
                trusted[-1] = (trusted[-1][0], end)
            elif segment.trusted:
                trusted.append((position, end))
            texts.append(text)
            position = end
        wants_bos = self.adds_bos if add_bos is None else add_bos
        ids = [self.bos_id] if wants_bos and self.bos_id is not None else []
        prefix = " " if self._space_prefix else ""
        for part in self._special.split("".join(texts), trusted):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._encoder.encode(prefix + part))
                prefix = ""
        return ids

    def encode_chat_segments(self, segments: Iterable[Segment]) -> list[int]:
        """Ids of a rendered conversation, with exactly one beginning token if the model wants one or the template
        wrote one."""
        return self._with_one_bos(self.encode_segments(segments, False))

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, continues: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD.

        `skip_special` leaves control tokens out. `continues`: the ids go on after other text, so a space at their
        start is part of it and not the one that encoding put there.
        """
        tokens = list(ids)
        parts = [b"" if skip_special and self.is_control(token) else self.token_bytes(token) for token in tokens]
        if self._space_prefix and not continues:
            first = next((place for place, token in enumerate(tokens) if self._is_text(token)), None)
            if first is not None:
                parts[first] = parts[first].removeprefix(b" ")
        return b"".join(parts).decode("utf-8", "replace")

    def stream_decoder(self, *, skip_special: bool = False, continues: bool = False) -> StreamDecoder:
        """A decoder for ids that come one by one; its joined output is `decode` of all of them."""
        bytes_of = self._text_bytes if skip_special else self.token_bytes
        return StreamDecoder(bytes_of, self._is_text, self._space_prefix and not continues)

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """The bytes of each id; a character may be spread over several."""
        return [self.token_bytes(token) for token in ids]

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; a special token stands for its own text."""
        kind = self._kind(token)
        text = self._vocabulary.texts[token]
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
            return text.encode("utf-8", "surrogateescape")
        if not self._byte_level:
            return piece_bytes(text, kind)
        return text.encode("utf-8", "surrogateescape") if kind == TokenKind.USER_DEFINED else letters_to_bytes(text)

    def _text_bytes(self, token: int) -> bytes:
        return b"" if self.is_control(token) else self.token_bytes(token)

    def _is_text(self, token: int) -> bool:
        return not self.is_control(token)

    def _kind(self, token: int) -> int:
        if not 0 <= token < self.vocabulary_size:
            raise RequestError(f"there is no token {token}: ids go from 0 to {self.vocabulary_size - 1}")
        return self._vocabulary.kinds[token]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        if self.bos_id is None:
            return ids
        written = next((place for place, token in enumerate(ids) if token != self.bos_id), len(ids))
        wanted = 1 if self.adds_bos or written else 0
        return [self.bos_id] * wanted + ids[written:]


def _without_surrogates(text: str) -> str:
    """The text with surrogate pairs joined and lone ones, which no UTF-8 can hold, as U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
