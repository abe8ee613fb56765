"""Load on a server: every request is made and counted, in both loops, from Python and from the command line."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from running_server import Running, Serve

from localllm.cli.main import cli
from localllm.errors import ConfigurationError, RequestError
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


@pytest.mark.parametrize(
    ("model", "words", "told"), [("nope", 3, "404, .*nope"), ("m", 3, "first error: .+"), ("m", 4000, "400, .*tokens")]
)
def test_when_no_request_is_answered_the_server_s_own_error_is_told(
    server: Running, model: str, words: int, told: str
) -> None:
    server.model.executor.fail_at = 2
    options = LoadOptions(server.url, model, requests=2, prompt_words=words, tokens=5)
    with pytest.raises(RequestError, match=f"no request was answered.*{told}"):
        asyncio.run(closed_loop(options, 1))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://x", "127.0.0.1:18772", "http://[", ""])
@pytest.mark.parametrize("model", [[], ["m"]])
def test_a_server_that_cannot_be_reached(url: str, model: list[str]) -> None:
    with pytest.raises(RequestError, match=r"cannot be reached|no request was answered"):
        CliRunner().invoke(cli, ["bench", *model, "--serve", url, "--requests", "1"], catch_exceptions=False)


def test_a_missing_key_is_named(serve: Serve) -> None:
    server = serve(api_key="secret")
    with pytest.raises(RequestError, match="401, send the API key"):
        asyncio.run(only_model(server.url, None))


@pytest.mark.parametrize("option", [["--kv", "q8"], ["--window", "64"], ["--depth", "5"], ["-r", "2"]])
def test_options_about_a_model_here_are_refused(option: list[str]) -> None:
    shown = CliRunner().invoke(cli, ["bench", "--serve", "http://127.0.0.1:1", *option])
    assert shown.exit_code == 2
    assert "not with --serve" in shown.output


def test_the_chart(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "load.svg"
    arguments = ["bench", "--serve", server.url, "-p", "3", "-n", "4", "--requests", "2"]
    levels = ["--clients", "1", "--clients", "2", "--rate", "100"]
    CliRunner().invoke(cli, [*arguments, *levels, "--plot", str(picture)], catch_exceptions=False)
    assert "<svg" in picture.read_text()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        CliRunner().invoke(cli, [*arguments, "--plot", str(tmp_path / "load.xyz")], catch_exceptions=False)


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="it is here")
def test_a_chart_without_the_library_is_refused_before_anything_is_measured(server: Running) -> None:
    steps = len(server.model.executor.steps)
    with pytest.raises(ConfigurationError, match="needs matplotlib"):
        CliRunner().invoke(cli, ["bench", "--serve", server.url, "--plot", "load.png"], catch_exceptions=False)
    assert len(server.model.executor.steps) == steps


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
