"""The parts of a run of `bench/all.py`: scripts, their arguments, and how long each took on two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A script's arguments, in which {model}, {other}, {relu}, {drafter} stand for files, and those of a quick run."""

    name: str
    title: str
    full: str
    quick: str


PARTS = (
    Part(
        "cpu",
        "Speed on the CPU",
        "bench/cpu.py model={model} other={other} relu={relu} dense={relu} --threads 1 2 --rounds 3",
        "bench/cpu.py model={model} other={other} relu={relu} dense={relu} --threads 2 --rounds 1",
    ),
    Part(
        "start",
        "Starting, memory and rest",
        "bench/promises.py start {model}",
        "bench/promises.py start {model}",
    ),
    Part(
        "busy",
        "Beside a process that keeps a core busy",
        "bench/promises.py busy {model} --rounds 5",
        "bench/promises.py busy {model} --rounds 1",
    ),
    Part(
        "depth",
        "Long contexts",
        "bench/promises.py depth {model} --rounds 9",
        "bench/promises.py depth {model} --rounds 2",
    ),
    Part(
        "serve",
        "Many clients of a server",
        "bench/promises.py serve {model} --rounds 5",
        "bench/promises.py serve {model} --rounds 1",
    ),
    Part(
        "arrivals",
        "A long prompt beside a running answer",
        "bench/arrivals.py {model} --rounds 7",
        "bench/arrivals.py {model} --rounds 1",
    ),
    Part("tiles", "Kernels of matrix products, one core", "bench/tiles.py", "bench/tiles.py --types Q4_0 --rounds 3"),
    Part("mixture", "Experts on the CPU", "bench/mixture.py", "bench/mixture.py --layers 1 --rounds 1"),
    Part(
        "kv",
        "What types of KV cost",
        "bench/kv_loss.py {model} --kv q8 q4 --tokens 32768",
        "bench/kv_loss.py {model} --kv q8 q4 --tokens 2048",
    ),
    Part(
        "needle",
        "A needle in a haystack",
        "bench/needle.py {model} --tokens 1000 --repeats 1 --kv f16 q4 sparq:16:128 h2o:256 window:256",
        "bench/needle.py {model} --tokens 500 --repeats 1 --kv f16 window:256",
    ),
    Part(
        "stream",
        "Text without end: a window of 256",
        "bench/stream.py segments {model} --window 256 --windows 5 --passes 5",
        "bench/stream.py segments {model} --window 256 --windows 3 --passes 2 --samples 5",
    ),
    Part(
        "window",
        "Text without end: a window of 4,096",
        "bench/stream.py segments {model} --window 4096 --windows 5 --passes 4 --samples 4",
        "bench/stream.py segments {model} --window 1024 --windows 2 --passes 2 --samples 2",
    ),
    Part(
        "answer",
        "An answer of 100,000 tokens",
        "bench/stream.py generate {model} --window 1024 --tokens 100000 --pieces 20",
        "bench/stream.py generate {model} --window 256 --tokens 2500 --pieces 2",
    ),
    Part(
        "speculation",
        "Guessing ahead",
        "bench/speculation.py {model} --threads 2 --rounds 5 --tasks copy edit summarise prose",
        "bench/speculation.py {model} --threads 2 --rounds 1 --tokens 64 --tasks copy edit summarise prose",
    ),
    Part(
        "drafter",
        "Guessing ahead in chats, with a trained layer",
        "bench/speculation.py {model} --speculate heads:{drafter} --threads 2 --rounds 5 --tasks chat",
        "bench/speculation.py {model} --speculate heads:{drafter} --threads 2 --rounds 1 --tokens 64 --tasks chat",
    ),
    Part(
        "batches",
        "Guessing ahead for many at once",
        "bench/speculation.py {model} --threads 2 --rounds 5 --tasks copy prose --tokens 64 --parallel 1 2 4 8 16",
        "bench/speculation.py {model} --threads 2 --rounds 1 --tasks copy prose --tokens 32 --parallel 1 4",
    ),
    Part(
        "verify",
        "What it costs to verify guesses, 7B shape",
        "scripts/verify_benchmark.py --device cpu --layers 2 --rows 1 2 4 8 --threads 2 --context 64",
        "scripts/verify_benchmark.py --device cpu --layers 2 --rows 1 4 --threads 2 --context 64 --rounds 2",
    ),
    Part(
        "sparse",
        "Sparse and turbo against exact, a real model with ReLU",
        "bench/sparse.py {relu} --turbo 0.02 --rounds 7",
        "bench/sparse.py {relu} --threads 2 --rounds 1",
    ),
    Part(
        "sparse7b",
        "Sparse against exact, in the shape of a 7B model",
        "bench/sparse.py --shape 7b",
        "bench/sparse.py --shape 7b --threads 2 --rounds 1",
    ),
    Part(
        "screen",
        "The chat's screen while 10,000 tokens stream",
        "scripts/measure_chat.py",
        "scripts/measure_chat.py 2000",
    ),
    Part(
        "download",
        "Pulling a model beside curl",
        "bench/download.py {other} --rounds 5",
        "bench/download.py {model} --rounds 1",
    ),
    Part(
        "newcomer",
        "A fresh machine",
        "bench/newcomer.py",
        "bench/newcomer.py --quick",
    ),
    Part(
        "checks",
        "Tests that rows below name",
        "bench/checks.py",
        "bench/checks.py --quick",
    ),
)
