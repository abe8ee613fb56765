"""Answers held to schemas, regular expressions and grammars: they validate, or end with length, or are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from byte_tokenizer import EOS
from running_server import Running, error_of

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        {"enum": [f"value {number}" for number in range(10_000)]},
        {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"], "additionalProperties": False},
        {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3, "maximum": 5}]},
        {"$defs": {"leaf": {"type": "string", "maxLength": 3}}, "type": "array", "items": {"$ref": "#/$defs/leaf"}},
    ],
)
def test_answers_validate(server: Running, schema: dict[str, Any]) -> None:
    for seed in range(3):
        reply = server.chat(response_format=schema_format(schema), seed=seed, max_tokens=300).json()["choices"][0]
        if reply["finish_reason"] == "stop":
            jsonschema.validate(json.loads(reply["message"]["content"]), schema)
        else:
            assert reply["finish_reason"] == "length"


def test_the_end_of_the_grammar_is_the_end(server: Running) -> None:
    server.model.executor.say('{"name": "Ada", "age": 36}')
    reply = server.chat(response_format=schema_format(PERSON)).json()["choices"][0]
    assert reply["message"]["content"] == '{"name": "Ada", "age": 36}'
    assert reply["finish_reason"] == "stop"
    server.model.executor.say('{"name": "Ada", "age": 36} and more')
    content = server.chat(response_format=schema_format(PERSON)).json()["choices"][0]["message"]["content"]
    assert json.loads(content) == {"name": "Ada", "age": 36}


def test_any_object(server: Running) -> None:
    """Without a word about JSON in the messages, too."""
    for wanted in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}):
        server.model.executor.say("Sure! Here it is: {}")
        reply = server.chat(response_format=wanted, max_tokens=60, seed=1).json()["choices"][0]
        assert reply["message"]["content"].startswith("{")
    server.model.executor.say("plain")
    assert server.chat(response_format={"type": "text"}).json()["choices"][0]["message"]["content"] == "plain"


def test_white_space_does_not_go_on_for_ever(server: Running) -> None:
    for space in "\n \t":
        server.model.executor.say(space * 300)
        reply = server.chat(response_format=schema_format(PERSON), max_tokens=300, seed=1, temperature=1).json()
        content = reply["choices"][0]["message"]["content"]
        outside = re.sub(r'"[^"]*"', '""', content)
        assert not re.search(r"\s{17}", outside)


def test_a_cut_object(server: Running) -> None:
    server.model.executor.say('{"name": "Ada", "age": 36}')
    reply = server.chat(response_format=schema_format(PERSON), max_tokens=8).json()["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == ('{"name":', "length")


def test_a_stop_inside_the_object(server: Running) -> None:
    server.model.executor.say('{"name": "Ada", "age": 36}')
    reply = server.chat(response_format=schema_format(PERSON), stop='"age').json()["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == ('{"name": "Ada", ', "stop")


def test_a_banned_end_does_not_open_the_grammar(server: Running) -> None:
    server.model.executor.say("yes")
    reply = server.chat(regex="yes|no", logit_bias={str(EOS): -100, "298": -100}).json()["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == ("yes", "stop")


def test_when_nothing_is_allowed_that_is_an_error(server: Running) -> None:
    """The bias bans the only letter that the grammar allows."""
    response = server.chat(regex="q{3}", logit_bias={str(ord("q")): -100})
    assert error_of(response, 400)["code"] == "invalid_value"
    assert server.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": "(?<=a)b"}, "look-behind"),
        ({"$ref": "#/$defs/nothing"}, "does not exist"),
        ({"$ref": "http://169.254.169.254/x"}, "not"),
        ({"not": {}}, "not"),
        ({"type": "wat"}, "wat"),
        (False, "not"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_schemas_that_cannot_be_followed(server: Running, schema: Any, text: str, stream: bool) -> None:
    error = error_of(server.chat(response_format=schema_format(schema), stream=stream))
    assert error["param"] == "response_format"
    assert text in error["message"]


@pytest.mark.parametrize(
    "wanted", [{"type": "xml"}, {"type": "json_schema"}, "json", {}, {"type": "json_object", "x": 1}]
)
def test_formats_that_are_none(server: Running, wanted: Any) -> None:
    assert (error_of(server.chat(response_format=wanted))["param"] or "").startswith("response_format")


def test_empty_schema_and_recursion(server: Running) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    recursive = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    for schema in ({}, True, recursive):
        server.model.executor.say('{"next": {"next": {}}}')
        content = server.chat(response_format=schema_format(schema)).json()["choices"][0]["message"]["content"]
        assert json.loads(content) == {"next": {"next": {}}}


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_regex(server: Running, path: str) -> None:
    ask = server.chat if path == "chat" else server.complete
    for seed in range(3):
        choice = ask(regex="[a-f]{3}-[0-9]{2}", seed=seed, max_tokens=20).json()["choices"][0]
        text = choice["message"]["content"] if path == "chat" else choice["text"]
        assert re.fullmatch("[a-f]{3}-[0-9]{2}", text)
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("grammar", ['start: "a" NUMBER\nNUMBER: /[0-9]{2}/', 'root ::= "a" [0-9] [0-9]'])
def test_grammars_of_both_notations(server: Running, grammar: str) -> None:
    content = server.chat(grammar=grammar, max_tokens=20).json()["choices"][0]["message"]["content"]
    assert re.fullmatch("a[0-9]{2}", content)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "("},
        {"regex": "a(?=b)"},
        {"regex": "\ud800"},
        {"grammar": 'root ::= "\udc80"'},
        {"grammar": ""},
        {"grammar": "start: ("},
        {"grammar": "root ::= ["},
        {"grammar": "start: missing"},
        {"regex": "a", "grammar": 'start: "a"'},
        {"regex": "a", "response_format": {"type": "json_object"}},
    ],
)
def test_grammars_that_cannot_be_followed(server: Running, fields: dict[str, Any]) -> None:
    error = error_of(server.chat(**fields))
    assert error["param"] in fields or error["param"] == "grammar"
    assert "<state>" not in error["message"]


def test_a_grammar_that_turns_out_too_complex_ends_its_request_only(server: Running) -> None:
    error = error_of(server.chat(regex="(a{1000}){1000}"), 400)
    assert error["message"].startswith("the answer could not be held to its grammar")
    assert "<" not in error["message"]
    assert server.chat(max_tokens=1).status_code == 200


def test_several_answers_each_follow(server: Running) -> None:
    choices = server.chat(regex="[0-9]{4}", n=3, seed=1).json()["choices"]
    assert all(re.fullmatch("[0-9]{4}", choice["message"]["content"]) for choice in choices)
    assert len({choice["message"]["content"] for choice in choices}) > 1
