"""Strings that remember what is trusted: here the capitals are, so every letter tells where it comes from."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.templates.budget import Budget, LimitError
from localllm.templates.environment import TemplateEnvironment
from localllm.templates.strings import Strings
from localllm.templates.text import Text, cut, is_trusted, join, plain, spans, trust


def _marked(letters: str) -> Text:
    return join(trust(letter) if letter.isupper() else letter for letter in letters)


def _strings() -> Strings:
    budget = Budget(0)
    return Strings(budget, TemplateEnvironment(budget, datetime.now))


def _is_right(text: str) -> bool:
    """Whether exactly the capitals are trusted, in well-formed spans."""
    trusted = spans(text)
    edges = [edge for span in trusted for edge in span]
    if edges != sorted(set(edges)):
        return False
    inside = {place for start, end in trusted for place in range(start, end)}
    return inside == {place for place, letter in enumerate(plain(text)) if letter.isupper()}


MARKED = st.text(st.sampled_from("aBc D\n"), max_size=12).map(_marked)
SMALL = st.text(st.sampled_from("aB D\n"), max_size=2).map(_marked)


@given(parts=st.lists(MARKED))
def test_join(parts: list[Text]) -> None:
    joined = join(parts)
    assert joined == "".join(map(plain, parts))
    assert _is_right(joined)


@given(text=MARKED, start=st.integers(-15, 15), end=st.integers(-15, 15))
def test_slices(text: Text, start: int, end: int) -> None:
    for key in (slice(start, end), slice(start, None), slice(None, end), slice(None)):
        assert text[key] == plain(text)[key]
        assert _is_right(text[key])
    assert text[::-1] == plain(text)[::-1]
    assert spans(text[::-1]) == ()
    assert cut(text, max(start, 0), end) == plain(text)[max(start, 0) : end]


@given(text=MARKED, sep=SMALL, new=SMALL, count=st.integers(-1, 3), keep=st.booleans())
def test_methods_that_move_letters(text: Text, sep: Text, new: Text, count: int, keep: bool) -> None:
    strings, ordinary = _strings(), plain(text)
    results: list[tuple[object, object]] = [
        (strings.strip(text), ordinary.strip()),
        (strings.strip(text, sep), ordinary.strip(sep)),
        (strings.lstrip(text, sep), ordinary.lstrip(sep)),
        (strings.rstrip(text), ordinary.rstrip()),
        (strings.removeprefix(text, sep), ordinary.removeprefix(sep)),
        (strings.removesuffix(text, sep), ordinary.removesuffix(sep)),
        (strings.split(text), ordinary.split()),
        (strings.split(text, None, count), ordinary.split(None, count)),
        (strings.rsplit(text, None, count), ordinary.rsplit(None, count)),
        (strings.splitlines(text, keep), ordinary.splitlines(keep)),
        (strings.join(sep, [text, new, text]), plain(sep).join([ordinary, plain(new), ordinary])),
    ]
    if sep:
        results += [
            (strings.split(text, sep, count), ordinary.split(sep, count)),
            (strings.rsplit(text, sep, count), ordinary.rsplit(sep, count)),
            (strings.partition(text, sep), ordinary.partition(sep)),
            (strings.rpartition(text, sep), ordinary.rpartition(sep)),
            (strings.replace(text, sep, new, count), ordinary.replace(sep, plain(new), count)),
        ]
    for got, expected in results:
        assert got == expected
        assert all(map(_is_right, [got] if isinstance(got, str) else got))  # type: ignore[call-overload]


@given(text=st.text(), trusted=st.booleans())
def test_changes_of_case(text: str, trusted: bool) -> None:
    strings = _strings()
    given_text = trust(text) if trusted else text
    for name in ("lower", "upper", "title", "capitalize", "swapcase", "casefold"):
        method = strings.method(name)
        assert method is not None
        assert method(given_text) == getattr(text, name)()
        assert is_trusted(method(given_text)) == (trusted or not getattr(text, name)())


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        (lambda strings, text: strings.format(text, "b", c=2), "A b 2"),
        (lambda strings, text: strings.percent(trust("%s-%d"), ("x", 3)), "x-3"),
        (lambda strings, text: strings.center(trust("A"), 4, "-"), "-A--"),
    ],
)
def test_results_that_cannot_be_told_apart(expression: object, shown: str) -> None:
    result = expression(_strings(), trust("A {} {c}"))  # type: ignore[operator]
    assert result == shown
    assert not is_trusted(result)


def test_what_is_made_of_trusted_text_alone_is_trusted() -> None:
    strings = _strings()
    assert is_trusted(strings.format(trust("<|{}|>"), trust("user")))
    assert is_trusted(strings.percent(trust("<|%s %d|>"), (trust("user"), 1)))
    assert is_trusted(strings.repeat(trust("ab"), 3))
    assert is_trusted(strings.ljust(trust("A"), 4, trust("-")))
    assert is_trusted(strings.zfill(trust("7"), 3))


@pytest.mark.parametrize(("method", "argument"), [("center", 10**9), ("ljust", 10**9), ("zfill", 10**9)])
def test_wide_fields_are_refused(method: str, argument: int) -> None:
    function = _strings().method(method)
    assert function is not None
    with pytest.raises(LimitError):
        function("x", argument)


def test_equal_to_ordinary_strings() -> None:
    text = trust("role")
    assert text == "role"
    assert hash(text) == hash("role")
    assert {"role": 1}[text] == 1
    assert type(plain(text)) is str
    assert str(text) is text
