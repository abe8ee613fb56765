"""Load on a server: every request is made and counted, in both loops, from Python and from the command line."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner
from running_server import Running

from localllm.cli.main import cli
from localllm.errors import RequestError
from localllm.server.load import LoadOptions, closed_loop, only_model, open_loop


def test_closed_and_open_loop(server: Running) -> None:
    options = LoadOptions(server.url, "m", requests=6, prompt_words=3, tokens=5)
    closed = asyncio.run(closed_loop(options, 3))
    opened = asyncio.run(open_loop(options, 200))
    for result in (closed, opened):
        assert (result.requests, result.failed) == (6, 0)
        assert result.tokens_per_second == pytest.approx(30 / result.seconds)
        assert 0 < result.first_token_median <= result.first_token_p95
        assert result.between_tokens_median <= result.between_tokens_p95 <= result.between_tokens_longest
    assert (closed.clients, closed.rate) == (3, None)
    assert (opened.clients, opened.rate) == (None, 200)


@pytest.mark.parametrize("model", ["nope", "m"])
def test_when_no_request_is_answered_that_is_an_error(server: Running, model: str) -> None:
    server.model.executor.fail_at = 2
    options = LoadOptions(server.url, model, requests=2, prompt_words=3, tokens=5)
    with pytest.raises(RequestError, match="no request was answered"):
        asyncio.run(closed_loop(options, 1))


def test_the_command(server: Running) -> None:
    assert asyncio.run(only_model(server.url, None)) == "m"
    arguments = [
        "bench",
        "--serve",
        server.url,
        "-p",
        "3",
        "-n",
        "4",
        "--clients",
        "2",
        "--rate",
        "100",
        "--requests",
        "4",
    ]
    shown = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    facts = json.loads(shown.output)
    assert [(level["clients"], level["rate"]) for level in facts["levels"]] == [(2, None), (None, 100.0)]
    table = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
    assert "2 clients" in table
    assert "100 /s" in table
    assert CliRunner().invoke(cli, ["bench"]).exit_code == 2
