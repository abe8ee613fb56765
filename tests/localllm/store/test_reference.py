"""What a user may write, and that no name leads out of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ConfigurationError, LocalLLMError
from localllm.store.names import check_catalogue_name, check_name, file_key, safe_file_name
from localllm.store.reference import (
    FileReference,
    HubReference,
    PackageReference,
    Reference,
    UrlReference,
    parse_reference,
)
from localllm.store.sources.quants import quant_of
from localllm.store.text import format_bytes, format_seconds, nearest, printable, printable_block, shown_url

GOOD: list[tuple[str, Reference | None]] = [
    ("qwen3:4b", None),
    ("smollm2", None),
    ("hf:Qwen/Qwen3-4B-GGUF", HubReference("Qwen", "Qwen3-4B-GGUF")),
    ("hf:Qwen/Qwen3-4B-GGUF:Q8_0", HubReference("Qwen", "Qwen3-4B-GGUF", quant="Q8_0")),
    ("hf.co/Qwen/Qwen3-4B-GGUF:Q8_0", HubReference("Qwen", "Qwen3-4B-GGUF", quant="Q8_0")),
    ("hf:a/b@v1.0:Q4_0", HubReference("a", "b", "v1.0", quant="Q4_0")),
    ("hf:a/b/sub/x.gguf", HubReference("a", "b", file="sub/x.gguf")),
    ("https://h/x.gguf", UrlReference("https://h/x.gguf")),
    (f"https://h/x.gguf?a=1#sha256={'A' * 64}", UrlReference("https://h/x.gguf?a=1", "a" * 64)),
    ("pypi:pkg", PackageReference((("pkg", None),))),
    ("pypi:pkg==1.0#a/x.gguf", PackageReference((("pkg", "1.0"),), ("a/x.gguf",))),
    ("pypi:p1,p2==2", PackageReference((("p1", None), ("p2", "2")))),
    ("./x", FileReference(Path("x"))),
    ("model.GGUF", FileReference(Path("model.GGUF"))),
    ("/tmp/dir/x.bin", FileReference(Path("/tmp/dir/x.bin"))),
]
BAD = [
    "https://[::1",
    "http://host:99999/x.gguf",
    "http://host:x/x.gguf",
    "hf:", "hf:a", "hf:a/", "hf:a/b:", "hf:a/../b", "hf:../a/b", "hf:a/b/", "hf:a/b/../x", "hf:a b/c", "hf:a/b@/x",
    "hf:a/b\x1b", "hf:a/b/x?y", "https://", "https:///x", "https://h/ x", "https://h/x#sha256=12", "pypi:", "pypi:a b",
    "pypi:a,", "pypi:a#x,y", "pypi:a,b#x", "pypi:../a",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_references(text: str, expected: Reference | None) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize("text", BAD)
def test_malformed_references_are_errors_for_people(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_reference(text)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("text", ["hf:a/b@v1.0:Q4_0", "hf:a/b/sub/x.gguf", "pypi:p1,p2==2#x,y", "hf:a/b"])
def test_a_reference_spells_itself(text: str) -> None:
    assert str(parse_reference(text)) == text


@given(st.text(max_size=60))
def test_any_text_is_a_reference_a_name_or_an_error(text: str) -> None:
    shown = ""
    try:
        parse_reference(text)
    except LocalLLMError as error:
        shown = str(error)
    assert all(ord(character) >= 32 or character == "\n" for character in shown)


@given(st.text(max_size=250))
def test_a_stored_name_cannot_leave_its_folder(name: str) -> None:
    key = file_key(name)
    assert len(key) <= 150
    assert not set(key) & set('/\\:*?"<>|\x00')
    assert safe_file_name(name) not in ("", ".", "..")
    assert not set(safe_file_name(name)) & set('/\\:*?"<>|\x00')


@pytest.mark.parametrize(
    "name", ["", "../x", "a/../../b", "/etc/passwd", ".hidden", "a\x1b[2J", "a b", "a" * 201, "a\n"]
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        check_name(name)


@pytest.mark.parametrize("name", ["Upper:1b", "a/b", "a:b:c", "", ":x", "a..b", "x" * 101])
def test_catalogue_names_that_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        check_catalogue_name(name)


def test_long_names_stay_apart() -> None:
    assert file_key("a" * 200) != file_key("a" * 199)
    assert file_key("HF:Owner/X") == file_key("hf:owner/x")


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("smollm2-1.7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Q8_0/model-Q8_0-00001-of-00003.gguf", "Q8_0"),
        ("model.fp16.gguf", "F16"),
        ("model-bf16.gguf", "BF16"),
        ("model.IQ2_XXS.gguf", "IQ2_XXS"),
        ("bamboo-7b-dpo-v0.1.Q4_0.powerinfer.gguf", "Q4_0"),
        ("best-of-breed.gguf", None),
        ("Q1-report.gguf", None),
        ("SmolLM3.gguf", None),
    ],
)
def test_quants_of_file_names(path: str, quant: str | None) -> None:
    assert quant_of(path) == quant


HOSTILE = "a\x1b[2Jb\x07c\u202ed\u2066e\x9bf\ng\ud800"


def test_text_for_the_terminal() -> None:
    assert printable(HOSTILE) == "a[2Jbcdef g"
    assert printable_block("one\r\n\ttwo\x1b[0m") == "one\n\ttwo[0m"
    assert printable("x" * 1000, 10) == "x" * 9 + "…"
    assert printable("👨‍👩‍👧 नमस्ते") == "👨‍👩‍👧 नमस्ते"
    assert shown_url("https://user:pass@host:8/p/x?token=1#f") == "https://host:8/p/x"
    assert [format_bytes(n) for n in (5, 98362432, 12_109_566_624)] == ["5 B", "98.4 MB", "12.1 GB"]
    assert [format_seconds(n) for n in (45, 200, 7500)] == ["45 s", "3 min 20 s", "2 h 5 min"]


@given(st.text())
def test_nothing_printable_can_move_a_cursor(text: str) -> None:
    assert all(ord(c) >= 32 and not 127 <= ord(c) < 160 for c in printable(text))


def test_nearest_names() -> None:
    known = ["smollm2:135m", "smollm2:1.7b", "qwen3:4b", "qwen3:8b", "gemma3:270m"]
    assert nearest("smolm2:135m", known)[0] == "smollm2:135m"
    assert nearest("qwen", known)[0] == "qwen3:4b"
    assert nearest("zzzzz", known) == []
