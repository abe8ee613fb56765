"""The commands as a person types them: help, nonsense, broken input, and the facts that other tools rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run

from localllm.cli import doctor
from localllm.cli.main import COMMANDS
from localllm.cli.tokenize import shown_piece

pytestmark = pytest.mark.usefixtures("nothing_is_piped")


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"Usage: localllm {command}")
    assert len(out.splitlines()[2].strip()) > 20


@pytest.mark.parametrize("group", ["", "models", "config"])
def test_the_list_of_commands_cuts_no_sentence(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *group.split(), "--help")
    assert code == 0
    assert "..." not in out.split("Commands:")[1]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "--nonsense",
        "run",
        "run m p --threads 0",
        "run m p --threads 257",
        "run m p --top-p 2",
        "plan m --vram much",
        "tokenize",
        "perplexity m",
        "bench m -r 0",
    ],
)
def test_wrong_usage_is_exit_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *line.split())
    assert code == 2
    assert out == ""
    assert "Error" in err


@pytest.mark.parametrize(
    ("line", "hint"),
    [("rnu m p", "Did you mean 'run'?"), ("ls", "Did you mean 'list'?"), ("run m", "localllm chat MODEL")],
)
def test_a_slip_is_told_what_was_meant(line: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *line.split())
    assert code == 2
    assert hint in err


def test_sampling_is_checked_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", "no-such-model", "hello", "--temperature", "nan")
    assert code == 1
    assert "temperature must be a finite number" in err


def test_an_empty_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    code, _, err = run(capsys, "perplexity", "no-such-model", "--file", str(tmp_path / "empty.txt"))
    assert code == 1
    assert "empty.txt has no text" in err


@pytest.mark.parametrize("command", [["run", "NAME", "hello"], ["tokenize", "NAME", "x"], ["plan", "NAME"]])
def test_an_unknown_model_names_its_neighbours(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *["smollm2:136m" if word == "NAME" else word for word in command])
    assert code == 1
    assert err.startswith("error: ")
    assert "smollm2:135m" in err


def test_a_missing_and_a_broken_file_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", str(tmp_path / "none.gguf"), "hello")
    assert code == 1
    assert "there is no file" in err
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"<!DOCTYPE html><html>not found</html>")
    code, _, err = run(capsys, "run", str(broken), "hello")
    assert code == 1
    assert "HTML" in err


def test_a_prompt_that_is_no_text_is_refused(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "prompt.bin"
    binary.write_bytes(b"abc\xff\xfe")
    code, _, err = run(capsys, "run", tiny, "--file", str(binary))
    assert code == 1
    assert "not UTF-8" in err
    assert "byte 3" in err


def test_tokenize_shows_ids_and_pieces(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tokenize", tiny, "hello wörld", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["count"] == len(facts["ids"]) == len(facts["pieces"])
    code, out, _ = run(capsys, "tokenize", tiny, "hello wörld", "--ids")
    assert [int(word) for word in out.split()] == facts["ids"]
    code, out, _ = run(capsys, "tokenize", tiny, "hello wörld", "--count")
    assert int(out) == facts["count"]


def test_run_writes_only_the_answer_to_stdout(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "run", tiny, "abc", "--raw", "-n", "5", "--ignore-eos", "--seed", "1")
    assert code == 0
    code, again, verbose = run(capsys, "run", tiny, "abc", "--raw", "-n", "5", "--ignore-eos", "--seed", "1", "-v")
    assert again == out
    assert "tok/s" in verbose
    assert "tok/s" not in err


def test_run_as_json_counts_tokens(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", tiny, "abc", "--raw", "-n", "4", "--ignore-eos", "--json")
    facts = json.loads(out)
    assert code == 0
    assert len(facts["ids"]) == facts["usage"]["completion_tokens"] == 4
    assert facts["finish_reason"] == "length"


def test_a_prompt_beyond_the_context_gives_both_numbers(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "run", tiny, "a" * 200, "--raw", "--context", "64")
    assert code == 1
    assert "64" in err
    assert "200" in err


def test_bench_gives_the_facts_that_tools_rely_on(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "bench", tiny, "-p", "20", "-n", "4", "-r", "1", "-t", "1", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["decode_tokens_per_second"] > 0
    assert facts["prefill_tokens_per_second"] > 0
    assert 0 < facts["memory_bandwidth_fraction"] < 10


@pytest.mark.parametrize(
    ("piece", "shown"), [(b" a", "' a'"), ("ü".encode(), "'ü'"), (b" \xf0\x9f", r"' \xf0\x9f'"), (b"\n", r"'\n'")]
)
def test_a_piece_of_a_letter_is_shown_as_bytes(piece: bytes, shown: str) -> None:
    assert shown_piece(piece) == shown


def test_plan_says_what_card_it_supposes(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", tiny, "--vram", "6GiB", "--context", "128")
    assert code == 0
    assert "of the 6144 MiB budget, on a card whose memory reads" in out


def test_plan_gives_the_facts_that_tools_rely_on(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", tiny, "--vram", "6GiB", "--context", "128", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["predicted_decode_tokens_per_second"] > 0
    assert facts["planned_bytes"]["gpu"] <= 6 * 2**30


def test_doctor_says_what_is_here_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--quick", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["cores"] >= 1
    assert facts["gpus"] or facts["gpu_note"]
    code, out, _ = run(capsys, "doctor", "--quick")
    assert "processor" in out


def test_doctor_explains_settings_that_cannot_be_read_and_folders_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "a file"
    home.write_text("", encoding="utf-8")
    monkeypatch.setenv("LOCALLLM_HOME", str(home))
    code, out, _ = run(capsys, "doctor", "--quick")
    assert code == 0
    assert "CANNOT BE WRITTEN: set LOCALLLM_HOME" in out
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "settings.toml").write_text("thread = 3", encoding="utf-8")
    monkeypatch.setenv("LOCALLLM_HOME", str(folder))
    code, out, _ = run(capsys, "doctor", "--quick")
    assert code == 0
    assert "did you mean threads" in out
    assert "CANNOT" not in out


def test_doctor_shows_where_gpu_kernels_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "kernel.cubin").write_bytes(b"1234")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    _, out, _ = run(capsys, "doctor", "--quick", "--json")
    assert json.loads(out)["gpu_kernel_cache"] == {"path": str(tmp_path), "files": 1, "bytes": 4}
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    _, out, _ = run(capsys, "doctor", "--quick", "--json")
    assert json.loads(out)["gpu_kernel_cache"]["path"] == str(tmp_path / ".triton" / "cache")


@pytest.mark.parametrize(("version", "told"), [("3.6.0", False), ("3.9.2", False), ("3.5.1", True), ("3.10.0", True)])
def test_doctor_says_when_triton_is_not_one_that_was_tried(
    version: str, told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == "triton" else None)
    code, out, _ = run(capsys, "doctor", "--quick")
    assert code == 0
    assert ("kernels may be slow" in out) is told


def test_perplexity_of_a_text_that_is_too_short(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("short")
    code, _, err = run(capsys, "perplexity", tiny, "--file", str(text), "--chunk", "64")
    assert code == 1
    assert "fewer than one chunk of 64" in err


def test_perplexity_under_a_lossy_policy(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A text of some length that a tiny model finds hard. " * 6)
    command = ["perplexity", tiny, "--file", str(text), "--chunk", "64", "--device", "cpu", "--json"]
    found = []
    for policy in ([], ["--kv-policy", "h2o:64"], ["--kv-policy", "h2o:16"], ["--kv-policy", "sparq:4:16"]):
        code, out, _ = run(capsys, *command, *policy)
        assert code == 0
        facts = json.loads(out)
        found.append(facts["perplexity"])
        assert facts.get("f16_perplexity") == (found[0] if policy else None)
    assert facts["cost_percent"] == pytest.approx(100 * (found[3] / found[0] - 1))
    assert facts["cost_error_percent"] > 0
    for more in ([], ["--stream"]):
        _, out, _ = run(capsys, *command[:-1], "--kv-policy", "sparq:4:16", *more)
        assert "so sparq:4:16 costs" in out
        assert "+-" in out
    assert found[0] == found[1] != found[2]
    assert found[0] != found[3]
    code, _, err = run(capsys, *command, "--kv-policy", "h2o:all")
    assert (code, "write h2o:TOKENS" in err) == (1, True)


def test_perplexity_of_a_quantised_cache_says_what_it_costs(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A text of some length that a tiny model finds hard. " * 12)
    command = ["perplexity", tiny, "--file", str(text), "--chunk", "256", "--device", "cpu"]
    _, out, _ = run(capsys, *command, "--json")
    exact = json.loads(out)
    assert "f16_perplexity" not in exact
    _, out, _ = run(capsys, *command, "--json", "--kv", "q2")
    rough = json.loads(out)
    assert rough["f16_perplexity"] == exact["perplexity"] != rough["perplexity"]
    _, out, _ = run(capsys, *command, "--kv", "q2")
    cost = 100 * (rough["perplexity"] / exact["perplexity"] - 1)
    assert f"{exact['perplexity']:.4f}, so q2 costs {cost:+.2f}% +- {rough['cost_error_percent']:.2f}%" in out
    assert "8 bits" in out
    _, out, _ = run(capsys, *command, "--kv", "q2", "--device", "reference")
    assert "8 bits" not in out


def test_perplexity_with_a_window_needs_one_long_pass(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A text of some length that a tiny model finds hard. " * 6)
    command = ["perplexity", tiny, "--file", str(text), "--chunk", "64", "--device", "cpu", "--window", "64"]
    code, _, err = run(capsys, *command)
    assert (code, "--stream" in err) == (2, True)
    code, out, _ = run(capsys, *command, "--stream")
    assert (code, out.startswith("perplexity ")) == (0, True)


def test_a_pipe_is_read_and_a_closed_one_is_no_error(tiny: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "localllm", "run", tiny, "--raw", "-n", "3", "--ignore-eos"]
    done = subprocess.run(command, input="piped text", capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    reader = subprocess.run(
        f"{' '.join(command)} | true",
        shell=True,
        input="x",
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert "Traceback" not in reader.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_output_is_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "localllm", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"
