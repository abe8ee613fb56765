"""The lines of the meters."""

from __future__ import annotations

from localllm.tui.meters import Readings, lines


def test_guesses_are_shown_when_there_were_some() -> None:
    assert "7 of 10 guesses right" in lines(Readings(guesses=10, right=7, speed=5.0), 120, 2).plain
    assert "guesses" not in lines(Readings(speed=5.0), 120, 2).plain
    assert "guesses" not in lines(Readings(guesses=10, right=7, speed=5.0), 20, 1).plain
