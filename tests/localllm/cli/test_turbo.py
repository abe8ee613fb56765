"""`profile --predictor`, `plan` and `run --mode turbo` on a small file."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from commands import run

MODEL = "llama_gqa_tied_f16"


@pytest.fixture
def model(data_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    shutil.copy(data_folder / "models" / f"{MODEL}.gguf", path)
    return path


def test_turbo_from_calibration_to_answer(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    ask = ("run", str(model), "hello", "--raw", "--max-tokens", "4", "--temperature", "0", "--device", "cpu")
    code, _, err = run(capsys, *ask, "--mode", "turbo")
    assert code == 1
    assert "localllm profile MODEL --predictor" in err
    text = tmp_path / "text.txt"
    text.write_text("The river had been rising since Tuesday. " * 20, encoding="utf-8")
    code, out, _ = run(
        capsys, "profile", str(model), "--text", str(text), "--predictor", "--turbo-loss", "5%", "--json"
    )
    assert code == 0
    facts = json.loads(out)["turbo"]
    assert facts["budget"] == 0.05
    assert Path(facts["calibration"]) == model.with_name("small.turbo")
    cost = f"perplexity {facts['cost']['exact']:.2f} -> {facts['cost']['turbo']:.2f}"
    code, out, _ = run(capsys, "plan", str(model))
    assert code == 0
    assert cost in out
    code, _, err = run(capsys, *ask, "--mode", "turbo", "-v")
    assert code == 0
    assert cost in err
    code, _, err = run(capsys, *ask, "-v")
    assert code == 0
    assert "perplexity" not in err  # never by itself
    model.with_name("small.turbo").write_bytes(b"nonsense")
    code, _, err = run(capsys, *ask, "--mode", "turbo")
    assert code == 1
    assert "damaged" in err
    code, _, err = run(capsys, "plan", str(model))
    assert code == 0
    assert "no turbo" in err


@pytest.mark.parametrize("share", ["0", "101%", "much", "-1%", "nan"])
def test_shares_are_checked(model: Path, share: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "profile", str(model), "--predictor", "--turbo-loss", share)
    assert code == 2
    assert "share such as 2%" in err


def test_a_budget_needs_a_calibration(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "profile", str(model), "--turbo-loss", "2%")
    assert code == 2
    assert "--predictor" in err
