"""The slash commands of a chat, the same in the app and in the plain line mode."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from localllm.errors import RequestError


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """`arguments` as shown in the help; `app_only` ones need the screen."""

    name: str
    arguments: str
    help: str
    aliases: tuple[str, ...] = ()
    app_only: bool = False


COMMANDS = (
    SlashCommand("help", "", "what can be done here", ("h", "?")),
    SlashCommand("new", "", "start a new chat", ("clear",)),
    SlashCommand("chats", "[WORDS]", "list the chats, or those that contain words", ("list", "search")),
    SlashCommand("open", "NUMBER", "go on with another chat", ("load",)),
    SlashCommand("title", "TEXT", "name this chat", ("rename",)),
    SlashCommand("delete", "", "put this chat into the bin; /undo takes it out"),
    SlashCommand("undo", "", "take the last deleted chat out of the bin"),
    SlashCommand("retry", "", "another answer to the last question (the old one stays)", ("regen", "regenerate")),
    SlashCommand("continue", "", "go on with an answer that was stopped or cut", ("resume",)),
    SlashCommand("edit", "[TEXT]", "change the last question: a new branch"),
    SlashCommand("branch", "", "show the next version of the last turn that has several"),
    SlashCommand("model", "[NAME]", "show or change the model", ("models",)),
    SlashCommand("system", "[TEXT]", "show or change the system prompt; - removes it"),
    SlashCommand("set", "[NAME VALUE]", "show or change sampling, such as temperature 0.2; - resets"),
    SlashCommand("attach", "FILE", "put a text file into the question", ("read", "file")),
    SlashCommand("copy", "[N]", "copy the last answer, or its code block N", (), app_only=True),
    SlashCommand("export", "[FILE]", "save the chat as .md or .json"),
    SlashCommand("import", "FILE", "read chats of OpenAI, ChatGPT or Ollama, or exported ones"),
    SlashCommand("stats", "", "speed, context and memory", ("status",)),
    SlashCommand("plan", "", "what of the model is where, and why", (), app_only=True),
    SlashCommand("theme", "[NAME]", "other colours", (), app_only=True),
    SlashCommand("editor", "", "write the question in $EDITOR", (), app_only=True),
    SlashCommand("quit", "", "leave; everything is kept", ("exit", "bye", "q")),
)


def parse_command(line: str) -> tuple[SlashCommand, str]:
    """The command of a line that starts with a slash, and the rest. RequestError names the nearest ones."""
    word, _, rest = line.strip()[1:].partition(" ")
    name = word.lower()
    for command in COMMANDS:
        if name == command.name or name in command.aliases:
            return command, rest.strip()
    near = difflib.get_close_matches(name, [command.name for command in COMMANDS], 1, cutoff=0.6)
    raise RequestError(
        f"there is no command /{word[:40]}",
        hint=f"did you mean /{near[0]}?" if near else "see /help; to send such a text, put a space before it",
    )


def is_command(text: str) -> bool:
    """Whether a text is meant as a command: one line of a slash and a word (a path has a second slash)."""
    word = text.strip().split(" ", 1)[0]
    return text.startswith("/") and "\n" not in text.strip() and (word[1:].isalpha() or word in ("/", "/?"))
