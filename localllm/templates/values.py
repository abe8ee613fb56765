"""Any value as text: as Python shows it, as JSON, and never longer than the budget allows."""

from __future__ import annotations

import json

from jinja2 import Undefined

from .budget import Budget, LimitError

_WIDEST_INDENT = 16


def to_text(budget: Budget, value: object) -> str:
    """What `{{ value }}` shows; strings keep their trusted parts."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float, Undefined)):
        return str(value)
    if isinstance(value, (list, tuple, dict, range)):
        budget.weigh(value)
        shown = repr(value)
        budget.letters(len(shown))
        return shown
    return f"<{type(value).__name__}>"


def to_json(
    budget: Budget,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter of Hugging Face's chat templates: plain JSON, with no escapes for HTML."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _WIDEST_INDENT):
        raise LimitError(f"it asks for an indentation that is not 0 to {_WIDEST_INDENT}")
    budget.weigh(value)
    shown = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, allow_nan=True
    )
    budget.letters(len(shown))
    return shown
