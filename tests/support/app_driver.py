"""Drives the chat app in a test: a desk over a script, a pilot, and the screen as text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scripted_chat import PATIENCE, Piece
from scripted_models import ScriptedModels
from textual.pilot import Pilot

from localllm.chat.desk import ChatDesk
from localllm.conversations import ConversationStore
from localllm.paths import Paths
from localllm.tui.app import ChatApp

Steps = Callable[["Stage"], Awaitable[None]]


class Stage:
    """An app under test and what a test does with it."""

    def __init__(
        self, folder: Path, *pieces: Piece, model: str = "scripted", models: ScriptedModels | None = None
    ) -> None:
        self.folder = folder
        self.paths = Paths.from_environment({"LOCALLLM_HOME": str(folder)})
        self.store = ConversationStore(self.paths.chats)
        self.models = models or ScriptedModels(*pieces)
        self.desk = ChatDesk(self.store, self.models, model)
        self.app = ChatApp(self.desk, self.paths)
        self.copied: list[str] = []
        self.app.copy_to_clipboard = self.copied.append  # type: ignore[method-assign, assignment]
        self.pilot: Pilot[None]
        self._told: list[str] = []
        notify = self.app.notify

        def record(message: str, **options: Any) -> None:
            self._told.append(message)
            notify(message, **options)

        self.app.notify = record  # type: ignore[method-assign]

    def run(self, steps: Steps, size: tuple[int, int] = (100, 30), *, loaded: bool = True) -> None:
        """Start, do the steps, end."""

        async def drive() -> None:
            async with self.app.run_test(size=size, notifications=True) as pilot:
                self.pilot = pilot
                if loaded:
                    await self.until(lambda: not self.app.busy)
                await steps(self)

        try:
            asyncio.run(drive())
        finally:
            self.store.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something; the test fails when it does not come."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"waited in vain; the screen is\n{self.text}"
            await self.pilot.pause(0.02)
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def enter(self, text: str) -> None:
        """Fill the prompt and press Enter."""
        self.app.prompt.fill(text)
        await self.press("enter")

    async def ask(self, text: str) -> None:
        """A question and its whole answer."""
        await self.enter(text)
        await self.idle()

    async def idle(self) -> None:
        """Until nothing is loading or being written."""
        await self.until(lambda: not self.app.busy)

    @property
    def text(self) -> str:
        """The screen."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    @property
    def contents(self) -> list[str]:
        """The chat as it is stored."""
        return [message.content for message in self.desk.messages()]

    @property
    def told(self) -> str:
        """Every notification so far, also those that are no longer on the screen."""
        return "\n".join(self._told)
