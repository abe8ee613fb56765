"""What options make of what people write."""

from __future__ import annotations

import click
import pytest

from localllm.cli.options import Size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("6GiB", 6 << 30),
        ("500MB", 500 * 10**6),
        ("1.5g", 15 * 10**8),
        ("1TiB", 1 << 40),
        ("2 tb", 2 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["nonsense", "-1", "6PiB", ""])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 6GiB"):
        Size().convert(text, None, None)
