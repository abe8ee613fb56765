"""Ids, pieces and text equal the reference implementation's, for every string and vocabulary of the golden data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from localllm.tokenizer import Tokenizer

VOCABULARIES = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen2", "refact", "starcoder"),
)
REAL = ("smollm2", "gemma3")
SEPARATOR = "\n__ggml_vocab_test__\n"

load = cache(Tokenizer.from_gguf)


def _cases(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Text and expectation; strings that are not UTF-8 are left to `test_broken_text`."""
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        if case["category"] != "invalid_utf8":
            yield bytes.fromhex(case["hex"]).decode(), case


def _compare(pairs: list[tuple[object, object]], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    equal = sum(got == expected for got, expected in pairs)
    with capsys.disabled():
        print(f"\n{what}: {equal} of {len(pairs)} equal", end="")
    assert [got for got, _ in pairs] == [expected for _, expected in pairs]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabulary_files(name: str, shared_fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_fixtures / "golden" / "vocab"
    path = folder / f"ggml-vocab-{name}.gguf"
    tokenizer = load(path)
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().split("\n")
    assert len(texts) == len(lines)
    pairs: list[tuple[object, object]] = [
        (tokenizer.encode(text, add_bos=False), [int(token) for token in line.split()])
        for text, line in zip(texts, lines, strict=True)
    ]
    for text, case in _cases(folder / "extra" / f"ggml-vocab-{name}.json"):
        pairs.append((tokenizer.encode(text, parse_special=True), case["ids_special_parse"]))
        pairs.append((tokenizer.encode(text, add_bos=False), case["ids_nospecial_noparse"]))
    _compare(pairs, name, capsys)


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, shared_fixtures: Path) -> tuple[Tokenizer, Path, str]:
    """A real model's tokenizer, the folder of its golden data and its name there."""
    path: Path = request.getfixturevalue(f"{request.param}_path")
    return load(path), shared_fixtures / "golden" / "tokenizer", request.param


@pytest.mark.real_model
def test_real_models_encode(real: tuple[Tokenizer, Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, folder, name = real
    pairs: list[tuple[object, object]] = []
    for text, case in _cases(folder / f"{name}.json"):
        for bos, word in ((None, "special"), (False, "nospecial")):
            for parse, mode in ((True, "parse"), (False, "noparse")):
                pairs.append((tokenizer.encode(text, bos, parse), case[f"ids_{word}_{mode}"]))
    _compare(pairs, f"{name} encode", capsys)


@pytest.mark.real_model
def test_real_models_decode(real: tuple[Tokenizer, Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, folder, name = real
    pairs: list[tuple[object, object]] = []
    for case in json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["cases"]:
        ids = case["ids_nospecial_parse"]
        decoded = tokenizer.decode(ids)
        streamed = tokenizer.stream_decoder()
        pairs.append((decoded, bytes.fromhex(case["detok_hex_nospecial_parse"]).decode("utf-8", "replace")))
        pairs.append(("".join(map(streamed.push, ids)) + streamed.flush(), decoded))
        pairs.append((b"".join(tokenizer.pieces(ids)).hex(), case["pieces_hex_nospecial_parse"]))
    _compare(pairs, f"{name} decode", capsys)


@pytest.mark.real_model
def test_real_models_pieces(real: tuple[Tokenizer, Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, folder, name = real
    pairs: list[tuple[object, object]] = []
    for piece in json.loads((folder / f"{name}_pieces.json").read_text())["pieces"]:
        token = piece["id"]
        kept = tokenizer.decode([token], skip_special=True) != ""
        pairs.append((tokenizer.token_bytes(token).hex(), piece["hex"]))
        pairs.append((tokenizer.token_bytes(token).hex() if kept else "", piece["hex_hide_special"]))
        pairs.append((tokenizer.is_control(token), piece["control"]))
        pairs.append((token in tokenizer.end_ids, piece["eog"]))
    _compare(pairs, f"{name} pieces", capsys)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_broken_text(name: str, shared_fixtures: Path) -> None:
    """Bytes that are not UTF-8, however they were read, are encoded without an error, and always alike."""
    folder = shared_fixtures / "golden" / "vocab"
    tokenizer = load(folder / f"ggml-vocab-{name}.gguf")
    for case in json.loads((folder / "extra" / f"ggml-vocab-{name}.json").read_text())["cases"]:
        data = bytes.fromhex(case["hex"])
        escaped = tokenizer.encode(_escaped(data))
        readable = "".join("\ufffd" if "\udc80" <= letter <= "\udcff" else letter for letter in _escaped(data))
        assert escaped == tokenizer.encode(readable)
        assert all(0 <= token < tokenizer.vocabulary_size for token in escaped)


def _escaped(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
