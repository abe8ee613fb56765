"""Shares on the command line."""

from __future__ import annotations

import click
import pytest

from localllm.cli.percent import Percent


@pytest.mark.parametrize(
    ("text", "share"), [("2%", 0.02), ("0.02", 0.02), ("100%", 1.0), (" 1% ", 0.01), ("1e-3", 0.001)]
)
def test_a_share_is_a_fraction_or_has_its_sign(text: str, share: float) -> None:
    assert Percent().convert(text, None, None) == pytest.approx(share)


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "2", "nan", "inf", "much", "%", ""])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no share"):
        Percent().convert(text, None, None)


def test_a_bare_one_is_asked_about() -> None:
    with pytest.raises(click.BadParameter, match="1% or 100%"):
        Percent().convert("1", None, None)
