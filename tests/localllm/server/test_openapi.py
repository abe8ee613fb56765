"""The OpenAPI document and the page about the interface say what the server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from running_server import Running

from localllm.server.app import ROUTES
from localllm.server.decode import HARMLESS
from localllm.server.openapi import document, parameter_tables
from localllm.server.service import PATHS

ROOT = Path(__file__).resolve().parents[3]


def test_paths_are_the_routes() -> None:
    described = {(path, method.upper()) for path, operations in document()["paths"].items() for method in operations}
    served = {
        (route.path.replace(":path", ""), method)
        for route in ROUTES
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert described == served
    assert {path for path, _ in served} - {"/v1/models/{name}"} == PATHS


def test_the_document_is_served_and_its_references_exist(server: Running) -> None:
    served = server.get("/openapi.json").json()
    assert served == document()
    names = set(served["components"]["schemas"])

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    assert references(served["paths"]) | references(served["components"]) <= names


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 1},
        {"model": "m", "messages": [{"role": "user", "content": 5}]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 0},
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "stop": [""]},
        {"model": "m"},
    ],
)
def test_bodies_are_valid_exactly_when_they_are_taken(server: Running, body: dict[str, Any]) -> None:
    whole = document()
    schema = {"$ref": "#/components/schemas/ChatRequest", "components": whole["components"]}
    valid = jsonschema.Draft202012Validator(schema).is_valid(body)
    assert valid == (server.post("/v1/chat/completions", body).status_code == 200)


def test_the_page_has_the_fields_of_the_code() -> None:
    """Make it with tests/tools/api_tables.py."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page.endswith(parameter_tables())
    for name in HARMLESS:
        assert f"`{name}`" in page
