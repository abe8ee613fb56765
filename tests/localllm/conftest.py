"""Small vocabularies, written as GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from localllm.gguf_io import write_gguf
from localllm.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def _byte_letters() -> list[str]:
    """GPT-2's letter of each byte, written down again from its definition."""
    letters = {byte: chr(byte) for byte in range(256) if chr(byte).isprintable() and byte not in (0x20, 0xA0, 0xAD)}
    hidden = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + place) for place, byte in enumerate(hidden)})
    return [letters[byte] for byte in range(256)]


@pytest.fixture
def byte_level(tmp_path: Path) -> Callable[..., Tokenizer]:
    """Builds a byte-level tokenizer: the 256 bytes are the first ids, then one token for each merge, then `extra`
    (text and kind). More arguments are metadata below tokenizer.ggml; None leaves a key out."""

    def make(
        merges: Sequence[str] | None = ("Ġ t",), extra: Sequence[tuple[str, int]] = (), **more: object
    ) -> Tokenizer:
        merged = [merge.replace(" ", "") for merge in merges or ()]
        metadata: dict[str, object] = {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": [*_byte_letters(), *merged, *(text for text, _ in extra)],
            "token_type": [NORMAL] * (256 + len(merged)) + [kind for _, kind in extra],
            "merges": merges,
        }
        return _from_file(tmp_path, metadata | more)

    return make


@pytest.fixture
def sentence_piece(tmp_path: Path) -> Callable[..., Tokenizer]:
    """Builds a SentencePiece tokenizer: <unk>, <s>, </s>, the 256 byte tokens from id 3 on, then `entries` (text, kind
    and score). More arguments are metadata below tokenizer.ggml; None leaves a key out."""

    def make(entries: Sequence[tuple[str, int, float]], **more: object) -> Tokenizer:
        names = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
        everything = [*names, *((f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)), *entries]
        metadata: dict[str, object] = {
            "model": "llama",
            "tokens": [text for text, _, _ in everything],
            "token_type": [kind for _, kind, _ in everything],
            "scores": [score for _, _, score in everything],
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        return _from_file(tmp_path, metadata | more)

    return make


def _from_file(folder: Path, keys: dict[str, object]) -> Tokenizer:
    path = folder / "vocabulary.gguf"
    stored = {"tokenizer.ggml." + key: value for key, value in keys.items() if value is not None}
    write_gguf(path, {"general.architecture": "llama", **stored}, {})  # type: ignore[dict-item]
    return Tokenizer.from_gguf(path)
