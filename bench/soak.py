"""Use everything at once for a long time, and see whether memory, threads and file handles stay flat.

    python bench/soak.py MODEL OTHER [--minutes 60] [--seed 1] [--json docs/benchmarks/soak.json]

Two processes: `localllm serve` with both models and room for one at a time, so that it changes models all the time,
with three clients that stream, hang up (before the first byte, in the prompt, in the text), ask for several answers
and send nonsense; and this one, in which a person chats, stops answers, asks again, opens old chats and changes the
model. Every ten seconds the resident memory, threads and file handles of both are written down. An answer of the server
with a status of 500 or more (503 excepted: busy, try again) and any exception in the chat ends the run with an error.

Flat, as the run judges itself: models come and go, so the level of ten minutes is the 90th percentile of the samples in
them, which is what a process needs with a model in it. After ten minutes of warming up no line through the levels of
private memory (Theil and Sen's: the median of the slopes between any two) rises by more than 1% an hour, and in the
last ten minutes there are never more threads or file handles than in some ten minutes before. Resident memory is shown
beside it: pages of a mapped file are in it, and belong to the system. Kernels and repacked weights are kept in a folder
of the run's own, which other programs do not touch.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localllm.chat.desk import ChatDesk

EVERY = 10.0  # seconds between two looks
SPAN = 600.0  # seconds of a level; the first of them is for warming up
MOST_PERCENT = 1.0  # by which memory may rise in an hour
CLIENTS = 3
ROOM = 4  # of the larger file's size: one model with its cache, not two
TEXT = "the sea a small boat and then why does light bend in water tell me more about glass list three"
NONSENSE = (b"", b"{", b"[]", b'{"model": 3}', b'{"model": "nobody", "messages": []}', b"\xff\xfe", b"[" * 5000)


class Tally:
    """What was done, counted from several threads, and the first thing that went wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.failure: str | None = None
        self.ended = threading.Event()

    def add(self, what: str) -> None:
        """Count one."""
        with self._lock:
            self.counts[what] += 1

    def fail(self, what: str) -> None:
        """End the run; the first reason is kept."""
        with self._lock:
            self.failure = self.failure or what
        self.ended.set()


def question(choice: random.Random, length: int) -> str:
    """Words that do not repeat a prefix for long."""
    words = TEXT.split()
    return " ".join(choice.choice(words) for _ in range(length))


def chat(desk: ChatDesk, models: list[str], choice: random.Random, tally: Tally) -> None:
    """A person at the chat, until the end."""
    while not tally.ended.is_set():
        what = choice.choices(["send", "stop", "again", "new", "open", "switch", "delete"], [40, 20, 10, 10, 10, 5, 5])[
            0
        ]
        chats = desk.store.conversations(limit=20)
        if what == "new":
            desk.new()
        elif what == "open" and chats:
            desk.open(choice.choice(chats).id)
        elif what == "switch":
            desk.use(next(name for name in models if name != desk.model))
        elif what == "delete" and len(chats) > 10:
            desk.delete(chats[-1].id)
            desk.store.purge()
        elif what in ("send", "stop", "again"):
            desk.load(lambda _: None)
            asks_again = what == "again" and bool(desk.messages())
            events = desk.regenerate() if asks_again else desk.send(question(choice, choice.randint(3, 200)))
            end = choice.randint(1, 10) if what == "stop" else -1
            for number, _ in enumerate(events):
                if number == end or tally.ended.is_set():
                    desk.stop()
        else:
            continue
        tally.add(f"chat: {what}")


def client(url: str, models: list[str], choice: random.Random, tally: Tally) -> None:
    """Somebody else's program, until the end."""
    import httpx2

    with httpx2.Client(base_url=url, timeout=300) as http:
        while not tally.ended.is_set():
            what = choice.choices(["whole", "several", "hang up", "vanish", "nonsense"], [30, 10, 30, 20, 10])[0]
            body: dict[str, Any] = {
                "model": choice.choice(models),
                "messages": [{"role": "user", "content": question(choice, choice.randint(3, 300))}],
                "max_tokens": choice.randint(1, 48),
                "seed": choice.randint(0, 1000),
                "stream": what != "several",
                "n": 3 if what == "several" else 1,
            }
            try:
                if what == "nonsense":
                    answer = http.post("/v1/chat/completions", content=choice.choice(NONSENSE))
                    status = answer.status_code
                elif what == "vanish":
                    with http.stream("POST", "/v1/chat/completions", json=body, timeout=choice.random()) as answer:
                        status = answer.status_code
                else:
                    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                        status = answer.status_code
                        end = choice.randint(0, 10) if what == "hang up" else -1
                        for number, _ in enumerate(answer.iter_bytes()):
                            if number == end:
                                break
            except httpx2.TimeoutException:
                status = 0
                if what != "vanish":
                    tally.fail(f"no answer in 300 s: {what}")
            except httpx2.HTTPError as error:
                status = 0
                if not tally.ended.is_set():
                    tally.fail(f"{what}: {type(error).__name__}: {error}")
            tally.add(f"server: {what}, {status or 'gone'}")
            if status == 200:
                tally.add(f"served by {body['model']}")
            if status >= 500 and status != 503:
                tally.fail(f"{what}: status {status}")


def guarded(tally: Tally, work: Any, *arguments: Any) -> threading.Thread:
    """A thread whose exception ends the run."""

    def body() -> None:
        try:
            work(*arguments)
        except Exception as error:
            tally.fail(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=body, name=work.__name__)
    thread.start()
    return thread


def look(processes: dict[str, Any], since: float) -> dict[str, Any]:
    """Memory, threads and file handles of both processes."""
    sample: dict[str, Any] = {"seconds": round(time.monotonic() - since, 1)}
    for name, process in processes.items():
        with process.oneshot():
            memory = process.memory_info()
            sample[name] = {
                "rss_mb": round(memory.rss / 1e6, 1),
                "private_mb": round((memory.rss - memory.shared) / 1e6, 1),
                "threads": process.num_threads(),
                "handles": process.num_fds(),
            }
    return sample


def summary(samples: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Medians and maxima of the second and of the last quarter: the first one warms up."""
    quarter = max(len(samples) // 4, 1)
    parts = {"second": samples[quarter : 2 * quarter] or samples, "last": samples[-quarter:]}
    return {
        f"{part}_quarter": {
            key: {
                "median": statistics.median(s[name][key] for s in chosen),
                "most": max(s[name][key] for s in chosen),
            }
            for key in samples[0][name]
        }
        for part, chosen in parts.items()
    }


def spans(samples: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Samples of ten minutes each, without the first ten and without an unfinished rest."""
    count = int(samples[-1]["seconds"] // SPAN)
    return [[s for s in samples if s["seconds"] // SPAN == number] for number in range(1, count)]


def rise(levels: list[float]) -> float:
    """Percent of the first level in an hour."""
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(levels), 2)]
    return 100 * statistics.median(slopes) / levels[0] * 3600 / SPAN


def judged(samples: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Levels of a process, how they rise, and whether that is flat; nothing of a run of less than half an hour."""
    parts = spans(samples) if samples else []
    if len(parts) < 2:
        return {}
    found: dict[str, Any] = {"flat": True}
    for key in ("rss_mb", "private_mb"):
        levels = [statistics.quantiles((s[name][key] for s in part), n=10)[-1] for part in parts]
        found[key] = {"levels": [round(level, 1) for level in levels], "percent_an_hour": round(rise(levels), 2)}
        found["flat"] &= key != "private_mb" or rise(levels) <= MOST_PERCENT
    for key in ("threads", "handles"):
        found[key] = [max(s[name][key] for s in part) for part in parts]
        found["flat"] &= found[key][-1] <= max(found[key][:-1])
    return found


def main() -> None:
    """Run, print a line a minute, write JSON, exit 1 when something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, help="two names or files")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="localllm-soak-") as folder:
        facts = run(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in facts.items() if key != "samples"}, indent=1))
    rises = any(not found["flat"] for found in facts["judged"].values() if found)
    raise SystemExit(1 if facts["failure"] or rises else 0)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All of it, in a folder of its own; returns what is to be written."""
    import psutil

    from localllm.chat.desk import ChatDesk
    from localllm.chat.models import LocalModels
    from localllm.conversations import ConversationStore
    from localllm.paths import Paths
    from localllm.spare_memory import use_one_arena
    from localllm.store import Store, resolve_model

    use_one_arena()  # as `localllm chat` does
    os.environ["LOCALLLM_CACHE_DIR"] = str(folder / "cache")
    paths = Paths(folder, folder, folder / "cache")
    files = [resolve_model(name).path for name in options.models]
    common = ["--threads", str(options.threads), "--context", "1024", "--parallel", "4"]
    room = ROOM * max(file.stat().st_size for file in files)
    command = [sys.executable, "-m", "localllm", "serve", *map(str, files), "--port", "0", "--memory", str(room)]
    log = (folder / "server.log").open("w+", encoding="utf-8")
    server = subprocess.Popen([*command, *common], stderr=log, stdout=log)
    store = ConversationStore(paths.chats, cache_bytes=64 * 2**20)
    tally, samples = Tally(), []
    keywords = {"threads": options.threads, "context": 1024, "device": "cpu"}
    desk = ChatDesk(
        store, LocalModels(Store(paths), keywords), str(files[0]), sampling={"max_tokens": 24, "temperature": 0.8}
    )
    started, begun = time.monotonic(), datetime.datetime.now().isoformat(timespec="seconds")
    threads = []
    try:
        url = wait_for_address(server, folder / "server.log")
        names = served_names(url)
        threads.append(guarded(tally, chat, desk, [str(file) for file in files], random.Random(options.seed), tally))
        for number in range(CLIENTS):
            choice = random.Random(f"{options.seed} {number}")
            threads.append(guarded(tally, client, url, names, choice, tally))
        watched = {"server": psutil.Process(server.pid), "chat": psutil.Process()}
        while not tally.ended.wait(EVERY) and time.monotonic() - started < 60 * options.minutes:
            if server.poll() is not None:
                tally.fail(f"the server ended with {server.returncode}")
                break
            samples.append(look(watched, started))
            if len(samples) % 6 == 0:
                print(json.dumps(samples[-1]), sum(tally.counts.values()), flush=True)
    finally:
        tally.ended.set()
        desk.stop()
        for thread in threads:
            thread.join(120)
        desk.backend.close()
        store.close()
        server.terminate()
        code = server.wait(120)
        log.close()
    if tally.failure is None and code:
        tally.failure = f"the server ended with {code}"
    if tally.failure:
        print((folder / "server.log").read_text(encoding="utf-8")[-3000:], file=sys.stderr)
    return {
        "begun": begun,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "models": [file.name for file in files],
        "nice": os.nice(0),
        "failure": tally.failure,
        "done": dict(sorted(tally.counts.items())),
        "server": summary(samples, "server") if samples else None,
        "chat": summary(samples, "chat") if samples else None,
        "judged": {name: judged(samples, name) for name in ("server", "chat")},
        "samples": samples,
    }


def wait_for_address(server: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the server says it listens on."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and server.poll() is None:
        for word in log.read_text(encoding="utf-8").split():
            if word.startswith("http://"):
                return word
        time.sleep(0.1)
    raise SystemExit(f"the server does not listen:\n{log.read_text(encoding='utf-8')}")


def served_names(url: str) -> list[str]:
    """Names under which the server has its models."""
    import httpx2

    return [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]


if __name__ == "__main__":
    main()
