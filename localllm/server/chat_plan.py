"""From a chat completion's fields to what the engine is asked, and to how its text is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from localllm.engine import Request

from .errors import bad_request
from .fields import JsonObjectFormat, JsonSchemaFormat, NamedTool, TextFormat
from .sampling import chat_sampling
from .tools.forcing import call_rules, embedded
from .tools.telling import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localllm.engine import Constraint

    from .fields import ChatRequest, FunctionDefinition, ResponseFormat, Sampling, Tool
    from .parts import AnswerReader
    from .served import ServedModel

_ANY_OBJECT = {"type": "object"}
_TAKEN = frozenset(("messages", "tools", "add_generation_prompt", "template", "tokenizer"))


@dataclass(frozen=True, slots=True, eq=False)
class ChatPlan:
    """`request` for the engine; `reader` reads each answer; at most `most_calls` calls are taken (None: all)."""

    request: Request
    reader: Callable[[], AnswerReader]
    most_calls: int | None


def plan_chat(served: ServedModel, asked: ChatRequest, messages: Sequence[dict[str, Any]], client: str) -> ChatPlan:
    """Everything that a chat completion needs. APIError or RequestError for what cannot work. Takes some time."""
    functions, forced = _chosen(asked)
    parameters = chat_sampling(asked, served)
    tools = tool_objects(asked.tools or ()) if functions else []
    plain = flattened(messages)
    if plain[-1]["role"] == "assistant" and plain[-1].get("tool_calls"):
        raise bad_request("the last message calls tools: send their results after it", "messages", "invalid_value")
    if len(plain) == 1 and plain[0]["role"] == "assistant":
        message = "the only message is the assistant's: send the message that it answers before it"
        raise bad_request(message, "messages", "invalid_value")
    if served.native_dialect is None and not served.is_harmony and (tools or _about_tools(plain)):
        plain, template_tools = tell(plain, tools), []
    else:
        template_tools = tools
    options = template_options(asked.chat_template_kwargs)
    if asked.reasoning_effort is not None:
        options.setdefault("reasoning_effort", asked.reasoning_effort)
    model = served.model
    ids = model.encode_chat(plain, tools=template_tools or None, template_options=options or None)
    inside = served.thinking_tag(ids)
    with_tools = bool(functions)
    request = Request(
        ids=ids,
        parameters=parameters,
        sinks=model.system_prefix(ids, plain, template_tools or None),
        n=asked.n or 1,
        priority=asked.priority or 0,
        client=client,
        deadline=asked.timeout,
        constraint=_constraint(served, asked, functions, forced, inside),
        show_special=served.shows_markers(with_tools),
    )
    return ChatPlan(
        request,
        lambda: served.reader(with_tools=with_tools, inside=inside is not None, progressive=bool(asked.stream)),
        1 if _at_most_one_call(asked) else None,
    )


def template_options(given: dict[str, Any] | None) -> dict[str, Any]:
    """Variables for the chat template; APIError for names that are taken."""
    for name in given or {}:
        if name in _TAKEN or not name.isidentifier():
            message = f"chat_template_kwargs: {name[:60]!r} cannot be set"
            raise bad_request(message, "chat_template_kwargs", "invalid_value")
    return dict(given or {})


def flattened(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with lists of text parts as one text, and without empty fields."""
    plain = []
    for message in messages:
        kept = {key: value for key, value in message.items() if value is not None}
        if isinstance(kept.get("content"), list):
            kept["content"] = "\n".join(part["text"] for part in kept["content"])
        if not kept.get("tool_calls"):
            kept.pop("tool_calls", None)
            kept.setdefault("content", "")
        plain.append(kept)
    return plain


def _about_tools(messages: Sequence[dict[str, Any]]) -> bool:
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def _chosen(asked: ChatRequest) -> tuple[list[FunctionDefinition], bool]:
    """The functions that may be called, and whether one must be."""
    functions = [tool.function for tool in asked.tools or ()]
    names = [function.name for function in functions]
    if len(set(names)) != len(names):
        raise bad_request("two tools have the same name", "tools", "invalid_value")
    choice = asked.tool_choice
    if choice is None or choice == "auto":
        return functions, False
    if choice == "none":
        return [], False
    if not functions:
        raise bad_request("tool_choice needs tools", "tool_choice", "invalid_value")
    if choice == "required":
        return functions, True
    if isinstance(choice, NamedTool):
        named = [function for function in functions if function.name == choice.function.name]
        if named:
            return named, True
        message = f"tool_choice names {choice.function.name[:64]!r}, which is not among the tools"
        raise bad_request(message, "tool_choice.function.name", "invalid_value")
    message = "tool_choice must be auto, none, required or an object that names a function"
    raise bad_request(message, "tool_choice", "invalid_value")


def unused_format(asked: ChatRequest) -> list[str]:
    """A warning where `tool_choice` leaves no text that `response_format` could shape."""
    forced = asked.tool_choice == "required" or isinstance(asked.tool_choice, NamedTool)
    if not forced or _schema(asked.response_format) is None:
        return []
    return [
        "response_format was ignored: it shapes text, and tool_choice asks for a call, which follows its own schema"
    ]


def _at_most_one_call(asked: ChatRequest) -> bool:
    """A named function is called once, as OpenAI does."""
    return asked.parallel_tool_calls is False or isinstance(asked.tool_choice, NamedTool)


def _constraint(
    served: ServedModel,
    asked: ChatRequest,
    functions: Sequence[FunctionDefinition],
    forced: bool,
    after: str | None,
) -> Callable[[], Constraint] | None:
    schema = _schema(asked.response_format)
    if not functions or (not forced and schema is None):
        return constraint_of(served, asked, schema, after)
    if asked.regex is not None or asked.grammar is not None:
        raise bad_request("regex and grammar cannot be used together with tools", "tools", "invalid_value")
    rules = call_rules(served, functions, one=_at_most_one_call(asked))
    if forced:
        start, parameter = "start: calls", "tools"
    else:
        start, parameter = f"start: calls | answer\nanswer: {embedded(schema)}", "response_format"
    matcher = served.grammars.lark("\n".join([start, *rules]), parameter)
    return lambda: served.grammars.constraint(matcher, after)


def constraint_of(
    served: ServedModel, asked: Sampling, schema: dict[str, Any] | bool | None, after: str | None = None
) -> Callable[[], Constraint] | None:
    """The constraint of a schema, regex or grammar; at most one of them may be given."""
    given = [schema is not None, asked.regex is not None, asked.grammar is not None]
    if sum(given) > 1:
        raise bad_request("give only one of response_format, regex and grammar", "grammar", "invalid_value")
    if schema is not None:
        matcher = served.grammars.json_schema(schema, "response_format")
    elif asked.regex is not None:
        matcher = served.grammars.regex(asked.regex)
    elif asked.grammar is not None:
        matcher = served.grammars.lark(asked.grammar)
    else:
        return None
    return lambda: served.grammars.constraint(matcher, after)


def _schema(wanted: ResponseFormat | None) -> dict[str, Any] | bool | None:
    if wanted is None or isinstance(wanted, TextFormat):
        return None
    if isinstance(wanted, JsonObjectFormat) or not isinstance(wanted, JsonSchemaFormat):
        return _ANY_OBJECT
    schema = wanted.json_schema.schema
    return _ANY_OBJECT if schema is None else schema


def tool_objects(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as chat templates expect them."""
    functions = [msgspec.to_builtins(tool.function) for tool in tools]
    kept = [{key: value for key, value in function.items() if value is not None} for function in functions]
    return [{"type": "function", "function": function} for function in kept]
