"""What was promised of the CPU beside its speed: starting, sharing the machine, long contexts, many clients.

    python bench/promises.py start|busy|depth|serve MODEL [--threads 2] [--rounds 5] [--json FILE]

Each prints one line a figure and takes less than a minute and a half; on a machine where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from command import run_bench

from localllm.benchmark import measure_memory_bandwidth
from localllm.gguf_io import open_gguf
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import PAGE_SIZE, KVLayout
from localllm.kernels.registry import open_executor
from localllm.kernels.single_sequence import allocate_for, chunks, simple_step
from localllm.models import load_spec
from localllm.store import resolve_model

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec

Figures = dict[str, float]
SHORT, LONG = 32, 512  # words of a prompt; long ones take most of the time, and sixteen take sixteen times as long
PIECE = 64  # tokens; a quantised cache seals pages once for them
QUESTION = "Name three things that a gardener does in spring, and say why each of them matters for the summer."


def child(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds until a command ended well, and its largest resident size in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e6


def start(model: str, threads: int, rounds: int) -> Figures:
    """From the start of the process to its first token (and its end), without and with compiled kernels; at rest."""
    file = str(resolve_model(model).path)
    with tempfile.TemporaryDirectory(prefix="localllm-start-") as home:
        own = {**os.environ, "LOCALLLM_HOME": home, "LOCALLLM_CACHE_DIR": f"{home}/cache"}
        command = [sys.executable, "-m", "localllm", "run", file, QUESTION, "-n", "1", "-t", str(threads)]
        cold, _ = child(command, own)
        warm = [child(command, own)[0] for _ in range(rounds)]
        _, most = child([*command[:-4], "-n", "64", "-t", str(threads)], own)
        _, bare = child([sys.executable, "-c", "import numpy, numba, tokenizers, localllm.llm"], own)
    return {
        "cold_seconds": cold,
        "warm_seconds": statistics.median(warm),
        "peak_mb": most,
        "peak_over_imports_mb": most - bare,
        "idle_percent": idle_percent(file, threads),
    }


def idle_percent(file: str, threads: int) -> float:
    """CPU time of a loaded process that does nothing, in percent of one core."""
    from localllm.llm import LLM

    with LLM(file, device="cpu", threads=threads) as llm:
        llm.generate("Hello", max_tokens=4)
        time.sleep(1)
        before, began = time.process_time(), time.perf_counter()
        time.sleep(8)
        return 100 * (time.process_time() - before) / (time.perf_counter() - began)


def bench(model: str, *arguments: str) -> float:
    """Decoded tokens a second."""
    return float(run_bench(model, "-p", "0", "-n", "128", "-r", "3", *arguments)["decode_tokens_per_second"])


def busy(model: str, threads: int, rounds: int) -> Figures:
    """Decoding with as many threads as localllm chooses, beside a process that keeps one core busy."""
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(bench(model, "-t", "1"))
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                beside.append(bench(model))
            finally:
                other.kill()
    one, shared = statistics.median(alone), statistics.median(beside)
    return {"one_thread": one, "beside_a_busy_core": shared, "share": shared / one}


class Held:
    """A model with so many tokens in its cache, that writes pieces of an answer."""

    def __init__(self, spec: ModelSpec, threads: int, kv: KVType, at: int) -> None:
        self.executor = open_executor(spec, "cpu", ExecutorOptions(threads=threads))
        self.layout, self.kv, self.at = KVLayout.of(spec), kv, at
        allocate_for(self.executor, at + PIECE, kv)
        ids = np.arange(100, 100 + at)
        for first, last in chunks(0, at, self.executor.max_rows, kv):
            none = np.zeros(0, np.int32)
            self.executor.forward(simple_step(self.layout, ids[first:last], first, output_rows=none, kv_type=kv))

    def seconds(self) -> float:
        """For a token, over one piece; the next piece takes its place in the cache."""
        began = time.perf_counter()
        for position in range(self.at, self.at + PIECE):
            self.executor.forward(simple_step(self.layout, [7], position, kv_type=self.kv))
        return (time.perf_counter() - began) / PIECE


def depth(model: str, threads: int, rounds: int) -> Figures:
    """Decoding at 4,096 tokens of context by type of cache, in turn; and what attention reads a second at 8,192."""
    with open_gguf(resolve_model(model).path) as file:
        spec = load_spec(file)
        places: dict[str, tuple[KVType, int]] = {"f16": ("f16", 4096), "q8": ("q8", 4096), "q4": ("q4", 4096)}
        places |= {"short": ("f16", 16), "long": ("f16", 8192 - PIECE)}
        held = {name: Held(spec, threads, kv, at) for name, (kv, at) in places.items()}
        turns = [{name: own.seconds() for name, own in held.items()} for _ in range(rounds + 1)][1:]
        for own in held.values():
            own.executor.close()
    bytes_a_token = sum(layer.page_bytes("f16") for layer in KVLayout.of(spec).layers) / PAGE_SIZE
    between = 8192 - PIECE - 16
    read = bytes_a_token * between / statistics.median(turn["long"] - turn["short"] for turn in turns)
    return {
        "q8_of_f16": statistics.median(turn["f16"] / turn["q8"] for turn in turns),
        "q4_of_f16": statistics.median(turn["f16"] / turn["q4"] for turn in turns),
        "f16_at_4096": 1 / statistics.median(turn["f16"] for turn in turns),
        "attention_gb_s": read / 1e9,
        "attention_share": read / measure_memory_bandwidth(threads),
    }


def serve(model: str, threads: int, rounds: int) -> Figures:
    """A server with one client, then with sixteen."""
    with tempfile.TemporaryDirectory(prefix="localllm-serve-") as folder:
        log = Path(folder) / "log"
        command = [
            sys.executable,
            "-m",
            "localllm",
            "serve",
            model,
            "--port",
            "0",
            "--parallel",
            "16",
            "--context",
            "1024",
        ]
        with log.open("w", encoding="utf-8") as file:
            server = subprocess.Popen([*command, "-t", str(threads)], stderr=file, stdout=file)
        try:
            url = address(server, log)
            found = [levels(url, SHORT) for _ in range(rounds)]
            long = [levels(url, LONG) for _ in range(max(1, rounds // 3))]
        finally:
            server.terminate()
            server.wait(60)
    one, many = (statistics.median(pair[index] for pair in found) for index in (0, 1))
    return {
        "one_stream": one,
        "sixteen_streams": many,
        "ratio": statistics.median(b / a for a, b in found),
        "ratio_with_long_prompts": statistics.median(b / a for a, b in long),
    }


def address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where the server says that it listens."""
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        for word in log.read_text(encoding="utf-8").split():
            if word.startswith("http://"):
                return word
        time.sleep(0.05)
    raise SystemExit(f"the server does not listen:\n{log.read_text(encoding='utf-8')}")


def levels(url: str, words: int) -> tuple[float, float]:
    """Tokens a second that one client gets and that sixteen get together, each with a prompt of so many words."""
    command = [sys.executable, "-m", "localllm", "bench", "--serve", url, "--json"]
    found = []
    for clients, requests in ((1, 4), (16, 32)):
        done = subprocess.run(
            [*command, "-p", str(words), "--clients", str(clients), "--requests", str(requests)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        found.append(float(json.loads(done.stdout)["levels"][0]["tokens_per_second"]))
    return found[0], found[1]


WHAT: dict[str, Callable[[str, int, int], Figures]] = {"start": start, "busy": busy, "depth": depth, "serve": serve}


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(WHAT))
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = WHAT[options.what](options.model, options.threads, options.rounds)
    for name, value in figures.items():
        print(f"{name:20} {value:.4g}")
    if options.json:
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
