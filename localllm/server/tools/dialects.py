"""How families of models write calls of tools, recognised by their chat templates."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.server.parts import CallPart

from .progressive import CallForm, CallScanner, json_form
from .reading import MarkedReader, WholeReader, compact, parse_json_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from localllm.server.parts import ToolReader

_SEPARATOR = "<｜tool▁sep｜>"
_CALL = "<｜tool▁call▁begin｜>"
_CALL_END = "<｜tool▁call▁end｜>"
_NO_CALLS = frozenset(("directly-answer", "directly_answer"))  # Command-R's way to say that no tool is needed

# [TOOL_CALLS]NAME[ARGS]{...}; and <begin>function<sep>NAME, a line, ```json, or <begin>NAME<sep>, before {...}.
_MISTRAL_FORM = CallForm(
    re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*(?=\{)"), enclosed=False
)
_DEEPSEEK_FORM = CallForm(
    re.compile(
        rf"(?:[\s`]|{_CALL_END})*{_CALL}(?:[^\n<]+{_SEPARATOR}([^\n<]+)\n```json\n\s*|([^\n<]+){_SEPARATOR}\s*)(?=\{{)"
    ),
    enclosed=False,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A family's way. `markers`: texts that may be control tokens and must then be shown to the reader.

    `before` and `after` surround a forced call, which is JSON of this form: an object with the function's `name` and
    its arguments under `arguments_key`, in a list when `in_list`. `make_scanner` makes what tells calls while they are
    written.
    """

    name: str
    markers: tuple[str, ...]
    make_reader: Callable[[CallScanner | None], ToolReader]
    before: str = ""
    after: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    in_list: bool = False
    make_scanner: Callable[[], CallScanner] = lambda: CallScanner((json_form(),))

    def reader(self, *, progressive: bool = False) -> ToolReader:
        """A reader for one answer; `progressive`: calls are told while they are written, if arguments are JSON."""
        scanner = self.make_scanner()
        scanner.early = progressive
        return self.make_reader(scanner)


def _hermes(body: str) -> list[CallPart] | None:
    return parse_json_calls(body, arguments=("arguments", "parameters")) or _functions_in_tags(body)


def _functions_in_tags(body: str) -> list[CallPart] | None:
    """Qwen3-Coder: <function=NAME><parameter=KEY>VALUE</parameter>...</function>."""
    match = re.fullmatch(r"\s*<function=([^>\s]+)>(.*?)(?:</function>)?\s*", body, re.DOTALL)
    if match is None:
        return None
    given = re.findall(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", match[2], re.DOTALL)
    return [CallPart(match[1], compact({key: _value(text) for key, text in given}))]


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _mistral(body: str) -> list[CallPart] | None:
    """A JSON list, or (newer) NAME[ARGS]{...}, or NAME{...}, several of them each after its own marker."""
    listed = parse_json_calls(body)
    if listed is not None:
        return listed
    calls = []
    for piece in body.split("[TOOL_CALLS]"):
        match = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*(\{.*\})\s*", piece, re.DOTALL)
        if match is None or not isinstance(_value(match[2]), dict):
            return None
        calls.append(CallPart(match[1], match[2]))
    return calls or None


def _llama(body: str) -> list[CallPart] | None:
    """JSON objects with "parameters", separated by semicolons or lines, maybe after <|python_tag|>."""
    text = body.strip().removeprefix("<|python_tag|>")
    decoder = json.JSONDecoder()
    calls: list[CallPart] = []
    place = 0
    while text[place:].strip(" \n;"):
        place += len(text[place:]) - len(text[place:].lstrip(" \n;"))
        try:
            _, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        found = parse_json_calls(text[place:end], arguments=("parameters", "arguments"))
        if found is None:
            return None
        calls += found
        place = end
    return calls or None


def _deepseek(body: str) -> list[CallPart] | None:
    """V3 and R1: function, separator, name, fenced JSON; V3.1: name, separator, JSON."""
    calls = []
    for piece in re.findall(rf"{re.escape(_CALL)}(.*?)(?:{re.escape(_CALL_END)}|$)", body, re.DOTALL):
        first, _, second = piece.partition(_SEPARATOR)
        fenced = re.fullmatch(r"\s*([^\n]+)\n```json\n(.*?)\n?```\s*", second, re.DOTALL)
        name, arguments = (fenced[1], fenced[2]) if fenced else (first, second)
        if not isinstance(_value(arguments), dict) or not name.strip():
            return None
        calls.append(CallPart(name.strip(), arguments.strip()))
    return calls or None


def _command_r(body: str) -> list[CallPart] | None:
    return parse_json_calls(body, name="tool_name", arguments=("parameters",))


def _command_r_plus(body: str) -> list[CallPart] | None:
    """`Action: ```json [...] ```; a call of directly_answer is none."""
    match = re.search(r"```json\s*(.*?)\s*(?:```|$)", body, re.DOTALL)
    calls = _command_r(match[1]) if match else None
    return None if calls is None else [call for call in calls if call.name not in _NO_CALLS]


HERMES = Dialect(
    "hermes",
    ("<tool_call>", "</tool_call>"),
    lambda scanner: MarkedReader(("<tool_call>",), "</tool_call>", _hermes, scanner),
    "<tool_call>\n",
    "\n</tool_call>",
)
MISTRAL = Dialect(
    "mistral",
    ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    lambda scanner: MarkedReader(("[TOOL_CALLS]",), None, _mistral, scanner),
    "[TOOL_CALLS]",
    in_list=True,
    make_scanner=lambda: CallScanner((json_form(), _MISTRAL_FORM)),
)
LLAMA = Dialect(
    "llama",
    ("<|python_tag|>",),
    lambda scanner: WholeReader(("<|python_tag|>", "{"), _llama, scanner),
    arguments_key="parameters",
    make_scanner=lambda: CallScanner((json_form(before=r"\s*(?:<\|python_tag\|>)?"),)),
)
DEEPSEEK = Dialect(
    "deepseek",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _CALL, _CALL_END, _SEPARATOR),
    lambda scanner: MarkedReader(("<｜tool▁calls▁begin｜>",), "<｜tool▁calls▁end｜>", _deepseek, scanner),
    make_scanner=lambda: CallScanner((_DEEPSEEK_FORM,), rf"(?:[\s`]|{_CALL_END})*"),
)
GRANITE = Dialect(
    "granite",
    ("<|tool_call|>", "<tool_call>", "<|/tool_call|>"),
    lambda scanner: MarkedReader(("<|tool_call|>", "<tool_call>"), None, lambda body: _granite(body), scanner),
    "<|tool_call|>",
    in_list=True,
)
COMMAND_R = Dialect(
    "command-r",
    ("<|START_ACTION|>", "<|END_ACTION|>"),
    lambda scanner: MarkedReader(("<|START_ACTION|>",), "<|END_ACTION|>", _command_r, scanner),
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "tool_name",
    "parameters",
    in_list=True,
    make_scanner=lambda: CallScanner((json_form("tool_name"),)),
)
COMMAND_R_PLUS = Dialect(
    "command-r-plus",
    (),
    lambda scanner: MarkedReader(("Action:",), None, _command_r_plus, scanner),
    "Action: ```json\n",
    "\n```",
    "tool_name",
    "parameters",
    in_list=True,
    make_scanner=lambda: CallScanner((json_form("tool_name", r"(?:\s*```json)?"),), silent=_NO_CALLS),
)


def _granite(body: str) -> list[CallPart] | None:
    return parse_json_calls(body.replace("<|/tool_call|>", "").removesuffix("</tool_call>"))


# The first whose text occurs in the template is the one.
_SIGNS = (
    (_CALL, DEEPSEEK),
    ("[TOOL_CALLS]", MISTRAL),
    ("<|START_ACTION|>", COMMAND_R),
    ("directly-answer", COMMAND_R_PLUS),
    ("directly_answer", COMMAND_R_PLUS),
    ("<|tool_call|>", GRANITE),
    ("<|python_tag|>", LLAMA),
    ('"parameters": dictionary of argument', LLAMA),
    ("<tool_call>", HERMES),
)


def dialect_of(template: str) -> Dialect | None:
    """The dialect of a chat template that knows tools; None: it does not, or in an unknown way."""
    return next((dialect for sign, dialect in _SIGNS if sign in template), None)
