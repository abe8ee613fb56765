"""What each import loads, read from `sys.modules` of a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = (
    "numba",
    "llvmlite",
    "torch",
    "triton",
    "textual",
    "tokenizers",
    "sentencepiece",
    "httpx2",
    "uvicorn",
    "starlette",
    "llguidance",
    "gguf",
    "jinja2",
)


def loaded(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import localllm",
        "import localllm; localllm.LLM, localllm.Tokenizer, localllm.ChatTemplate, localllm.SamplingParameters",
        "import localllm.gguf_io, localllm.kernels.spec, localllm.kernels.step, localllm.sampling, localllm.store",
        "import localllm.conversations, localllm.chat, localllm.placement, localllm.benchmark",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(statement: str) -> None:
    assert not loaded(statement) & set(HEAVY)


def test_the_package_itself_does_not_even_load_numpy() -> None:
    assert "numpy" not in loaded("import localllm, localllm.errors, localllm.gguf_io")


def test_help_does_not_load_the_engine() -> None:
    code = "import contextlib, io\nfrom localllm.cli import main\n"
    code += "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main(['--help'])"
    assert not loaded(code) & {"numba", "llvmlite", "torch", "triton", "tokenizers", "llguidance"}


def test_public_names_are_the_documented_ones() -> None:
    import localllm

    for name in localllm.__all__:
        assert getattr(localllm, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        localllm.nonsense  # noqa: B018
