"""Inline Markdown (emphasis, code, links) as text with styles. Links are text: nothing can be clicked or opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .row import Span, Styled

if TYPE_CHECKING:
    from markdown_it.token import Token

_STYLES = {"em_open": "em", "strong_open": "strong", "s_open": "strike", "link_open": "link"}
_SPACES = re.compile(r"[ \t]+")


def styled_of(token: Token) -> Styled:
    """The text of an `inline` token."""
    parts: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[int, str, str]] = []
    position = 0

    def add(text: str) -> None:
        nonlocal position
        parts.append(text)
        position += len(text)

    for child in token.children or ():
        kind = child.type
        if kind == "text":
            add(_SPACES.sub(" ", child.content))
        elif kind == "softbreak":
            add(" ")
        elif kind == "hardbreak":
            add("\n")
        elif kind == "code_inline":
            start = position
            add(child.content)
            spans.append((start, position, "code-inline"))
        elif kind in _STYLES:
            opened.append((position, _STYLES[kind], str(child.attrs.get("href", ""))))
        elif kind.endswith("_close") and opened:
            start, style, address = opened.pop()
            spans.append((start, position, style))
            if address and address != "".join(parts)[start:position]:
                begin = position
                add(f" ({address})")
                spans.append((begin, position, "address"))
        elif kind == "image":
            start = position
            add(f"[image: {child.content or child.attrs.get('src', '')}]")
            spans.append((start, position, "link"))
        else:
            add(child.content)
    return Styled("".join(parts), tuple(spans))
