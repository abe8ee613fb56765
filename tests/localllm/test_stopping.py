from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import RequestError
from localllm.stopping import StopMatcher


def _first_match(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, by looking at every end in turn."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def _cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place for place in places if place <= len(text))})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


SMALL = st.text(st.sampled_from("ab`\n"), max_size=30)


@given(text=SMALL, stops=st.lists(SMALL.filter(bool), max_size=5), places=st.lists(st.integers(0, 30)))
def test_equals_a_search_of_the_whole_text(text: str, stops: list[str], places: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown = [matcher.push(chunk) for chunk in _cut(text, places)]
    shown.append(matcher.flush())
    assert ("".join(shown), matcher.matched) == _first_match(text, stops)


@given(text=SMALL, stops=st.lists(SMALL.filter(bool), min_size=1, max_size=4))
def test_holds_back_nothing_that_cannot_become_a_match(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    held = matcher.flush()
    if matcher.matched is None:
        assert shown + held == text
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [text[start:] for start in range(len(shown))]
        assert not any(stop.startswith(ending) for stop in stops for ending in longer)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "matched"),
    [
        ([" O", " P Q", " R"], "O P Q", [" ", "", ""], "O P Q"),
        ([" O", " P Q", " R"], ["x", "O P Q"], [" ", "", ""], "O P Q"),
        (["```", "py", "\n``", "`x"], ["STOP", "\n```"], ["```", "py", "", ""], "\n```"),
        (["abc"], ["abc", "b"], ["a"], "b"),
        (["abc"], ["c", "bc"], ["a"], "bc"),
        (["no", " stop"], [], ["no", " stop"], None),
        (["no", " stop"], None, ["no", " stop"], None),
        (["aab", "aac"], ["aabaac"], ["", ""], "aabaac"),
        (["aabaab", "aac"], ["aabaac"], ["aab", ""], "aabaac"),
    ],
)
def test_examples(pieces: list[str], stops: str | list[str] | None, shown: list[str], matched: str | None) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(piece) for piece in pieces] == shown
    assert matcher.matched == matched


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert [matcher.push("One. Two"), matcher.push(" three."), matcher.flush()] == ["One", "", ""]
    assert matcher.matched == "."


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError) as raised:
        StopMatcher(["a", ""])
    assert raised.value.parameter == "stop"
