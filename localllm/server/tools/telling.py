"""Tools for models whose chat template knows none: described in the system message, results told by the user."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTRODUCTION = (
    "You may call these functions. To call one, write exactly\n"
    '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>\n'
    "and nothing after it. The functions, one JSON description a line:\n"
)


def tell(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation without tool messages and calls, the same said in plain messages."""
    told: list[dict[str, Any]] = []
    if tools:
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        told.append({"role": "system", "content": _INTRODUCTION + listed})
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role in ("system", "developer") and told and told[0]["role"] == "system" and len(told) == 1:
            told[0] = {"role": "system", "content": f"{content}\n\n{told[0]['content']}"}
        elif role == "tool":
            told.append({"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"})
        elif message.get("tool_calls"):
            calls = [_call(call["function"]) for call in message["tool_calls"]]
            told.append({"role": "assistant", "content": "\n".join([content, *calls] if content else calls)})
        else:
            told.append({"role": role, "content": content})
    return _joined(told)


def _call(function: dict[str, Any]) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {function["arguments"]}}}\n</tool_call>'


def _joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of several tools in a row are one message: many templates take no two of one role."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and message["role"] == "user" == joined[-1]["role"]:
            joined[-1] = {"role": "user", "content": f"{joined[-1]['content']}\n{message['content']}"}
        else:
            joined.append(message)
    return joined
