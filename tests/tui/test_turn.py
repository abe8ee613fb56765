"""A turn of the transcript as rows."""

from __future__ import annotations

from localllm.tui.widgets.turn import Turn


def test_a_long_question_is_folded_in_its_middle() -> None:
    turn = Turn(1, "user", "You", text="\n".join(f"line {number}" for number in range(100)) + "\nWhat is in line 7?")
    rows = [row.text.strip() for row in turn.rows(60)]
    assert "line 0" in rows
    assert "… 90 more lines" in rows
    assert rows[rows.index("… 90 more lines") + 3] == "What is in line 7?"
    turn.unfolded = True
    turn.version += 1
    assert "line 50" in [row.text.strip() for row in turn.rows(60)]
