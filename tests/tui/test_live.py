"""Pieces of an answer that came between two looks are shown as one."""

from __future__ import annotations

from localllm.chat.session import AnswerDelta, PromptRead
from localllm.tui.answering import Ended, WorkEvent
from localllm.tui.live import joined


def test_neighbouring_pieces_of_a_kind_are_one() -> None:
    events: list[WorkEvent] = [
        PromptRead(3, 0, 3),
        AnswerDelta(7, "reasoning", "a", 1),
        AnswerDelta(7, "reasoning", "b", 2),
        AnswerDelta(7, "answer", "c", 1),
        AnswerDelta(7, "answer", "", 1),
        AnswerDelta(8, "answer", "d", 1),
        Ended(),
    ]
    assert list(joined(events)) == [
        PromptRead(3, 0, 3),
        AnswerDelta(7, "reasoning", "ab", 3),
        AnswerDelta(7, "answer", "c", 2),
        AnswerDelta(8, "answer", "d", 1),
        Ended(),
    ]
    assert list(joined([])) == []
    assert list(joined([AnswerDelta(1, "answer", "x", 1)])) == [AnswerDelta(1, "answer", "x", 1)]
