"""Columns for a terminal: widths by what a terminal shows, not by code points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence


def tokens(count: int) -> str:
    """A number of tokens in words: 1 token, 2 tokens."""
    return f"{count} token" if count == 1 else f"{count} tokens"


def print_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows as columns; columns in `right` are aligned to the right."""
    from rich.cells import cell_len

    if not rows:
        return
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = []
        for column, text in enumerate(row):
            space = " " * (widths[column] - cell_len(text))
            cells.append(space + text if column in right else text + space)
        click.echo("  ".join(cells).rstrip())
