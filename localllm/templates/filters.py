"""The filters of templates: Jinja's own, with those on strings bounded and keeping track of what is trusted."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import pass_environment
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.sandbox import SandboxedEnvironment

from .budget import Budget, LimitError
from .strings import Strings
from .text import join, trust
from .values import to_json, to_text

# Not for prompts: random choices, links, HTML attributes and programmers' output.
_LEFT_OUT = frozenset(("random", "urlize", "xmlattr", "pprint"))
# These look at each letter in Python or by a regular expression.
_SLOW = frozenset(("striptags", "title", "truncate", "urlencode", "wordcount", "wordwrap"))
_SLOWNESS = 32
_LONGEST_LIST = 2**20
_MOST_DIGITS = 64
_LARGEST_GROUP = 10_000

Filter = Callable[..., Any]


def filters(budget: Budget, strings: Strings) -> dict[str, Filter]:
    """All filters for one rendering."""
    chosen = {name: function for name, function in FILTERS.items() if name not in _LEFT_OUT}
    text = functools.partial(to_text, budget)
    chosen.update(
        tojson=functools.partial(to_json, budget),
        string=text,
        safe=text,
        trim=lambda value, chars=None: strings.strip(text(value), chars),
        upper=lambda value: strings.upper(text(value)),
        lower=lambda value: strings.lower(text(value)),
        capitalize=lambda value: strings.capitalize(text(value)),
        replace=lambda value, old, new, count=None: strings.replace(text(value), text(old), text(new), count),
        center=lambda value, width=80: strings.center(text(value), width),
        format=lambda value, *args, **kwargs: strings.percent(text(value), kwargs or args),
        indent=functools.partial(_indent, strings, text),
        join=pass_environment(functools.partial(_join, strings, text)),
        list=_list,
        sum=pass_environment(functools.partial(_sum, budget)),
        batch=_bounded(chosen["batch"], _LARGEST_GROUP),
        slice=_bounded(chosen["slice"], _LARGEST_GROUP),
        round=_bounded(chosen["round"], _MOST_DIGITS),
    )
    return {name: _metered(budget, function, _SLOWNESS if name in _SLOW else 1) for name, function in chosen.items()}


def _metered(budget: Budget, function: Filter, slowness: int) -> Filter:
    """The filter, paying for its turn, for the strings that it reads and for what it makes."""

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        budget.step()
        for value in args:
            if isinstance(value, str):
                budget.letters(len(value) * slowness)
        return budget.made(function(*args, **kwargs))

    return metered


def _bounded(function: Filter, largest: int) -> Filter:
    """A filter whose arguments are numbers up to `largest`."""

    @functools.wraps(function)
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(number, int) and abs(number) > largest for number in (*args, *kwargs.values())):
            raise LimitError("it asks a filter for too much")
        return function(value, *args, **kwargs)

    return bounded


def _indent(
    strings: Strings,
    text: Callable[[object], str],
    value: object,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> str:
    """Each line but the first, and unless asked for no empty one, after some spaces or a given text."""
    indentation = width if isinstance(width, str) else strings.repeat(trust(" "), strings.width(width))
    lines = strings.splitlines(join((text(value), trust("\n"))))
    indented = [join((indentation, line)) if line or blank else line for line in lines]
    joined = strings.join(trust("\n"), [*lines[:1], *indented[1:]])
    return join((indentation, joined)) if first else joined


def _join(
    strings: Strings,
    text: Callable[[object], str],
    environment: SandboxedEnvironment,
    value: Iterable[object],
    d: object = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return strings.join(text(d), map(text, value))


def _sum(
    budget: Budget,
    environment: SandboxedEnvironment,
    iterable: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,
) -> Any:
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    for value in iterable:
        budget.step()
        start = budget.made(start + value)
    return start


def _list(value: Iterable[object]) -> list[object]:
    values = list(itertools.islice(value, _LONGEST_LIST + 1))
    if len(values) > _LONGEST_LIST:
        raise LimitError("it makes too large a list")
    return values
