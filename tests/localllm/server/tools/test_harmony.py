"""Answers of gpt-oss: channels told apart, whole and in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.server.parts import CallArguments, CallBegun, CallPart, TextPart
from localllm.server.tools.harmony import HarmonyReader

THINKING = "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant"
CASES = [
    (THINKING + "<|channel|>final<|message|>Hello <b>!", ("Let me think.", "Hello <b>!", [])),
    ("<|channel|>final<|message|>Hi<|return|>", ("", "Hi", [])),
    (
        THINKING + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        ("Let me think.", "", [("f", '{"a": 1}')]),
    ),
    (
        THINKING + ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}',
        ("Let me think.", "", [("f", '{"a": 1}')]),
    ),
    ("plain text", ("", "plain text", [])),
    ("<|channel|>commentary<|message|>I will look.<|end|>", ("", "I will look.", [])),
    ("<|channel|>analysis<|message|>cut", ("cut", "", [])),
    ("", ("", "", [])),
]


def read(pieces: list[str], *, progressive: bool = False) -> tuple[str, str, list[tuple[str, str]]]:
    reader = HarmonyReader(progressive=progressive)
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.flush()
    thinking = "".join(part.text for part in parts if isinstance(part, TextPart) and part.kind == "reasoning")
    text = "".join(part.text for part in parts if isinstance(part, TextPart) and part.kind == "content")
    calls = [(part.name, part.arguments) for part in parts if isinstance(part, CallPart)]
    if progressive:
        assert not calls
        begun = [part.name for part in parts if isinstance(part, CallBegun)]
        calls = [(name, "".join(p.text for p in parts if isinstance(p, CallArguments))) for name in begun]
    return thinking, text, calls


@pytest.mark.parametrize(("written", "expected"), CASES)
def test_whole_and_letter_by_letter(written: str, expected: object) -> None:
    assert read([written]) == expected
    assert read(list(written)) == expected
    assert read([written], progressive=True) == expected
    assert read(list(written), progressive=True) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 120), max_size=5))
def test_in_any_pieces(case: tuple[str, object], cuts: list[int]) -> None:
    written, expected = case
    places = sorted({0, len(written), *(cut for cut in cuts if cut < len(written))})
    assert read([written[a:b] for a, b in itertools.pairwise(places)]) == expected
