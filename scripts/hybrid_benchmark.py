"""Measures a hybrid on one card and its CPU in one call: decoding, prompts, experts that move, and how exact it is.

    python scripts/hybrid_benchmark.py [--only trip,dense,relu,learned,mixture,prefill,budgets,kl,check]
        [--models FILE...] [--text FILE] [--total SECONDS] [--limit SECONDS] [--out FILE] [--layers N]
        [--mixture-layers N] [--tiny] [--warm-only]

Every part runs in a process of its own, which is ended when its time is over, and prints each row when it is measured;
`--out` also gets every row as a line of JSON. First all parts run with one layer and side by side, which compiles their
kernels. `--tiny` tries the script anywhere (TRITON_INTERPRET=1). The ReLU model has the shape of the dense one; biases
of its gates make 12% of the neurons fire, with a skew as measured on real models: the hottest 26% make 63% of the
activations.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMITS = {
    "trip": 45.0,
    "dense": 45.0,
    "relu": 45.0,
    "learned": 75.0,
    "mixture": 170.0,
    "prefill": 110.0,
    "budgets": 90.0,
    "kl": 90.0,
    "check": 60.0,
}
WARM_LIMIT = 70.0
WARM = ("--warm", "--layers", "1", "--mixture-layers", "3", "--steps", "1", "--seconds", "0", "--threads", "1")


def start_part(name: str, arguments: list[str], *, quiet: bool) -> subprocess.Popen[bytes]:
    """A part in a process of its own, which leads a group."""
    command = [sys.executable, __file__, "--part", name, *arguments]
    output = subprocess.DEVNULL if quiet else None
    return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Its exit status; it is ended, with all that it has started, when the time is over."""
    try:
        return process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser()
    made.add_argument("--only", default=",".join(LIMITS))
    made.add_argument("--part", choices=tuple(LIMITS))
    made.add_argument("--tiny", action="store_true")
    made.add_argument("--warm", action="store_true", help="a short run that compiles the kernels")
    made.add_argument("--no-warm", action="store_true")
    made.add_argument("--warm-only", action="store_true", help="compile the kernels, measure nothing")
    made.add_argument("--limit", type=float, help="seconds of every part, instead of its own limit")
    made.add_argument("--total", type=float, default=1e9, help="seconds of all parts; what does not fit is left out")
    made.add_argument("--out", type=Path, help="a file that gets every row as a line of JSON")
    made.add_argument("--layers", type=int)
    made.add_argument("--mixture-layers", type=int)
    made.add_argument("--steps", type=int, default=48)
    made.add_argument("--seconds", type=float, default=45.0, help="time in which experts may move")
    made.add_argument("--threads", type=int)
    made.add_argument("--models", nargs="*", default=[])
    made.add_argument("--text", type=Path, help="a text for the divergence of those models")
    return made


def run_one(given: argparse.Namespace) -> None:
    """One part, in this process."""
    sys.path.insert(0, str(Path(__file__).parent))
    from hybrid_parts import Benchmark, Wishes

    wishes = Wishes(
        part=given.part,
        tiny=given.tiny,
        warm=given.warm,
        steps=given.steps,
        layers=given.layers,
        mixture_layers=given.mixture_layers,
        seconds=given.seconds,
        threads=given.threads,
        models=tuple(given.models),
        text=given.text,
        out=given.out,
    )
    getattr(Benchmark(wishes), given.part)()


def main() -> None:
    """Compile, then every part that is asked for."""
    given = parser().parse_args()
    if given.part:
        run_one(given)
        return
    arguments, began = sys.argv[1:], time.monotonic()
    wanted = [part for part in given.only.split(",") if part]

    def left() -> float:
        return float(given.total) - (time.monotonic() - began)

    def note(what: str, result: str) -> None:
        print(f"== {what}: {result}, {time.monotonic() - began:.0f} s in all", flush=True)

    if not given.no_warm and not given.tiny:
        running = {part: start_part(part, [*arguments, *WARM], quiet=True) for part in wanted}
        end = time.monotonic() + min(WARM_LIMIT, left())
        failed = [part for part, process in running.items() if wait(process, end - time.monotonic())]
        note("kernels compiled", f"failed: {', '.join(failed)}" if failed else "for all parts")
    for part in () if given.warm_only else wanted:
        if left() < 5:
            note(part, "left out")
            continue
        limit = min(LIMITS[part] if given.limit is None else given.limit, left())
        code = wait(start_part(part, arguments, quiet=False), limit)
        note(part, f"ended after {limit:.0f} s" if code == -signal.SIGKILL else f"exit status {code}")


if __name__ == "__main__":
    main()
