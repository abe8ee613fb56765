"""`localllm bench` as a program of its own, for scripts that compare."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def run_bench(model: str, *arguments: str) -> dict[str, Any]:
    """What `localllm bench MODEL ARGUMENTS --json` found; ends the program with what it said when it fails."""
    command = [sys.executable, "-m", "localllm", "bench", model, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
