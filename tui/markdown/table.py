"""Tables: columns as wide as they need to be, narrower when the screen is, or a list where nothing else fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .row import Row, Span, Styled, cells, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = " │ "
NARROWEST = 6  # columns of a cell


def table_rows(header: Sequence[Styled], body: Sequence[Sequence[Styled]], width: int) -> list[Row]:
    """Rows of a table that is at most `width` columns wide."""
    count = len(header)
    lines = [[*row[:count], *([Styled("")] * (count - len(row)))] for row in body]
    wanted = [max([cells(row[column].text) for row in [header, *lines]] + [1]) for column in range(count)]
    room = width - len(GAP) * (count - 1)
    if room < NARROWEST * count and sum(wanted) > room:
        return _as_list(header, lines, width)
    widths = _fit(wanted, room)
    rows = _line([_strong(cell) for cell in header], widths)
    rule = "─┼─".join("─" * size for size in widths)
    rows.append(Row(rule, ((0, len(rule), "rule"),), margin=len(rule)))
    for line in lines:
        rows += _line(line, widths)
    return rows


def _fit(wanted: list[int], room: int) -> list[int]:
    """Narrow columns keep their width; wide ones share what is left."""
    if sum(wanted) <= room:
        return wanted
    widths = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda column: wanted[column])
    left = room
    for place, column in enumerate(order):
        share = left // (len(order) - place)
        widths[column] = max(1, min(wanted[column], share))
        left -= widths[column]
    return widths


def _line(cells_of: Sequence[Styled], widths: Sequence[int]) -> list[Row]:
    wrapped = [wrap(cell, size) for cell, size in zip(cells_of, widths, strict=True)]
    rows = []
    for index in range(max(len(lines) for lines in wrapped)):
        text, spans = "", list[Span]()
        for column, lines in enumerate(wrapped):
            if column:
                spans.append((len(text), len(text) + len(GAP), "rule"))
                text += GAP
            row = lines[index] if index < len(lines) else Row("")
            spans += [(start + len(text), end + len(text), name) for start, end, name in row.spans]
            text += row.text + " " * max(0, widths[column] - cells(row.text))
        text = text.rstrip()
        rows.append(Row(text, tuple((a, min(b, len(text)), name) for a, b, name in spans if a < len(text))))
    return rows


def _as_list(header: Sequence[Styled], body: Sequence[Sequence[Styled]], width: int) -> list[Row]:
    rows: list[Row] = []
    for line in body:
        for name, cell in zip(header, line, strict=True):
            label = f"{name.text}: "
            spans = ((0, len(label), "strong"), *((a + len(label), b + len(label), n) for a, b, n in cell.spans))
            rows += wrap(Styled(label + cell.text, spans), width)
        rows.append(Row(""))
    return rows[:-1] if rows else wrap(_strong(Styled(", ".join(name.text for name in header))), width)


def _strong(cell: Styled) -> Styled:
    return Styled(cell.text, (*cell.spans, (0, len(cell.text), "strong")))
