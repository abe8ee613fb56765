"""`localllm profile` on real files, and `plan` with what it left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import run


def test_a_real_model_is_as_sparse_as_measured(
    relu_path: Path, shared_fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = json.loads((shared_fixtures / "golden" / "real" / "perplexity.json").read_text(encoding="utf-8"))
    text = tmp_path / "text.txt"
    text.write_text(golden["text"], encoding="utf-8")
    model = tmp_path / "relu.gguf"
    shutil.copy(relu_path, model)
    code, out, _ = run(capsys, "profile", str(model), "--text", str(text), "--json")
    assert code == 0
    facts = json.loads(out)
    assert 0.84 <= facts["sparsity"] <= 0.86
    assert 0.61 <= facts["coverage_of_second_half"]["0.26"] <= 0.66
    assert len(facts["layers"]) == 30
    code, out, _ = run(capsys, "plan", str(model), "--json")
    assert code == 0
    assert json.loads(out)["profiled"] is True
    (tmp_path / "relu.profile").write_bytes(b"nonsense")
    code, out, err = run(capsys, "plan", str(model), "--json")
    assert code == 0
    assert json.loads(out)["profiled"] is False
    assert "planned without a profile" in err
    assert "localllm profile" in err


def test_pictures_need_matplotlib_or_are_drawn(
    relu_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The river had been rising since Tuesday.", encoding="utf-8")
    arguments = ("profile", str(relu_path), "--text", str(text), "-o", str(tmp_path / "x.profile"), "--plot")
    code, out, err = run(capsys, *arguments, "--picture", str(tmp_path / "x.png"))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert code == 1
        assert "matplotlib" in err
    else:
        assert code == 0
        assert "sparsity by layer" in out
        assert (tmp_path / "x.png").stat().st_size > 1000
