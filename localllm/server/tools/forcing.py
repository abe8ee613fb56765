"""Grammars for answers that must call a tool, or that may only call or follow a schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from localllm.server.grammar import JSON_SPACE

from .dialects import DEEPSEEK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.server.fields import FunctionDefinition
    from localllm.server.served import ServedModel

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def call_rules(served: ServedModel, functions: Sequence[FunctionDefinition], one: bool) -> list[str]:
    """Lark rules, `calls` first: at least one call (`one`: exactly one) of the functions in the model's own way."""
    dialect = served.dialect
    lark = served.grammars.special
    if served.is_harmony or dialect is DEEPSEEK:
        rules = []
        for number, function in enumerate(functions):
            before, after = _around(function.name, served.is_harmony)
            schema = function.parameters or _NO_ARGUMENTS
            rules.append(f"call{number}: {lark(before)} {embedded(schema)} {lark(after)}")
        return [f"calls: {_any_of(len(functions))}", *rules]
    forms = [_form(function, dialect.name_key, dialect.arguments_key) for function in functions]
    before, after = lark(dialect.before), lark(dialect.after)
    if dialect.in_list:
        located = [relocated(form, f"/items/anyOf/{number}") for number, form in enumerate(forms)]
        array: dict[str, Any] = {"type": "array", "items": {"anyOf": located}, "minItems": 1}
        if one:
            array["maxItems"] = 1
        return [f"calls: {before} {embedded(array)} {after}"]
    rules = [f"call{number}: {before} {embedded(form)} {after}" for number, form in enumerate(forms)]
    more = "" if one else ' ("\\n" call)*'
    return [f"calls: call{more}", f"call: {_any_of(len(functions))}", *rules]


def _any_of(count: int) -> str:
    return " | ".join(f"call{number}" for number in range(count))


def _around(name: str, harmony: bool) -> tuple[str, str]:
    if harmony:
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", ""
    before = f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"
    return before, "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _form(function: FunctionDefinition, name_key: str, arguments_key: str) -> dict[str, Any]:
    arguments = relocated(function.parameters or _NO_ARGUMENTS, f"/properties/{arguments_key}")
    return {
        "type": "object",
        "properties": {name_key: {"const": function.name}, arguments_key: arguments},
        "required": [name_key, arguments_key],
        "additionalProperties": False,
    }


def embedded(schema: Any) -> str:
    """A schema inside a Lark rule, with bounded white space."""
    whole = {**schema, "x-guidance": {"whitespace_pattern": JSON_SPACE}} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(whole)}"


def relocated(schema: Any, place: str) -> Any:
    """The schema with its references to itself changed for standing at `place` of a larger one."""
    if isinstance(schema, dict):
        moved = {key: relocated(value, place) for key, value in schema.items()}
        reference = moved.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = f"#{place}{reference[1:]}"
        return moved
    return [relocated(item, place) for item in schema] if isinstance(schema, list) else schema
