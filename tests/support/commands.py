"""The command line, run in this process."""

from __future__ import annotations

import pytest

from localllm.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error); a traceback is a failure."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err
