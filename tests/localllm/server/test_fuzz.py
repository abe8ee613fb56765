"""Requests that schemathesis makes from the OpenAPI document, right and wrong ones, to a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from running_server import Running, start_server

from localllm.server.openapi import document

MISSING = "schemathesis is not installed: pip install -e '.[dev]'"
schemathesis: Any = pytest.importorskip("schemathesis", reason=MISSING)
checks: Any = pytest.importorskip("schemathesis.checks", reason=MISSING)

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
LABELS = [f"{method.upper()} {path}" for path, operations in document()["paths"].items() for method in operations]


@pytest.fixture(scope="module")
def any_name() -> Iterator[Running]:
    """A server that answers to every model name, briefly."""
    server = start_server(pool={"any_name": True})
    yield server
    server.stop()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize("label", LABELS)
def test_answers_are_those_of_the_document(any_name: Running, label: str, mode: Any) -> None:
    """Wrong bodies are refused, right ones answered or refused with a reason; every answer is as described."""
    if label.startswith("GET") and mode is schemathesis.GenerationMode.NEGATIVE:
        return  # without a body and parameters there is nothing to do wrong
    any_name.model.executor.say("fine")
    schema = schemathesis.openapi.from_dict(any_name.get("/openapi.json").json())
    schema.config.update(base_url=any_name.url)
    operation = schema[label.split()[1]][label.split()[0]]
    statuses = set()

    @settings(
        max_examples=15,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        response = case.call(session=None)
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    run()
    wrong = mode is schemathesis.GenerationMode.NEGATIVE
    assert not (wrong and 200 in statuses)
    assert statuses <= {200, 400, 404}
