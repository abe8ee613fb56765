"""Conversations from files of other programs, and our own. What cannot be text (images, tools) becomes a note.

Known: our own JSON; OpenAI messages (a list, or an object with `messages`, also one object a line); the `mapping` trees
of ChatGPT's data export; Ollama's chat requests (the OpenAI form with `images`). Files are untrusted input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from localllm.errors import RequestError

from .exporting import FORMAT, VERSION

if TYPE_CHECKING:
    from .records import Role, State
    from .store import ConversationStore

MAX_BYTES = 512 << 20
MAX_TURNS = 1_000_000
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "model": "assistant"}
_KNOWN = "OpenAI messages, a ChatGPT export (conversations.json), an Ollama chat, or a chat that localllm exported"


@dataclass(slots=True)
class Turn:
    """A turn of a file; `parent` is an index into the turns of its chat."""

    role: Role
    content: str
    parent: int | None
    reasoning: str = ""
    partial: bool = False


@dataclass(slots=True)
class ImportedChat:
    """A chat of a file; `leaf` is the index of the turn that it ends with."""

    title: str = ""
    model: str = ""
    system: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    leaf: int | None = None

    def append(self, role: Role, content: str, reasoning: str = "") -> None:
        """A turn after the last one."""
        parent = len(self.turns) - 1 if self.turns else None
        self.turns.append(Turn(role, content, parent, reasoning))
        self.leaf = len(self.turns) - 1


def import_chats(store: ConversationStore, data: bytes, *, model: str) -> list[int]:
    """Store every chat of a file; `model` is that of chats that name none. Returns their ids.

    Raises RequestError, and stores nothing, when the file is of no known form.
    """
    chats = [chat for chat in parse(data) if chat.turns]
    if not chats:
        raise RequestError("the file holds no messages", hint=f"it should be {_KNOWN}")
    with store.transaction():
        return [_store(store, chat, model) for chat in chats]


def _store(store: ConversationStore, chat: ImportedChat, model: str) -> int:
    title = chat.title or next((" ".join(turn.content.split())[:60] for turn in chat.turns), "")
    identifier = store.create(chat.model or model, title=title, system=chat.system, sampling=chat.sampling)
    ids: list[int] = []
    for turn in chat.turns:
        parent = None if turn.parent is None else ids[turn.parent]
        state: State = "partial" if turn.partial else "complete"
        ids.append(store.add(identifier, parent, turn.role, turn.content, state=state))
        if turn.reasoning:
            store.write(ids[-1], turn.content, reasoning=turn.reasoning, state=state)
    store.rewind(identifier, None if chat.leaf is None else ids[chat.leaf])
    return identifier


def parse(data: bytes) -> list[ImportedChat]:
    """The chats of a file."""
    if len(data) > MAX_BYTES:
        raise RequestError(f"the file is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"the file is not UTF-8 text (byte {error.start})", hint=f"it should be {_KNOWN}") from None
    chats = _chats(_document(text))
    if sum(len(chat.turns) for chat in chats) > MAX_TURNS:
        raise RequestError(f"the file has more than {MAX_TURNS} messages")
    return chats


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise RequestError("the file is nested too deeply") from None
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise RequestError(f"the file is not JSON: {error}", hint=f"it should be {_KNOWN}") from None
        try:
            return [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise RequestError(f"the file is not JSON: {error}", hint=f"it should be {_KNOWN}") from None


def _chats(document: Any) -> list[ImportedChat]:
    if isinstance(document, dict):
        return [_chat(document)]
    if isinstance(document, list) and all(isinstance(item, dict) for item in document):
        if document and all("role" in item for item in document):
            return [_linear({"messages": document})]
        return [_chat(item) for item in document]
    raise RequestError("the file is JSON, but no chat", hint=f"it should be {_KNOWN}")


def _chat(table: dict[str, Any]) -> ImportedChat:
    if table.get("format") == FORMAT:
        return _own(table)
    if isinstance(table.get("mapping"), dict):
        return _mapping(table)
    for key in ("messages", "conversation", "conversations"):
        if isinstance(table.get(key), list):
            return _linear({**table, "messages": table[key]})
    raise RequestError("the file is JSON, but no chat", hint=f"it should be {_KNOWN}")


def _linear(table: dict[str, Any]) -> ImportedChat:
    chat = ImportedChat(title=_text(table.get("title")), model=_text(table.get("model")))
    chat.system = _text(table.get("system"))
    for item in table["messages"]:
        if not isinstance(item, dict):
            raise RequestError("a message of the file is no object")
        role = _text(item.get("role", item.get("from"))).lower()
        content = _content(item.get("content", item.get("value"))) + _left_out(item)
        if role in ("system", "developer"):
            chat.system = f"{chat.system}\n\n{content}".strip()
        elif role in _ROLES:
            thinking = _text(item.get("reasoning_content") or item.get("thinking"))
            chat.append(cast("Role", _ROLES[role]), content, thinking)
    return chat


def _left_out(item: dict[str, Any]) -> str:
    images = item.get("images")
    return f"\n\n[{len(images)} images left out]" if isinstance(images, list) and images else ""


def _content(value: Any) -> str:
    """A text, or the parts of one; other parts are named, not dropped in silence."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError("the content of a message is neither text nor a list of parts")
    parts = []
    for part in value:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            kind = _text(part.get("type") or part.get("content_type")) if isinstance(part, dict) else ""
            parts.append(f"[{kind or 'something'} left out]")
    return "\n\n".join(parts)


def _mapping(table: dict[str, Any]) -> ImportedChat:
    """ChatGPT's export: nodes with a message, a parent and children; `current_node` is the end."""
    nodes: dict[str, Any] = {key: node for key, node in table["mapping"].items() if isinstance(node, dict)}
    chat = ImportedChat(title=_text(table.get("title")), model=_text(table.get("default_model_slug")))
    index_of: dict[str, int | None] = {}
    for key in _parents_first(nodes):
        node = nodes[key]
        above = index_of.get(_text(node.get("parent")))
        index_of[key] = above
        message = node.get("message")
        if not isinstance(message, dict):
            continue
        author = message.get("author")
        role = _text(author.get("role")) if isinstance(author, dict) else ""
        content = message.get("content")
        text = _content(content.get("parts", content.get("text", ""))) if isinstance(content, dict) else ""
        if role == "system" and text.strip():
            chat.system = f"{chat.system}\n\n{text}".strip()
        elif role in _ROLES and text.strip():
            chat.turns.append(Turn(cast("Role", _ROLES[role]), text, above))
            index_of[key] = len(chat.turns) - 1
    chat.leaf = index_of.get(_text(table.get("current_node")), len(chat.turns) - 1 if chat.turns else None)
    return chat


def _parents_first(nodes: dict[str, Any]) -> list[str]:
    children: dict[str, list[str]] = {}
    roots = []
    for key, node in nodes.items():
        parent = _text(node.get("parent"))
        if parent in nodes:
            children.setdefault(parent, []).append(key)
        else:
            roots.append(key)
    order, waiting = [], roots[::-1]
    while waiting:
        key = waiting.pop()
        order.append(key)
        waiting += children.get(key, [])[::-1]
    return order  # nodes of a circle are reached from no root: left out


def _own(table: dict[str, Any]) -> ImportedChat:
    if table.get("version") != VERSION:
        raise RequestError(f"the chat has version {table.get('version')!r}; this localllm reads {VERSION}")
    sampling = table.get("sampling")
    chat = ImportedChat(_text(table.get("title")), _text(table.get("model")), _text(table.get("system")))
    chat.sampling = sampling if isinstance(sampling, dict) else {}
    index_of: dict[Any, int] = {}
    tree = table.get("tree")
    for item in tree if isinstance(tree, list) else []:
        role = item.get("role") if isinstance(item, dict) else None
        if role not in _ROLES or not isinstance(item.get("id"), int):
            raise RequestError("the chat was changed: a turn has no role or number")
        parent = None if item.get("parent") is None else index_of.get(item["parent"])
        partial = item.get("state") == "partial"
        turn = Turn(role, _text(item.get("content")), parent, _text(item.get("reasoning")), partial)
        index_of[item["id"]] = len(chat.turns)
        chat.turns.append(turn)
    chat.leaf = index_of.get(table.get("leaf"), len(chat.turns) - 1 if chat.turns else None)
    return chat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
