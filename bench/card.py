"""What only a graphics card can show, in one call, and what the docs make of it.

    python bench/card.py run FOLDER --models SMOLLM2 GEMMA3 RELU [--total 380] [--only tests speed hybrid ...]
    python bench/card.py take FOLDER --machine "NVIDIA H200, 16 cores"

`run`, on a machine with a card, writes FOLDER/card.jsonl, a row of JSON for everything that is measured, and
FOLDER/card.log with all that was printed. First everything that is not timed runs side by side (tests, greedy texts;
kernels are compiled for the rest), then the parts that are timed, one after the other; what does not fit into `--total`
seconds is left out, the last first. LOCALLLM_FIXTURES says where the large golden data is. `take` makes
docs/benchmarks/gpu.json and hybrid.json of the rows; then `python bench/page.py`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from card_figures import hybrid_figures, speed_figures
from figures import FIGURES

ROOT = Path(__file__).resolve().parents[1]
HYBRID = ("trip", "dense", "relu", "mixture", "learned", "budgets", "prefill")
TITLES = {"gpu": "On a card", "hybrid": "On a card and the CPU"}
GRACE = 3.0  # seconds for a program to end what it has started
RUNS = (3, 2)  # of a whole `localllm run`, early and late
SPEED = (
    ("8b:q4_0", "int8", "decode,batch,prefill,context"),
    ("8b:q4_0", "float32", "decode"),
    ("8b:q4_k_m", "int8", "decode"),
)


@dataclass(frozen=True, slots=True)
class Job:
    """A program that prints rows, the seconds that it may take, and files to which it adds rows itself."""

    part: str
    command: tuple[str, ...]
    seconds: float
    rows: Path | None = None


def script(name: str, *arguments: str) -> tuple[str, ...]:
    """One of scripts/, with this Python."""
    return (sys.executable, str(ROOT / "scripts" / name), *arguments)


def beside(models: list[str], folder: Path, workers: int, wanted: set[str], more: tuple[str, ...]) -> list[Job]:
    """What is not timed: it runs all at once."""
    threads = str(max(1, workers // 4))
    report = f"--junitxml={folder}/tests.xml"
    tests = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", report)
    where = ("--confcutdir=tests/kernels", "-n", str(workers), "tests/kernels/gpu")
    warm = ("--warm-only", "--threads", str(workers), "--only", ",".join(HYBRID), *more, "--models", *models)
    jobs = [
        Job("tests", (*tests, *where), 170),
        Job("greedy", script("greedy_texts.py", *models[:2]), 170),
        Job("hybrid", script("hybrid_benchmark.py", *warm), 100),
        Job("verify", script("verify_benchmark.py", "--device", "hybrid", "--layers", "2", "--rounds", "1"), 100),
        Job("start", run_command(models[0]), 100),
    ]
    jobs += [Job("speed", script("gpu_benchmark.py", *speed_arguments(*case), "--compile-only"), 150) for case in SPEED]
    exact = ("--only", "kl", "--no-warm", "--threads", threads, *more)
    for number, model in enumerate(models):
        rows = folder / f"exact{number}.jsonl"
        command = script("hybrid_benchmark.py", *exact, "--out", str(rows), "--models", model)
        jobs.append(Job("hybrid", command, 200, rows))
    return [job for job in jobs if job.part in wanted]


def speed_arguments(model: str, arithmetic: str, only: str) -> tuple[str, ...]:
    """Those of gpu_benchmark.py."""
    return "--models", model, "--arithmetic", arithmetic, "--only", only


def run_command(model: str) -> tuple[str, ...]:
    """README's question on the card."""
    question = ("What is the capital of France?", "-n", "12", "--temperature", "0", "--device", "cuda")
    return sys.executable, "-m", "localllm", "run", model, *question


def timed(models: list[str], folder: Path, workers: int, wanted: set[str], more: tuple[str, ...]) -> list[Job]:
    """What is timed: one after the other, in the order of what matters."""
    rows = folder / "hybrid.jsonl"
    common = ("--no-warm", "--threads", str(workers), "--seconds", "25", "--out", str(rows), *more, "--models", *models)
    jobs = [Job("speed", script("gpu_benchmark.py", *speed_arguments(*case)), 75) for case in SPEED]
    jobs += [Job("start", run_command(models[0]), 25)] * RUNS[0]
    jobs += [Job("floor", script("graph_floor.py", models[0]), 30)]
    limits = {"mixture": 120.0, "learned": 45.0, "budgets": 60.0, "prefill": 60.0}
    jobs += [
        Job("hybrid", script("hybrid_benchmark.py", "--only", part, *common), limits.get(part, 30.0), rows)
        for part in HYBRID
    ]
    verify = ("--device", "hybrid", "--layers", "2", "--rows", "1", "4", "8", "--json", str(folder / "verify.json"))
    jobs.insert(-4, Job("verify", script("verify_benchmark.py", *verify), 60))
    jobs += [Job("start", run_command(models[0]), 25)] * RUNS[1]
    return [job for job in jobs if job.part in wanted]


def rows_of(text: str) -> list[dict[str, Any]]:
    """The objects among the lines."""
    found = []
    for line in text.splitlines():
        if line.strip().startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a line that was cut when its time was over
    return found


@dataclass(frozen=True, slots=True)
class Started:
    """A process, what it says, and when it began."""

    process: subprocess.Popen[bytes]
    said: TextIO
    began: float


class Run:
    """The call on the card: its clock, its log and its rows."""

    def __init__(self, folder: Path, total: float) -> None:
        self.folder, self.total, self.began = folder, total, time.monotonic()
        self.log = (folder / "card.log").open("a", encoding="utf-8")
        self.rows = folder / "card.jsonl"

    def left(self) -> float:
        """Seconds."""
        return self.total - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """To the terminal and the log."""
        print(f"{time.monotonic() - self.began:5.0f} s  {text}", flush=True)
        print(text, file=self.log, flush=True)

    def add(self, part: str, rows: list[dict[str, Any]]) -> None:
        """Rows, at once on the disk."""
        with self.rows.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"part": part, **row}) + "\n" for row in rows)

    def limited(self, job: Job) -> Job:
        """A part of the hybrid ends itself in time, with the processes that it has started in groups of their own."""
        if job.rows is None:
            return job
        return replace(job, command=(*job.command, "--limit", f"{min(job.seconds, self.left()) - GRACE:.0f}"))

    def start(self, job: Job) -> Started:
        """A process that leads a group, and writes to a file: a pipe that nobody reads would stop it."""
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by finish
        process = subprocess.Popen(
            job.command,
            cwd=ROOT,
            # byte code as an installed package has it, also where the image says that none is written
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Started(process, said, time.monotonic())

    def finish(self, job: Job, started: Started, *, measured: bool) -> None:
        """Wait for it, or end it and all that it has started when its time is over; keep what it said."""
        process = started.process
        try:
            process.wait(timeout=max(1.0, min(job.seconds - (time.monotonic() - started.began), self.left())))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - started.began
        started.said.seek(0)
        said = started.said.read()
        started.said.close()
        print(said, file=self.log, flush=True)
        last = said.strip().splitlines()[-1][-120:] if said.strip() else ""
        self.say(f"{job.part}: {seconds:.1f} s, exit code {process.returncode}; {last}")
        if job.part == "start" and measured:
            self.add("start", [{"seconds": seconds, "code": process.returncode, "paris": "Paris" in said}])
        elif job.part == "tests":
            self.add("tests", [{"summary": last, "code": process.returncode, "seconds": round(seconds)}])
        elif job.rows is None:
            self.add(job.part, rows_of(said))
        if job.part == "verify" and measured and (file := self.folder / "verify.json").exists():
            self.add("verify", [json.loads(file.read_text(encoding="utf-8"))])


def on_the_card(options: argparse.Namespace) -> None:
    """Everything, within the time."""
    options.folder.mkdir(parents=True, exist_ok=True)
    run, wanted = Run(options.folder, options.total), set(options.only)
    workers = options.workers or os.cpu_count() or 1
    tiny = ("--tiny", "--steps", "2") if options.tiny else ()
    jobs = beside(options.models, options.folder, workers, wanted, tiny)
    first = [(job, run.start(run.limited(job))) for job in jobs]
    for job, process in first:
        run.finish(job, process, measured=job.part in ("tests", "greedy"))
    after = timed(options.models, options.folder, workers, wanted, tiny)
    for job in after:
        if run.left() < 8:
            run.say(f"{job.part}: left out")
            continue
        run.finish(job, run.start(run.limited(job)), measured=True)
    for hybrid in sorted({job.rows for job in jobs + after if job.rows is not None and job.rows.exists()}):
        rows = rows_of(hybrid.read_text(encoding="utf-8"))
        run.add("hybrid", [{**row, "section": row["part"]} for row in rows])
    run.say("end")


def take(options: argparse.Namespace) -> None:
    """Rows into the docs."""
    rows = rows_of((options.folder / "card.jsonl").read_text(encoding="utf-8"))
    hybrid = [{**row, "part": row["section"]} for row in rows if "section" in row]
    for row in hybrid:
        row.pop("section")
    card = [row for row in rows if "section" not in row]
    parts = {"gpu": (card, speed_figures(card)), "hybrid": (hybrid, hybrid_figures(hybrid))}
    for name, (own, figures) in parts.items():
        if not own:
            continue
        facts = {
            "title": TITLES[name],
            "command": "python bench/card.py run",
            "date": options.date,
            "machine": options.machine,
            "facts": figures,
            "rows": own,
        }
        (FIGURES / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(own)} rows, {len(figures)} figures")


def main() -> None:
    """One of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    parts = ("tests", "greedy", "speed", "start", "floor", "hybrid", "verify")
    runs = what.add_parser("run")
    runs.add_argument("folder", type=Path)
    runs.add_argument("--models", nargs=3, required=True, metavar=("SMOLLM2", "GEMMA3", "RELU"))
    runs.add_argument("--total", type=float, default=380.0)
    runs.add_argument("--only", nargs="+", choices=parts, default=parts)
    runs.add_argument("--workers", type=int)
    runs.set_defaults(do=on_the_card)
    runs.add_argument("--tiny", action="store_true", help="small hybrids, to try it anywhere (TRITON_INTERPRET=1)")
    takes = what.add_parser("take")
    takes.add_argument("folder", type=Path)
    takes.add_argument("--machine", required=True)
    takes.add_argument("--date", default=datetime.date.today().isoformat())
    takes.set_defaults(do=take)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
