"""A group of commands whose help says of each the whole first sentence."""

from __future__ import annotations

import click

LONGEST_SENTENCE = 400  # letters; wrapped, never cut


class Group(click.Group):
    """click cuts a sentence where the terminal ends."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One row a command, in the group's order."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(LONGEST_SENTENCE)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
