"""Every slash command with what nobody would type: it says something or opens a screen, and the app stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from app_driver import Stage

from localllm.chat.commands import COMMANDS
from localllm.kernels.executor import LoadProgress

NONSENSE = ["", " [red]0[/red]", " 99999999999999999999", " -1 ../.. ½"]


def test_nonsense_does_no_harm(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(str(tmp_path))  # /export without a name writes here
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    monkeypatch.delenv("VISUAL", raising=False)

    async def steps(s: Stage) -> None:
        await s.ask("hello")
        for command in COMMANDS:
            if command.name == "quit":
                continue
            for argument in NONSENSE if command.arguments else NONSENSE[:2]:
                await s.enter(f"/{command.name}{argument}")
                await s.idle()
                s.app.clear_notifications()  # dozens of them take longer to lay out than all the rest
                for _ in range(3):
                    if len(s.app.screen_stack) > 1:
                        await s.press("escape")
                assert s.app.is_running
                assert len(s.app.screen_stack) == 1, f"/{command.name}{argument} leaves a screen open"
        await s.enter("/new")
        await s.ask("still here?")
        assert s.contents == ["still here?", "yes"]

    s = stage("yes")
    s.models.opened[0].load_steps = [LoadProgress("opening")]
    s.run(steps, size=(60, 16))


def test_messages_leave_room_for_the_chat(stage: Callable[..., Stage]) -> None:
    """Two of three lines each, on a small terminal: with the free row above each no more than a third of it."""

    async def steps(s: Stage) -> None:
        for word in ("one", "two"):
            s.app.tell(f"{word} " * 24, "error")
        await s.until(lambda: "two" in s.text)
        rows = [row for row in s.text.splitlines() if "one one" in row or "two two" in row]
        first, last = (s.text.splitlines().index(row) for row in (rows[0], rows[-1]))
        assert last - first <= 7
        assert len(rows) == 6

    stage("yes").run(steps, size=(80, 24))
