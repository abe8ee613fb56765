"""Measure everything that the docs claim in one run, and write docs/benchmarks/*.json and docs/benchmarks.md.

    python bench/all.py MODEL OTHER RELU DRAFTER [--only cpu sparse ...] [--quick] [--output FOLDER]

MODEL is a small model (smollm2:135m), OTHER one with sliding windows (gemma3:270m), RELU one with ReLU layers, DRAFTER
the layer of guesses that `scripts/train_drafter.py` made for MODEL. Take an idle machine and half an hour, and set
LOCALLLM_FIXTURES and LOCALLLM_TEST_MODELS for the tests. A part that fails is named, and the others go on; the program
ends with an error then. `--quick` is a few minutes, with fewer rounds, and does not touch the page unless `--output`
names the folder of its figures. With `--only` what is not run keeps the figures that are there. What a card shows:
`python bench/card.py`. The page alone: `python bench/page.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import FIGURES
from parts import PARTS, Part

from localllm.store import resolve_model

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 1200  # seconds of a part


def machine() -> str:
    """Processor, cores, instruction set and card, without names of hosts."""
    command = [sys.executable, "-m", "localllm", "doctor", "--quick", "--json"]
    facts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    cards = "".join(f", {card['name']}" for card in facts["gpus"])
    return f"{facts['processor']}, {facts['cores']} cores, {facts['instruction_set']} kernels{cards}"


def memory_speed() -> list[float]:
    """GB/s that one thread and two read now: it differs from hour to hour on a machine that is shared."""
    from localllm.benchmark import measure_memory_bandwidth

    return [round(measure_memory_bandwidth(threads) / 1e9, 1) for threads in (1, 2)]


def commit() -> str:
    """What was measured; with a + when files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(part: Part, models: dict[str, str], quick: bool, run: dict[str, Any]) -> dict[str, Any]:
    """Run a part; its output and its facts. Raises RuntimeError with what it said when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        template = part.quick if quick else part.full
        words = [word.format(**models) for word in template.split()]
        shown = template.format(**{name: Path(model).name for name, model in models.items()})
        started, before = time.monotonic(), memory_speed()
        command = [sys.executable, *words, "--json", str(facts)]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{shown}: not ready in {LONGEST} s") from error
        if done.returncode or not facts.exists():
            raise RuntimeError(f"{shown} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        output = done.stdout
        for name in {str(Path(model).parent) for model in models.values()}:
            output = output.replace(f"{name}/", "")
        return {
            "title": part.title,
            "command": f"python {shown}",
            **run,
            "memory_gb_s": before,
            "seconds": round(time.monotonic() - started),
            "facts": json.loads(facts.read_text(encoding="utf-8")),
            "output": output.strip().splitlines(),
        }


def main() -> None:
    """Measure, write, make the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "other", "relu", "drafter"):
        parser.add_argument(name)
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--without", nargs="+", choices=[part.name for part in PARTS], default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, help="a folder for the figures instead of docs/benchmarks")
    options = parser.parse_args()
    if options.quick and options.output is None:
        parser.error("--quick needs --output: its figures are no measurement")
    folder: Path = options.output or FIGURES
    folder.mkdir(exist_ok=True, parents=True)
    now = datetime.datetime.now()
    run = {"date": now.date().isoformat(), "run": now.isoformat(timespec="minutes"), "commit": commit()}
    run["machine"] = machine()
    named = {name: getattr(options, name) for name in ("model", "other", "relu", "drafter")}
    models = {name: str(resolve_model(model).path) for name, model in named.items()}
    started, failed = time.monotonic(), []
    for part in PARTS:
        if (options.only and part.name not in options.only) or part.name in options.without:
            continue
        try:
            facts = measure(part, models, options.quick, run)
        except RuntimeError as error:
            failed.append(part.name)
            print(f"{part.name}: FAILED\n{error}", flush=True)
            continue
        (folder / f"{part.name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        print(f"{part.name}: {facts['seconds']} s, {time.monotonic() - started:.0f} s in all", flush=True)
    if options.output is None:
        subprocess.run([sys.executable, str(Path(__file__).parent / "page.py")], check=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
