"""The slash commands in the command palette (Ctrl-P)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Provider
from textual.content import Content

from localllm.chat.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from localllm.chat.commands import SlashCommand


class ChatPalette(Provider):
    """Every command with its help; those that need a text put themselves into the prompt."""

    async def discover(self) -> AsyncIterator[DiscoveryHit]:
        """All of them."""
        for command in COMMANDS:
            yield DiscoveryHit(f"/{command.name}", self._action(command), help=command.help)

    async def search(self, query: str) -> AsyncIterator[Hit]:
        """Those that match in name or help."""
        matcher = self.matcher(query)
        for command in COMMANDS:
            text = f"/{command.name}  {command.help}"
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, Content(text), self._action(command), text=text, help=command.arguments)

    def _action(self, command: SlashCommand) -> Callable[[], None]:
        from .app import ChatApp

        app = self.app
        if not isinstance(app, ChatApp):
            raise TypeError("the palette belongs to the chat app")
        if command.arguments and not command.arguments.startswith("["):
            return partial(app.prompt.fill, f"/{command.name} ")
        return partial(app.run_command, f"/{command.name}")
