"""Measure everything that the docs claim, and write docs/benchmarks/*.json and docs/benchmarks.md.

    python bench/all.py MODEL OTHER RELU [--only cpu sparse ...] [--quick]

MODEL is a small model (smollm2:135m), OTHER one with sliding windows (gemma3:270m), RELU one with ReLU layers. What is
not run keeps the figures that are there, with their date and machine. Take an idle machine and an hour. `--quick` is
a few minutes, with fewer rounds. What a card shows: `python bench/card.py`. The page alone: `python bench/page.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Part:
    """A script and its arguments, in which {model}, {other}, {relu} stand for models and {json} for a file of facts."""

    name: str
    title: str
    full: str
    quick: str


PARTS = (
    Part(
        "cpu",
        "Speed on the CPU",
        "bench/cpu.py {model} {other} {relu} --threads 1 2 --rounds 5 --json {json}",
        "bench/cpu.py {model} {other} {relu} --threads 1 2 --rounds 1 --json {json}",
    ),
    Part(
        "start",
        "Starting, memory and rest",
        "bench/promises.py start {model} --json {json}",
        "bench/promises.py start {model} --json {json}",
    ),
    Part(
        "busy",
        "Beside a process that keeps a core busy",
        "bench/promises.py busy {model} --json {json}",
        "bench/promises.py busy {model} --json {json}",
    ),
    Part(
        "depth",
        "Long contexts",
        "bench/promises.py depth {model} --json {json}",
        "bench/promises.py depth {model} --json {json}",
    ),
    Part(
        "serve",
        "Many clients of a server",
        "bench/promises.py serve {model} --json {json}",
        "bench/promises.py serve {model} --json {json}",
    ),
    Part("tiles", "Kernels of matrix products, one core", "bench/tiles.py", "bench/tiles.py --rounds 3"),
    Part(
        "speculation",
        "Guessing ahead",
        "bench/speculation.py {model} --threads 2 --rounds 9",
        "bench/speculation.py {model} --threads 2 --rounds 1 --tokens 64",
    ),
    Part(
        "sparse",
        "Sparse against exact, in the shape of a 7B model",
        "bench/sparse.py --shape 7b",
        "bench/sparse.py --shape 7b",
    ),
    Part(
        "kv",
        "What types and policies of KV cost",
        "bench/kv_loss.py {model} --kv f32 q8 q4 q2 sparq:16:128 h2o:256",
        "bench/kv_loss.py {model} --kv q8 q4 --tokens 2048",
    ),
    Part(
        "needle",
        "A needle in a haystack",
        "bench/needle.py {model} --tokens 1000 2000 --kv f16 q4 sparq:16:128 h2o:256 window:256",
        "bench/needle.py {model} --tokens 500 --kv f16 q4 window:256",
    ),
    Part(
        "stream",
        "Text without end",
        "bench/stream.py segments {model} --window 256 --windows 21 --passes 1",
        "bench/stream.py segments {model} --window 256 --windows 5 --passes 1 --samples 5",
    ),
)


def machine() -> str:
    """Processor, cores, instruction set and card, without names of hosts."""
    command = [sys.executable, "-m", "localllm", "doctor", "--quick", "--json"]
    facts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    cards = "".join(f", {card['name']}" for card in facts["gpus"])
    return f"{facts['processor']}, {facts['cores']} cores, {facts['instruction_set']} kernels{cards}"


def measure(part: Part, models: dict[str, str], quick: bool, where: str) -> dict[str, Any]:
    """Run a part; its output, or its facts where it writes some. A failure ends the program."""
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        line = (part.quick if quick else part.full).format(json=facts, **models)
        started = time.monotonic()
        done = subprocess.run([sys.executable, *line.split()], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{line} failed:\n{done.stdout}{done.stderr}")
        found = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else None
        return {
            "title": part.title,
            "command": f"python {line.replace(f' --json {facts}', '')}",
            "date": datetime.date.today().isoformat(),
            "machine": where,
            "seconds": round(time.monotonic() - started),
            "facts": found,
            "output": done.stdout.strip().splitlines() if found is None else [],
        }


def main() -> None:
    """Measure, write, make the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "other", "relu"):
        parser.add_argument(name)
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    where = machine()
    models = {name: getattr(options, name) for name in ("model", "other", "relu")}
    FIGURES.mkdir(exist_ok=True)
    for part in PARTS:
        if options.only and part.name not in options.only:
            continue
        facts = measure(part, models, options.quick, where)
        (FIGURES / f"{part.name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        print(f"{part.name}: {facts['seconds']} s", flush=True)
    subprocess.run([sys.executable, str(Path(__file__).parent / "page.py")], check=True)


if __name__ == "__main__":
    main()
