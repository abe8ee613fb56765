"""Calls as each family of models writes them, read whole and in pieces; what is no call stays text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.server.parts import CallArguments, CallBegun, CallPart, ToolReader
from localllm.server.tools import dialects
from localllm.server.tools.dialects import Dialect, dialect_of

CALL_ONE = ("get_weather", {"city": "Paris"})
CALL_TWO = ("add", {"a": 1, "b": [2, {"c": "</x>"}]})

WRITTEN: list[tuple[Dialect, str, str, list[tuple[str, Any]]]] = [
    (
        dialects.HERMES,
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "</x>"}]}}\n</tool_call>',
        "Let me see.",
        [CALL_ONE, CALL_TWO],
    ),
    (
        dialects.HERMES,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "",
        [CALL_ONE],
    ),
    (dialects.HERMES, '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [CALL_ONE]),
    (
        dialects.MISTRAL,
        'Yes.[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "123456789"}]',
        "Yes.",
        [CALL_ONE],
    ),
    (
        dialects.MISTRAL,
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]add{"a": 1, "b": [2, {"c": "</x>"}]}',
        "",
        [CALL_ONE, CALL_TWO],
    ),
    (dialects.LLAMA, '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [CALL_ONE]),
    (
        dialects.LLAMA,
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "add", "parameters": {"a": 1, "b": [2, {"c": "</x>"}]}}',
        "",
        [CALL_ONE, CALL_TWO],
    ),
    (
        dialects.DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [CALL_ONE],
    ),
    (
        dialects.DEEPSEEK,
        'So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": [2, {"c": "</x>"}]}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "So:",
        [CALL_ONE, CALL_TWO],
    ),
    (dialects.GRANITE, '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [CALL_ONE]),
    (dialects.GRANITE, '<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [CALL_ONE]),
    (
        dialects.COMMAND_R,
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}]'
        "<|END_ACTION|>",
        "",
        [CALL_ONE],
    ),
    (
        dialects.COMMAND_R_PLUS,
        'Action: ```json\n[{"tool_name": "get_weather", "parameters": {"city": "Paris"}},'
        ' {"tool_name": "directly_answer", "parameters": {}}]\n```',
        "",
        [CALL_ONE],
    ),
]
TEXTS = [
    "just text, with { braces } and <tags>",
    "a < b and [TOOL",
    '<tool_call>\n{"name": broken\n</tool_call>',
    "<tool_call> is how a call begins",
    '{"answer": 42}',
    '[TOOL_CALLS] {"answer"',
    "Action: none",
    "<|START_ACTION|>[]<|END_ACTION|>",
    "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>",
    "{",
    "   \n",
    "",
]


def read(reader: ToolReader, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    found = [item for piece in pieces for item in reader.push(piece)] + reader.flush()
    text = "".join(item for item in found if isinstance(item, str))
    calls: list[CallPart] = []
    for item in found:
        if isinstance(item, CallPart):
            calls.append(item)
        elif isinstance(item, CallBegun):
            calls.append(CallPart(item.name, ""))
        elif isinstance(item, CallArguments):
            calls[-1] = CallPart(calls[-1].name, calls[-1].arguments + item.text)
    return text, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(("dialect", "written", "text", "calls"), WRITTEN)
def test_calls_whole_and_letter_by_letter(
    dialect: Dialect, written: str, text: str, calls: list[tuple[str, Any]]
) -> None:
    assert read(dialect.reader(), [written]) == (text, calls)
    assert read(dialect.reader(), list(written)) == (text, calls)
    assert read(dialect.reader(progressive=True), [written]) == (text, calls)
    assert read(dialect.reader(progressive=True), list(written)) == (text, calls)


@given(st.sampled_from(WRITTEN), st.lists(st.integers(0, 250), max_size=6))
def test_calls_in_any_pieces(case: tuple[Dialect, str, str, Any], cuts: list[int]) -> None:
    dialect, written, text, calls = case
    places = sorted({0, len(written), *(cut for cut in cuts if cut < len(written))})
    pieces = [written[a:b] for a, b in itertools.pairwise(places)]
    assert read(dialect.reader(), pieces) == (text, calls)
    assert read(dialect.reader(progressive=True), pieces) == (text, calls)


PROGRESSIVE = [
    (dialects.HERMES, '<tool_call>\n{"name": "f", "arguments": {"text": "a } \\" b", "n": [1, {}]}}\n</tool_call>'),
    (dialects.MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"text": "a } \\" b", "n": [1, {}]}, "id": "1"}]'),
    (dialects.LLAMA, '{"type": "function", "name": "f", "parameters": {"text": "a } \\" b", "n": [1, {}]}}'),
    (dialects.LLAMA, '<|python_tag|>{"name": "f", "parameters": {"text": "a } \\" b", "n": [1, {}]}}'),
    (dialects.GRANITE, '<|tool_call|>[{"name": "f", "arguments": {"text": "a } \\" b", "n": [1, {}]}}]'),
    (dialects.COMMAND_R, '<|START_ACTION|>[{"tool_name": "f", "parameters": {"text": "a } \\" b", "n": [1, {}]}}]'),
    (
        dialects.COMMAND_R,
        '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f",'
        ' "parameters": {"text": "a } \\" b", "n": [1, {}]}}\n]'
        "<|END_ACTION|>",
    ),
    (
        dialects.COMMAND_R_PLUS,
        'Action: ```json\n[\n  {\n    "tool_name": "f",\n'
        '    "parameters": {"text": "a } \\" b", "n": [1, {}]}\n  }\n]\n```',
    ),
    (dialects.MISTRAL, '[TOOL_CALLS]f[ARGS]{"text": "a } \\" b", "n": [1, {}]}'),
    (
        dialects.DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"text": "a } \\" b", "n": [1, {}]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    (
        dialects.DEEPSEEK,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"text": "a } \\" b", "n": [1, {}]}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
]


@pytest.mark.parametrize(("dialect", "written"), PROGRESSIVE)
def test_arguments_are_told_while_they_are_written(dialect: Dialect, written: str) -> None:
    half = written.index('"n"')
    reader = dialect.reader(progressive=True)
    told = [item for letter in written[:half] for item in reader.push(letter)]
    assert told[0] == CallBegun("f")
    pieces = [item.text for item in told if isinstance(item, CallArguments)]
    assert "".join(pieces) == '{"text": "a } \\" b", '
    assert len(pieces) > 10
    told += reader.push(written[half:]) + reader.flush()
    whole = "".join(item.text for item in told if isinstance(item, CallArguments))
    assert whole == '{"text": "a } \\" b", "n": [1, {}]}'
    assert not any(isinstance(item, str | CallPart) for item in told)


def test_a_call_that_breaks_off_stays_and_others_are_read_whole() -> None:
    reader = dialects.HERMES.reader(progressive=True)
    told = reader.push('<tool_call>{"name": "f", "arguments": {"a": "x') + reader.flush()
    assert told == [CallBegun("f"), CallArguments("{"), CallArguments('"a": "x')]
    mixed = '<tool_call>{"name": "f", "arguments": {}}\n{"arguments": {"b": 1}, "name": "g"}</tool_call> fine'
    found = dialects.HERMES.reader(progressive=True)
    items = [*found.push(mixed), *found.flush()]
    assert items == [CallBegun("f"), CallArguments("{"), CallArguments("}"), CallPart("g", '{"b": 1}'), "fine"]


def test_no_call_is_told_when_the_model_wants_none() -> None:
    written = 'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]\n```'
    assert read(dialects.COMMAND_R_PLUS.reader(progressive=True), list(written)) == ("", [])


ALL = [value for value in vars(dialects).values() if isinstance(value, Dialect)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
def test_what_is_no_call_stays_as_it_is(dialect: Dialect, text: str) -> None:
    assert read(dialect.reader(), [text]) == (text, [])
    assert read(dialect.reader(), list(text)) == (text, [])
    assert read(dialect.reader(progressive=True), list(text)) == (text, [])


@given(st.sampled_from(ALL), st.lists(st.text(alphabet='<>|[]{}tol_cal Action:\n"', max_size=12), max_size=8))
def test_text_is_never_lost(dialect: Dialect, pieces: list[str]) -> None:
    text, calls = read(dialect.reader(), pieces)
    if not calls:
        assert text == "".join(pieces)


@pytest.mark.parametrize(
    ("sign", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama"),
        ('Respond in the format {"name": function name, "parameters": dictionary of argument name}', "llama"),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}", "deepseek"),
        ("{{ '<|tool_call|>' }}", "granite"),
        ("{{ '<|START_ACTION|>' }}", "command-r"),
        ("directly_answer", "command-r-plus"),
        ("{{ message.content }}", None),
    ],
)
def test_dialects_are_known_by_their_templates(sign: str, name: str | None) -> None:
    found = dialect_of(sign)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "hermes"),
        ("Qwen-Qwen3-0.6B", "hermes"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama"),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama"),
        ("deepseek-ai-DeepSeek-V3.1", "deepseek"),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite"),
        ("CohereForAI-c4ai-command-r-plus-tool_use", "command-r-plus"),
    ],
)
def test_published_templates(shared_fixtures: Any, file: str, name: str) -> None:
    found = dialect_of((shared_fixtures / "golden" / "templates" / f"{file}.jinja").read_text())
    assert found is not None
    assert found.name == name
