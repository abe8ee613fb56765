"""Python's string methods for templates: bounded, and keeping track of what the template wrote.

Only the methods named here can be called. Where the parts of a result can be told apart they are; where they cannot,
the whole is trusted only if everything that went in was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any

from .budget import Budget, LimitError
from .text import Text, cut, is_trusted, join, plain, spans, trust

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

WIDEST_FIELD = 10_000
_LETTERS_FOR_A_PIECE = 16
_NUMBER = re.compile(r"\d{5,}|\*")
_CONVERSION = re.compile(r"%[^%a-zA-Z]*")


class Strings:
    """The methods for one rendering; the text they are called on is the first argument."""

    def __init__(self, budget: Budget, environment: SandboxedEnvironment) -> None:
        self._budget = budget
        self._environment = environment

    def method(self, name: str) -> Callable[..., Any] | None:
        """The method that a template means by a name, if it may call it."""
        if name in _UNCHANGED:
            unbound: Callable[..., Any] = getattr(str, name)
            return unbound
        return getattr(self, name) if name in _TRACKED else None

    def strip(self, text: str, chars: str | None = None) -> str:
        """Both ends cut; what is left keeps its trusted parts."""
        return self.rstrip(self.lstrip(text, chars), chars)

    def lstrip(self, text: str, chars: str | None = None) -> str:
        """The beginning cut."""
        self._budget.letters(len(text))
        return cut(text, len(text) - len(plain(text).lstrip(chars)), len(text))

    def rstrip(self, text: str, chars: str | None = None) -> str:
        """The end cut."""
        self._budget.letters(len(text))
        return cut(text, 0, len(plain(text).rstrip(chars)))

    def removeprefix(self, text: str, prefix: str) -> str:
        """Without this beginning, if it has it."""
        return cut(text, len(prefix), len(text)) if text.startswith(prefix) else text

    def removesuffix(self, text: str, suffix: str) -> str:
        """Without this end, if it has it."""
        return cut(text, 0, len(text) - len(suffix)) if suffix and text.endswith(suffix) else text

    def split(self, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        """Pieces between separators, from the left."""
        return self._located(text, sep, maxsplit, plain(text).split)

    def rsplit(self, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        """Pieces between separators, from the right."""
        return self._located(text, sep, maxsplit, plain(text).rsplit)

    def splitlines(self, text: str, keepends: bool = False) -> list[str]:
        """Pieces between line ends."""
        return self._located(text, None, -1, lambda *_: plain(text).splitlines(keepends))

    def _located(
        self, text: str, sep: str | None, most: int, split: Callable[[str | None, int], list[str]]
    ) -> list[str]:
        """Pieces that occur in the text one after the other, each with its trusted parts.

        Between them is `sep`, or white space that no piece begins with.
        """
        count = plain(text).count(sep) if sep else len(text)
        self._budget.letters(len(text) + _LETTERS_FOR_A_PIECE * (count if most < 0 else min(count, most)))
        located, position = [], 0
        for piece in split(sep, most):
            self._budget.step()
            position = plain(text).find(piece, position) if sep is None else position
            located.append(cut(text, position, position + len(piece)))
            position += len(piece) + len(sep or "")
        return located

    def partition(self, text: str, sep: str) -> tuple[str, str, str]:
        """What is before, at and after the first occurrence."""
        return self._around(text, sep, plain(text).find(sep), (text, "", ""))

    def rpartition(self, text: str, sep: str) -> tuple[str, str, str]:
        """What is before, at and after the last occurrence."""
        return self._around(text, sep, plain(text).rfind(sep), ("", "", text))

    def _around(self, text: str, sep: str, place: int, absent: tuple[str, str, str]) -> tuple[str, str, str]:
        if not sep:
            raise ValueError("empty separator")
        if place < 0:
            return absent
        self._budget.letters(len(text))
        end = place + len(sep)
        return cut(text, 0, place), cut(text, place, end), cut(text, end, len(text))

    def replace(self, text: str, old: str, new: str, count: int | None = -1) -> str:
        """Each occurrence exchanged; a count of None means all, as templates write it."""
        count = -1 if count is None else count
        found = plain(text).count(old) if count < 0 else min(count, plain(text).count(old))
        self._budget.letters(len(text) + found * len(new))
        if not old:
            return self._whole(plain(text).replace(old, new, count), text, new)
        return self.join(new, self._located(text, old, count, plain(text).split))

    def join(self, text: str, parts: Iterable[str]) -> str:
        """The parts with this text between them, each with its trusted parts."""
        joined: list[str] = []
        for part in parts:
            if not isinstance(part, str):
                raise TypeError(f"join needs strings, not {type(part).__name__}")
            self._budget.step()
            self._budget.letters(len(part) + len(text))
            joined.extend((text, part) if joined else (part,))
        return join(joined)

    def lower(self, text: str) -> str:
        """Small letters."""
        return self._same_letters(text, plain(text).lower())

    def upper(self, text: str) -> str:
        """Capital letters."""
        return self._same_letters(text, plain(text).upper())

    def casefold(self, text: str) -> str:
        """Letters for comparison."""
        return self._same_letters(text, plain(text).casefold())

    def capitalize(self, text: str) -> str:
        """The first letter a capital."""
        return self._same_letters(text, plain(text).capitalize())

    def title(self, text: str) -> str:
        """Each word with a capital."""
        return self._same_letters(text, plain(text).title())

    def swapcase(self, text: str) -> str:
        """Small for capital letters and the reverse."""
        return self._same_letters(text, plain(text).swapcase())

    def _same_letters(self, text: str, changed: str) -> str:
        """A change of case: letter by letter, but for the few that become several."""
        self._budget.letters(len(changed))
        return Text(changed, spans(text)) if len(changed) == len(text) else self._whole(changed, text)

    def center(self, text: str, width: int, fillchar: str = " ") -> str:
        """In the middle of a field; the filling and the text are one part."""
        return self._whole(plain(text).center(self.width(width), fillchar), text, fillchar)

    def ljust(self, text: str, width: int, fillchar: str = " ") -> str:
        """At the left of a field."""
        return join((text, self._whole(fillchar * max(0, self.width(width) - len(text)), fillchar)))

    def rjust(self, text: str, width: int, fillchar: str = " ") -> str:
        """At the right of a field."""
        return join((self._whole(fillchar * max(0, self.width(width) - len(text)), fillchar), text))

    def zfill(self, text: str, width: int) -> str:
        """Zeros before a number."""
        return self._whole(plain(text).zfill(self.width(width)), text)

    def width(self, width: int) -> int:
        """Pay for a field of this width; a LimitError where it is too wide."""
        if width > WIDEST_FIELD:
            raise LimitError("it asks for too wide a field")
        self._budget.letters(max(0, width))
        return width

    def format(self, text: str, *args: object, **kwargs: object) -> str:
        """Named and numbered fields filled; nothing inside the values can be reached."""
        formatted = _BoundedFormatter(self._environment).vformat(plain(text), args, kwargs)
        self._budget.letters(len(formatted))
        return self._whole(formatted, text, *args, *kwargs.values())

    def format_map(self, text: str, mapping: Mapping[str, object]) -> str:
        """As `format`, with the fields of a mapping."""
        return self.format(text, **mapping)

    def percent(self, text: str, values: object) -> str:
        """`text % values`."""
        if any(_NUMBER.search(conversion) for conversion in _CONVERSION.findall(plain(text))):
            raise LimitError("it asks for too wide a field")
        formatted = plain(text) % values
        self._budget.letters(len(formatted))
        parts = values.values() if isinstance(values, dict) else values if isinstance(values, tuple) else (values,)
        return self._whole(formatted, text, *parts)

    def repeat(self, text: str, times: int) -> str:
        """`text * times`."""
        self._budget.letters(len(text) * max(0, times))
        return self._whole(plain(text) * times, text)

    def _whole(self, result: str, *sources: object) -> str:
        """A result whose parts cannot be told apart."""
        numbers = (int, float)
        known = all(is_trusted(source) if isinstance(source, str) else type(source) in numbers for source in sources)
        return trust(result) if known else result


_TRACKED = frozenset(
    (
        *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "split", "rsplit", "splitlines"),
        *("partition", "rpartition", "replace", "join", "lower", "upper", "casefold", "capitalize", "title"),
        *("swapcase", "center", "ljust", "rjust", "zfill", "format", "format_map"),
    )
)
_UNCHANGED = frozenset(
    (
        *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isdigit", "isalpha", "isalnum"),
        *("isspace", "isupper", "islower", "istitle", "isnumeric", "isdecimal", "isascii", "isidentifier"),
        "isprintable",
    )
)


class _BoundedFormatter(Formatter):
    """`str.format` whose fields are found through the sandbox and are not too wide."""

    def __init__(self, environment: SandboxedEnvironment) -> None:
        self._environment = environment

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """A value by its name or number alone: a LimitError for `{value.attribute}` and `{value[index]}`."""
        name, *rest = re.split(r"[.\[]", field_name, maxsplit=1)
        if rest:
            raise LimitError("it looks inside the values that it formats")
        return self.get_value(int(name) if name.isdigit() else name, args, kwargs), name

    def format_field(self, value: Any, format_spec: str) -> Any:
        """One value by its specification; a LimitError where that asks for too wide a field."""
        if _NUMBER.search(format_spec):
            raise LimitError("it asks for too wide a field")
        return super().format_field(value, plain(format_spec))
