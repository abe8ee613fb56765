"""A conversation as a file: Markdown for people, JSON for programs (with every branch)."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import Message
    from .store import ConversationStore

FORMAT = "localllm-chat"
VERSION = 1
_NAMES = {"user": "You", "assistant": "Assistant", "system": "System", "tool": "Tool"}


def to_markdown(store: ConversationStore, conversation: int) -> str:
    """The current line of a chat; thinking is folded away in <details>."""
    chat = store.conversation(conversation)
    parts = [f"# {chat.title or 'Chat'}", f"*{chat.model}, {_date(chat.created)}*"]
    if chat.system:
        parts += ["## System", chat.system]
    for message in store.path_to(chat.leaf):
        if message.is_blank:
            continue
        parts.append(f"## {_NAMES[message.role]}")
        if message.reasoning:
            parts.append(f"<details><summary>Thinking</summary>\n\n{message.reasoning.strip()}\n\n</details>")
        parts.append(message.content + (" *(stopped)*" if message.state == "partial" else ""))
    return "\n\n".join(parts) + "\n"


def to_json(store: ConversationStore, conversation: int) -> str:
    """The whole tree. `messages` is the current line as OpenAI clients write it, so that other programs can read on:
    answers that failed before a word stand in the tree alone."""
    chat = store.conversation(conversation)
    facts = asdict(chat)
    line: list[dict[str, Any]] = [{"role": "system", "content": chat.system}] if chat.system else []
    told = [message for message in store.path_to(chat.leaf) if not message.is_blank]
    line += [{"role": message.role, "content": message.content} for message in told]
    document = {
        "format": FORMAT,
        "version": VERSION,
        **{key: facts[key] for key in ("title", "model", "system", "sampling", "created", "leaf")},
        "messages": line,
        "tree": [_turn(message) for message in store.all_messages(conversation)],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _turn(message: Message) -> dict[str, Any]:
    facts = asdict(message)
    del facts["conversation"]
    return facts


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
