"""The OpenAPI document: paths by hand, bodies from the classes that check them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from localllm import __version__

from . import fields
from .stream import JSONAnswer

if TYPE_CHECKING:
    from starlette.requests import Request

_ERRORS = {
    "400": "The request is wrong: `param` names the field.",
    "401": "The API key is missing or wrong.",
    "403": "Called under a foreign host name, or from a page that may not.",
    "404": "No such model.",
    "408": "The head or the body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "500": "The server failed.",
    "503": "Loading failed, too busy, or about to end.",
}
_POSTS: dict[str, tuple[type[msgspec.Struct], str, bool]] = {
    "/v1/chat/completions": (fields.ChatRequest, "Answer a conversation", True),
    "/v1/completions": (fields.CompletionRequest, "Continue prompts; score them with echo and logprobs", True),
    "/v1/embeddings": (fields.EmbeddingRequest, "Vectors of texts", False),
    "/v1/responses": (fields.ResponsesRequest, "Answer items, without state", True),
    "/tokenize": (fields.TokenizeRequest, "A text's tokens", False),
    "/detokenize": (fields.DetokenizeRequest, "The text of tokens", False),
    "/apply-template": (fields.ApplyTemplateRequest, "The prompt that a conversation becomes", False),
}
_GETS = {
    "/v1/models": "The models that are served",
    "/v1/models/{name}": "One of them",
    "/health": "Whether requests are answered: ready; or, with 503, loading, failed or draining",
    "/metrics": "Counters for Prometheus",
    "/openapi.json": "This document",
    "/": "The chat page",
}
_OTHER_TYPES = {"/metrics": "text/plain", "/": "text/html"}


@cache
def document() -> dict[str, Any]:
    """The whole document."""
    kinds = [kind for kind, _, _ in _POSTS.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components["Error"] = _error_schema()
    paths: dict[str, Any] = {path: {"get": _get(path, summary)} for path, summary in _GETS.items()}
    for (path, (_, summary, streams)), schema in zip(_POSTS.items(), schemas, strict=True):
        paths[path] = {"post": _post(summary, schema, streams)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "localllm", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _get(path: str, summary: str) -> dict[str, Any]:
    media = _OTHER_TYPES.get(path, "application/json")
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": _answer("OK", media)}}
    operation["responses"] |= {status: _error(text) for status, text in _ERRORS.items() if status in ("401", "403")}
    if path == "/health":
        operation["responses"]["503"] = _answer("Not ready", media)
    if "{name}" in path:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        operation["responses"]["404"] = _error(_ERRORS["404"])
    return operation


def _post(summary: str, schema: dict[str, Any], streams: bool) -> dict[str, Any]:
    answer = _answer("OK", "application/json")
    if streams:
        answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": answer} | {status: _error(text) for status, text in _ERRORS.items()},
    }


def _answer(text: str, media: str) -> dict[str, Any]:
    schema = {"type": "object"} if media == "application/json" else {"type": "string"}
    return {"description": text, "content": {media: {"schema": schema}}}


def _error(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _error_schema() -> dict[str, Any]:
    text_or_null = {"type": ["string", "null"]}
    properties = {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": text_or_null,
        "code": text_or_null,
    }
    error = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


async def openapi(request: Request) -> JSONAnswer:
    """GET /openapi.json."""
    return JSONAnswer(document())


def parameter_tables() -> str:
    """The parameters of each POST path as Markdown, for docs/api.md."""
    sections = []
    for path, (kind, summary, _) in _POSTS.items():
        rows = ["| Field | Type | Meaning |", "| --- | --- | --- |"]
        properties = msgspec.json.schema_components([kind])[1][kind.__name__]
        required = properties.get("required", [])
        for name, schema in properties["properties"].items():
            mark = " (required)" if name in required else ""
            meaning = str(schema.get("description", "")).replace("|", "\\|")
            rows.append(f"| `{name}`{mark} | {_type(schema)} | {meaning} |")
        sections.append(f"### POST {path}\n\n{summary}.\n\n" + "\n".join(rows))
    return "\n\n".join(sections) + "\n"


def _type(schema: dict[str, Any]) -> str:
    """A few words for a JSON schema."""
    if "anyOf" in schema:
        kinds = [_type(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return "object"
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return "list of " + _type(schema.get("items", {}))
    low = schema.get("minimum")
    high = schema.get("maximum")
    return kind if low is None or high is None else f"{kind} {low} to {high}"
