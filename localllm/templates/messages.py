"""Conversations as templates expect them: checked, and changed only where a template refuses them as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localllm.errors import RequestError

from .text import trust

Message = dict[str, Any]

# Templates write these next to or inside of control tokens. No other part of a message is trusted.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "model", "ipython"))
_GAP = "\n\n"
FOLDED = "This model's chat template takes no system messages: their text was put in front of the user's message."
JOINED = "This model's chat template takes no two messages of one role in a row: neighbours were joined."


def check_messages(messages: Sequence[Mapping[str, Any]], knows_developer: bool) -> list[Message]:
    """Copies of the messages: text parts joined by lines, tool arguments parsed, no content without a reason.

    RequestError names the first message that is wrong.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a list with at least one message", parameter="messages")
    return [_checked(message, f"messages[{place}]", knows_developer) for place, message in enumerate(messages)]


def _checked(message: Mapping[str, Any], where: str, knows_developer: bool) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content", parameter=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role must be a string such as 'user'", parameter=f"{where}.role")
    checked = dict(message)
    if role == "developer" and not knows_developer:
        checked["role"] = "system"
    calls = message.get("tool_calls")
    if calls is not None:
        checked["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    content = _content(message.get("content"), f"{where}.content")
    checked["content"] = "" if content is None and not calls else content
    return checked


def _content(content: object, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or a list of text parts", parameter=where)
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise RequestError(
                f"{where}[{place}] is not a text part: this model reads text only", parameter=f"{where}[{place}]"
            )
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(calls: object, where: str) -> list[Any]:
    """Tool calls with their arguments as objects: the HTTP interface carries them as JSON in a string."""
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list", parameter=where)
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(function, Mapping) and isinstance(arguments, str):
            call = {**call, "function": {**function, "arguments": _parsed(arguments)}}
        parsed.append(call)
    return parsed


def _parsed(arguments: str) -> object:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def variants(messages: list[Message]) -> Iterator[tuple[list[Message], tuple[str, ...]]]:
    """The conversation as it is, then ways of saying the same to templates that know less, each with its notes."""
    yield messages, ()
    filled = [{**message, "content": message["content"] or ""} for message in messages]
    if filled != messages:
        yield filled, ()
    folded = _folded(filled)
    if folded != filled:
        yield folded, (FOLDED,)
    joined = _joined(filled)
    if joined != filled:
        yield joined, (JOINED,)
    both = _joined(folded)
    if both not in (folded, joined):
        yield both, (FOLDED, JOINED)


def _folded(messages: list[Message]) -> list[Message]:
    """Each system text in front of the next user message; where none follows, it is a user message itself."""
    folded: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            folded.append({**message, "content": _GAP.join((*waiting, message["content"]))})
            waiting = []
        else:
            folded.append(message)
    if waiting:
        folded.append({"role": "user", "content": _GAP.join(waiting)})
    return folded


def _joined(messages: list[Message]) -> list[Message]:
    """Neighbours of one role as one message, but for those that call tools or answer such calls."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        plain_text = message["role"] in ("system", "user", "assistant") and not message.get("tool_calls")
        if last and plain_text and last["role"] == message["role"] and not last.get("tool_calls"):
            joined[-1] = {**last, "content": _GAP.join((last["content"], message["content"]))}
        else:
            joined.append(message)
    return joined


def with_trusted_roles(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with the well-known roles marked as written by us."""
    return [
        {**message, "role": trust(message["role"])} if message.get("role") in _ROLES else dict(message)
        for message in messages
    ]


def letters_in(value: object) -> int:
    """Letters and elements of a value made of JSON, whatever its depth."""
    count = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        count += 1
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, Mapping):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
    return count
