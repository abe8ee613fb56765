"""A user's own entry changes how a model is loaded and sampled; what is given on the command line goes over it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from localllm.cli.main import main
from localllm.paths import Paths
from localllm.store import load_catalogue
from localllm.store.defaults import load_keywords

ENTRY = """
schema = 1

[models."smollm2:135m"]
context = 512
template = "{{ messages[0].content }}"

[models."smollm2:135m".placement]
device = "cpu"
vram = "2GiB"
threads = 1

[models."smollm2:135m".sampling]
max_tokens = 3
"""


@pytest.fixture
def paths(private_home: Path) -> Paths:
    paths = Paths.from_environment()
    paths.catalogue_file.parent.mkdir(parents=True, exist_ok=True)
    paths.catalogue_file.write_text(ENTRY, encoding="utf-8")
    return paths


def test_an_entry_becomes_keywords(paths: Paths) -> None:
    keywords = load_keywords(load_catalogue(paths).find("smollm2:135m"), paths.cache)
    template = keywords.pop("chat_template")
    assert keywords == {"device": "cpu", "vram": 2 * 2**30, "threads": 1, "context": 512}
    assert template.read_text(encoding="utf-8") == "{{ messages[0].content }}"
    assert list(template.parent.iterdir()) == [template]


def test_no_entry_advises_nothing(tmp_path: Path) -> None:
    assert load_keywords(None, tmp_path) == {}


def test_run_follows_the_entry_and_flags_go_over_it(
    paths: Paths, smollm2_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit):
        main(["import", str(smollm2_path), "--name", "smollm2:135m"])
    capsys.readouterr()
    for flags, tokens in (([], 3), (["-n", "2"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["run", "smollm2:135m", "The sky is", "--json", *flags])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        assert json.loads(out)["usage"]["completion_tokens"] == tokens
