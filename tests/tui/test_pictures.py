"""What a person sees, letter by letter, in two sizes; and the same as a picture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from app_driver import Stage

MakeStage = Callable[..., Stage]

ANSWER = (
    "<think>Easy.</think># Title\n\nSome *text* with `code` that goes on.\n\n- one\n- two\n\n",
    "```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
)

BROAD = """\
 localllm ▸ show me
  You
  show me

  scripted
  ▸ thought, 1 word

  Title

  Some text with code that goes on.

  • one
  • two

   py                                                      copy
   x = 1


  a │ b
  ──┼──
  1 │ 2
  2 tokens  1.0 tok/s


╭────────────────────────────────────────────────────────────────╮
│ Ask anything. / commands, F1 help                              │
╰────────────────────────────────────────────────────────────────╯
 ● ready │ 1.0 tok/s (expected 100) │ context ░░░░░░░░░░░░ 5/4096
 scripted │ model 98 MB │ KV 12 MB │ all on cpu"""

SMALL = """\
   x = 1


  a │ b
  ──┼──
  1 │ 2
  2 tokens  1.0 tok/s

╭──────────────────────────────────────╮
│ Ask anything. / commands, F1 help    │
╰──────────────────────────────────────╯
 ● ready │ 1.0 tok/s │ ░░░░ 5/4096"""
SCROLL_BAR = str.maketrans("", "", "▁▂▃▄▅▆▇█")


@pytest.mark.parametrize(("size", "expected"), [((66, 29), BROAD), ((40, 12), SMALL)])
def test_the_screen(stage: MakeStage, size: tuple[int, int], expected: str) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("show me")
        drawn = s.text.translate(SCROLL_BAR)
        assert [row.rstrip() for row in drawn.splitlines()] == expected.splitlines()
        picture = s.app.export_screenshot()
        assert picture.startswith("<svg")
        assert "ready" in picture

    stage(*ANSWER).run(steps, size=size)
