"""Flags of context, window and sinks that cannot work together, and what is said when the context is full."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from commands import run

pytestmark = pytest.mark.usefixtures("nothing_is_piped")


def ask(capsys: pytest.CaptureFixture[str], tiny: str, flags: str) -> tuple[int, str, str]:
    return run(capsys, "run", tiny, "abc", "--raw", "--ignore-eos", "--device", "cpu", *flags.split())


@pytest.mark.parametrize("extra", ["", "-n 100", "-n 100 --context-policy error --json", "--kv-policy h2o:16"])
def test_an_answer_that_fills_the_context_says_so(tiny: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, tiny, f"-c 64 {extra}")
    assert code == 0
    assert out
    (line,) = [line for line in err.splitlines() if "is full" in line]
    assert "context of 64 tokens is full" in line
    assert "--context 128" in line
    assert ("--context-policy window" in line) == ("h2o" not in extra)


@pytest.mark.parametrize(("policy", "times"), [("error", 1), ("window", 0)])
def test_a_chat_whose_context_is_full_says_so(
    tiny: str,
    policy: str,
    times: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    flags = f"--chat-template {template} -c 64 -n 100 --ignore-eos --device cpu --context-policy {policy}"
    code, _, err = run(capsys, "chat", tiny, "--plain", *flags.split())
    assert code == 0
    assert err.count("context of 64 tokens is full") == times


@pytest.mark.parametrize("extra", ["-n 5 -c 64", "-n 100 -c 64 --context-policy window"])
def test_an_answer_that_ends_otherwise_does_not(tiny: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(capsys, tiny, extra)
    assert (code, "is full" in err) == (0, False)


@pytest.mark.parametrize(
    ("flags", "said"), [("--chunk 2", "2 is not in the range"), ("--stream", "none follows another")]
)
def test_a_perplexity_of_nothing_is_refused(
    tiny: str, flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("a")
    code, out, err = run(capsys, "perplexity", tiny, "-f", str(text), "--device", "cpu", *flags.split())
    assert (bool(code), out) == (True, "")
    assert said in err


def test_as_many_tokens_as_were_asked_for_are_no_full_context(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ask(capsys, tiny, "-n 1 --json")
    left = 64 - json.loads(out)["usage"]["prompt_tokens"]
    _, _, err = ask(capsys, tiny, f"-c 64 -n {left}")
    assert "is full" not in err
    _, _, err = ask(capsys, tiny, f"-c 64 -n {left + 1}")
    assert "is full" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--sinks 8", "no window"),
        ("--sinks 8 --context-policy error", "no window"),
        ("--window 64 --context-policy error", "one of the two"),
        ("--window 128 -c 64", "larger than the context of 64"),
    ],
)
@pytest.mark.parametrize("command", ["run", "serve"])
def test_flags_that_contradict_each_other(
    tiny: str, command: str, flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, command, tiny, *(["abc"] if command == "run" else []), *flags.split())
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("flags", ["--sinks 8 --window 64", "--sinks 8 -c 64 --context-policy window", "--window 64"])
def test_flags_that_go_together(tiny: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, tiny, f"-n 3 {flags}")
    assert (code, "warning" in err) == (0, False)
    assert out


def test_sinks_of_a_window_in_the_settings(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCALLLM_CONTEXT", "64")
    monkeypatch.setenv("LOCALLLM_WINDOW", "96")
    code, _, err = ask(capsys, tiny, "-n 3 --sinks 8 -v")
    assert code == 0
    assert "window 96" in err


def test_a_context_above_the_trained_one_is_warned_of(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(capsys, tiny, "-n 3 -c 3000")
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("warning")] == [
        line for line in err.splitlines() if "3000" in line and "2048" in line
    ]
    assert "warning" in err


def test_sparq_reads_no_more_components_than_there_are(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capsys, tiny, "-n 3 --kv-policy sparq:999:4")
    assert (code, out) == (1, "")
    assert "999 components" in err
    assert "size of" in err
