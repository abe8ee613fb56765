"""README's commands as a stranger would type them: fresh checkout, environment and home; then worse circumstances.

    python bench/newcomer.py [--quick] [--tests] [--json FILE]

The checkout is what git holds at the head, in a folder with a space and letters outside ASCII; the home is empty. After
the pull: again, without a network (a network namespace without interfaces, where the system allows one), from an
installation that is mounted read-only (likewise), and with a locale that is not UTF-8. `--tests` also types README's
second command, which takes as long as all tests do. Prints a transcript with times and sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUESTION = '"What is the capital of France?"'
ANSWER = "The capital of France is Paris."
KEPT = ("PATH", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


class Terminal:
    """A stranger's shell: nothing of this user's environment but the way to packages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkout, self.home = folder, folder / "Öl und Käse" / "localllm", folder / "home"
        self.home.mkdir()
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.environment = {**kept, "HOME": str(self.home), "LC_ALL": "C.UTF-8", "PYTHONNOUSERSITE": "1"}
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def type(self, line: str, *, shown: str | None = None, lines: int = 12, **more: str) -> str:
        """Run a line, show it with its time and the end of what it says; what fails is remembered."""
        began = time.perf_counter()
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.checkout,
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        self.seconds.append(time.perf_counter() - began)
        said = re.sub(r".*\r(?!\n)", "", done.stdout.decode("utf-8", "replace")).replace(str(self.folder), "")
        print(f"$ {shown or line}    {self.seconds[-1]:.1f} s")
        print("\n".join(said.strip().splitlines()[-lines:]), flush=True)
        if done.returncode:
            self.failed.append(f"{shown or line}: exit code {done.returncode}")
        return said

    def megabytes(self, path: Path) -> float:
        """Sizes of all files below, in MB."""
        return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6


def may(*command: str) -> bool:
    """Whether this system lets us do it."""
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


def worse(terminal: Terminal, facts: dict[str, float]) -> None:
    """The same question where something is missing."""
    run = f".venv/bin/localllm run smollm2:135m {QUESTION}"

    def asked(name: str, line: str, **more: str) -> None:
        facts[name] = float(ANSWER in terminal.type(line, lines=3, **more))

    asked("again", run)
    if may("unshare", "--net"):
        asked("offline", f"unshare --net {run}")
    asked("latin1", run, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    if may("unshare", "--mount"):
        read_only = 'mount --bind . . && mount -o remount,ro,bind . && cd "$PWD" && '
        asked("read_only", f"unshare --mount bash -c '{read_only}{run}'")


def main() -> None:
    """Type, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="README's first command only")
    parser.add_argument("--tests", action="store_true", help="README's second command, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="localllm-newcomer-"))
    try:
        terminal = Terminal(folder)
        terminal.checkout.parent.mkdir()
        subprocess.run(["git", "clone", "-q", str(ROOT), str(terminal.checkout)], check=True)
        python = f"{sys.executable} -m venv .venv"
        terminal.type(python, shown="python3 -m venv .venv")
        terminal.type(".venv/bin/pip install -q .")
        said = terminal.type(f".venv/bin/localllm run smollm2:135m {QUESTION}")
        environment, install, first = terminal.seconds
        facts = {
            "environment_seconds": environment,
            "install_seconds": install,
            "first_seconds": first,
            "paris": float(ANSWER in said),
            "installed_mb": terminal.megabytes(terminal.checkout / ".venv"),
        }
        if not options.quick:
            worse(terminal, facts)
            facts["again_seconds"] = terminal.seconds[3]
            facts["home_mb"] = terminal.megabytes(terminal.home)
            terminal.type(".venv/bin/localllm pull gemma3:270m", lines=3)
            facts["both_pulled"] = float("gemma3:270m" in terminal.type(".venv/bin/localllm list"))
            terminal.type(".venv/bin/localllm doctor --quick", lines=20)
        if options.tests:
            shutil.rmtree(terminal.checkout / ".venv")
            line = f"{python} && .venv/bin/pip install -q -e '.[dev]' && PYTHON=.venv/bin/python scripts/test"
            terminal.type(line, shown=line.replace(python, "python3 -m venv .venv"), lines=4)
            facts["tests_seconds"] = terminal.seconds[-1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{facts['installed_mb']:.0f} MB installed, {facts.get('home_mb', 0):.0f} MB in the home after the first model"
    )
    facts["failed"] = float(len(terminal.failed))
    for line in terminal.failed:
        print(f"FAILED {line}")
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
