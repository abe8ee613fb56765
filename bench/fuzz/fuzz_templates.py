"""Chat templates with changed text, and conversations of random values: rendered in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

PIECES = (
    "{{ messages }}", "{{ messages[0].content }}", "{% for m in messages %}", "{% endfor %}", "{% if tools %}",
    "{% endif %}", "{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{{ messages|tojson(indent=4) }}",
    "{% set ns = namespace(a=0) %}", "{% set ns.a = ns.a + 1 %}", "{{ 'x' * 99999999 }}", "{{ range(10**9)|list }}",
    "{{ 2 ** 9999999 }}", "{{ strftime_now('%Y') }}", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{#", "#}",
    "{{ messages[-99] }}", "{{ messages|map(attribute='role')|join(',') }}", "{{ 'a'.join(['b'] * 1000000) }}",
    "{{ '%999999999d' % 1 }}", "{{ 'a'.format(9) }}", "{{ messages|length / 0 }}", "{% generation %}", "{%- else -%}",
    "{{ messages|sort }}", "{{ {}|xmlattr }}", "{{ cycler }}", "{{ lipsum() }}", "{{ self }}", "{% include 'x' %}",
    "{{ messages|batch(0)|list }}", "{{ ('a' * 1000)|wordwrap(1) }}", "{{ 'a'|center(10**9) }}", "{{ 1e999|int }}",
)  # fmt: skip
WORDS = ("role", "content", "tools", "system", "user", "assistant", "not", "and", "[", "]", "{{", "}}", "{%", "%}", "|")
TEXTS = (
    "",
    "Hello",
    "<|im_end|>",
    "</s>",
    "{{ 7 * 7 }}",
    "日本\u202e",
    "\x00",
    "<think>a</think>b",
    "\ud800",
    "[INST]",
)


def changed(source: str, choice: Random) -> str:
    """A template with pieces put in, cut out, doubled."""
    for _ in range(choice.choice((0, 1, 1, 2, 4))):
        at = choice.randrange(len(source) + 1)
        what = choice.randrange(4)
        if what == 0:
            source = source[:at] + choice.choice(PIECES) + source[at:]
        elif what == 1:
            source = source[:at] + source[at + choice.randrange(40) :]
        elif what == 2:
            source = source[:at] + choice.choice(WORDS) + source[at:]
        else:
            end = at + choice.randrange(200)
            source = source[:end] + source[at:end] + source[end:]
    return source


def value(choice: Random, depth: int = 0) -> Any:
    """Anything that JSON can hold."""
    what = choice.randrange(9 if depth < 3 else 6)
    if what < 3:
        return choice.choice(TEXTS)
    if what < 6:
        return choice.choice((None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf")))
    if what == 6:
        return [value(choice, depth + 1) for _ in range(choice.randrange(4))]
    names = ("type", "text", "function", "name", "arguments", "role", "content", "parameters", "properties")
    return {choice.choice(names): value(choice, depth + 1) for _ in range(choice.randrange(4))}


def conversation(choice: Random) -> list[dict[str, Any]]:
    """Messages of known and unknown roles whose contents are mostly texts."""
    return [
        {
            "role": choice.choice(("user", "user", "assistant", "system", "tool", "developer", "", "x<|im_end|>")),
            "content": choice.choice(TEXTS) if choice.random() < 0.7 else value(choice),
            **({"tool_calls": value(choice)} if choice.random() < 0.2 else {}),
            **({"name": value(choice)} if choice.random() < 0.1 else {}),
        }
        for _ in range(choice.randrange(1, 6))
    ]


def make_case(target: str) -> Callable[[Random, Path], None]:
    """A case changes a template of a folder, or only the conversation, and renders it."""
    from localllm.chat_template import ChatTemplate, render_chat

    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(target).glob("*.jinja"))]

    def case(choice: Random, keep: Path) -> None:
        source = changed(choice.choice(sources), choice)
        tools = [{"type": "function", "function": value(choice)}] if choice.random() < 0.2 else None
        messages = conversation(choice)
        what = {"source": source, "messages": repr(messages), "tools": repr(tools)}
        (keep / "case.json").write_text(json.dumps(what), encoding="utf-8")
        template = ChatTemplate(source, "<s>", "</s>")
        rendered = render_chat(template, messages, tools=tools)
        if any(not isinstance(segment.text, str) for segment in rendered.segments):
            raise TypeError("a segment is no text")

    return case
