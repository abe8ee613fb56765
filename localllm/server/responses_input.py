"""The items of a /v1/responses request as a chat completion's messages and fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .decode import decode
from .errors import bad_request
from .fields import ChatRequest, InputText, OutputText

if TYPE_CHECKING:
    from .fields import ResponsesRequest

_ROLES = ("user", "assistant", "system", "developer")


def as_chat(asked: ResponsesRequest) -> tuple[ChatRequest, list[dict[str, Any]]]:
    """The same request as a chat completion, with its messages. APIError 400."""
    messages = _messages(asked)
    body: dict[str, Any] = {
        "model": asked.model,
        "messages": messages,
        "max_completion_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "seed": asked.seed,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "stream": asked.stream,
        "tools": [_tool(msgspec.to_builtins(tool)) for tool in asked.tools or ()] or None,
        "tool_choice": _choice(asked.tool_choice),
        "response_format": _format(asked),
        "reasoning_effort": None if asked.reasoning is None else asked.reasoning.effort,
    }
    chat, _ = decode(body, ChatRequest)
    return chat, messages


def _messages(asked: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if asked.instructions is not None:
        messages.append({"role": "system", "content": asked.instructions})
    if isinstance(asked.input, str):
        return [*messages, {"role": "user", "content": asked.input}]
    if not asked.input:
        raise bad_request("input is empty", "input", "invalid_value")
    for index, item in enumerate(asked.input):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role", "invalid_value")
        message = {"role": role, "content": _content(item.get("content"), f"{where}.content")}
        last = messages[-1] if messages else None
        if role == "assistant" and last is not None and last.get("reasoning_content") and not last["content"]:
            last["content"] = message["content"]
        else:
            messages.append(message)
    elif kind == "function_call":
        call = {"name": _text(item, "name", where), "arguments": _text(item, "arguments", where)}
        entry = {"id": _text(item, "call_id", where), "type": "function", "function": call}
        last = messages[-1] if messages else None
        if last is None or last["role"] != "assistant":
            messages.append({"role": "assistant", "content": "", "tool_calls": [entry]})
        else:
            last["tool_calls"] = [*last.get("tool_calls", []), entry]
    elif kind == "function_call_output":
        content = _content(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": _text(item, "call_id", where), "content": content})
    elif kind == "reasoning":
        texts = [part.get("text", "") for part in item.get("content") or () if isinstance(part, dict)]
        messages.append({"role": "assistant", "content": "", "reasoning_content": "".join(map(str, texts))})
    else:
        raise bad_request(f"{where}: items of type {str(kind)[:40]!r} are not supported", where, "unsupported_content")


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name} must be a text", f"{where}.{name}", "invalid_value")
    return value


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    try:
        parts = msgspec.convert(content, list[InputText | OutputText])
    except msgspec.ValidationError:
        message = f"{where} must be a text or a list of input_text parts: this model reads text only"
        raise bad_request(message, where, "unsupported_content") from None
    return "\n".join(part.text for part in parts)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: str | dict[str, Any] | None) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
        raise bad_request("tool_choice must name a function", "tool_choice", "invalid_value")
    return {"type": "function", "function": {"name": choice["name"]}}


def _format(asked: ResponsesRequest) -> dict[str, Any] | None:
    wanted = None if asked.text is None else asked.text.format
    if wanted is None or wanted.get("type") != "json_schema":
        return wanted
    return {"type": "json_schema", "json_schema": {key: value for key, value in wanted.items() if key != "type"}}
