"""Thinking and answer are told apart however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat import ReasoningSplitter


def split(text: str, cuts: list[int], *, inside: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(begun="reasoning" if inside else None)
    edges = [0, *sorted(c for c in cuts if 0 < c < len(text)), len(text)]
    parts = [part for a, b in pairwise(edges) for part in splitter.push(text[a:b])]
    parts += splitter.flush()
    reasoning = "".join(t for kind, t in parts if kind == "reasoning")
    return reasoning, "".join(t for kind, t in parts if kind == "answer")


CASES = [
    ("<think>\nhm\n</think>\n\nYes.", False, ("hm\n", "Yes.")),
    ("  \n<think>hm</think>Yes.", False, ("hm", "Yes.")),
    ("hm</think>Yes.", True, ("hm", "Yes.")),
    ("No tags <think>here</think>.", False, ("", "No tags <think>here</think>.")),
    ("<thinking>a < b</thinking>ok", False, ("a < b", "ok")),
    ("<think>never closed", False, ("never closed", "")),
    ("<thi", False, ("", "<thi")),
    ("<think></think>ok", False, ("", "ok")),
    ("", False, ("", "")),
]


@pytest.mark.parametrize(("text", "inside", "expected"), CASES)
def test_known_forms(text: str, inside: bool, expected: tuple[str, str]) -> None:
    assert split(text, [], inside=inside) == expected
    assert split(text, list(range(len(text))), inside=inside) == expected


@given(
    st.text("<think/> ab\n|", max_size=40),
    st.lists(st.integers(1, 40), max_size=10),
    st.booleans(),
)
def test_the_cuts_do_not_matter(text: str, cuts: list[int], inside: bool) -> None:
    assert split(text, [], inside=inside) == split(text, cuts, inside=inside)


def test_an_answer_that_goes_on_cannot_turn_into_thinking() -> None:
    splitter = ReasoningSplitter(begun="answer")
    assert splitter.push("<think>x</think>") == [("answer", "<think>x</think>")]
