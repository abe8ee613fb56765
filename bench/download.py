"""How fast a pull is beside curl, from a server on this machine, and what a pull that was killed fetches again.

    python bench/download.py FILE.gguf [--rounds 5] [--json FILE]

The server sends ranges of the file with `sendfile`. Both fetch it in turn; a pull also verifies what it got, as always.
Then a pull is killed (signal 9) once half of the file has been sent, and done again: what was sent twice is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from localllm.store import resolve_model

PULL = """
import sys
import time
from pathlib import Path
import httpx2
from localllm.paths import Paths
from localllm.store import Store
from localllm.store.pulling import pull_into
home = Path(sys.argv[1])
began = time.perf_counter()
pull_into(Store(Paths(home, home, home)), sys.argv[2], name="fetched")
print(time.perf_counter() - began)
"""
PIECE, PAUSE = 64 << 10, 0.001  # bytes at a time and seconds after them, where a pull is to be killed


class FileServer:
    """One file over HTTP/1.1, whole or in ranges; counts the bytes of bodies."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size, self.sent, self.slow = path.stat().st_size, 0, False
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/model.gguf"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                while head := self._request(lines):
                    self._answer(connection, head)
            except OSError:
                return  # a client that was killed

    @staticmethod
    def _request(lines: BinaryIO) -> str:
        head = ""
        for line in iter(lines.readline, b""):
            head += line.decode("latin-1")
            if line in (b"\r\n", b"\n"):
                return head
        return ""

    def _answer(self, connection: socket.socket, head: str) -> None:
        wanted = re.search(r"(?im)^range: *bytes=(\d+)-(\d*)", head)
        first = int(wanted[1]) if wanted else 0
        last = int(wanted[2]) if wanted and wanted[2] else self.size - 1
        lines = ["HTTP/1.1 206 Partial Content" if wanted else "HTTP/1.1 200 OK", 'ETag: "one"', "Accept-Ranges: bytes"]
        lines += [f"Content-Range: bytes {first}-{last}/{self.size}"] if wanted else []
        lines += [f"Content-Length: {last + 1 - first}"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        while first <= last and not head.startswith("HEAD"):
            most = PIECE if self.slow else 1 << 20
            count = os.sendfile(connection.fileno(), self._file.fileno(), first, min(last + 1 - first, most))
            first += count
            if self.slow:
                time.sleep(PAUSE)
            with self._lock:
                self.sent += count


def serve(path: Path) -> None:
    """Be the server of a process: the address on one line, then the bytes sent for every line, which says how fast."""
    server = FileServer(path)
    print(server.url, flush=True)
    for line in sys.stdin:
        server.slow = line.strip() == "slow"
        print(server.sent, flush=True)


class Server:
    """The server in a process of its own."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._line()

    def _line(self) -> str:
        if self.process.stdout is None:
            raise SystemExit("the server has no output")
        return self.process.stdout.readline().strip()

    def sent(self, pace: str = "fast") -> int:
        """Bytes of bodies so far; from now on it is this fast."""
        if self.process.stdin is None:
            raise SystemExit("the server has no input")
        self.process.stdin.write(f"{pace}\n")
        self.process.stdin.flush()
        return int(self._line())


def pulled(home: str, url: str) -> float:
    """Seconds of a pull that ends well, in a process of its own that has imported everything before."""
    command = [sys.executable, "-c", PULL, home, url]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def throughput(server: Server, size: int, rounds: int, folder: Path) -> dict[str, float]:
    """MB/s of curl and of a pull by turns, and the median of the paired ratios."""
    pairs = []
    for turn in range(rounds + 1):
        target = folder / "by-curl"
        began = time.perf_counter()
        subprocess.run(["curl", "-s", "-f", "-o", str(target), server.url], check=True)
        curl = time.perf_counter() - began
        target.unlink()
        with tempfile.TemporaryDirectory(dir=folder) as home:
            own = pulled(home, server.url)
        if turn:
            pairs.append((curl, own))
            print(f"curl {size / curl / 1e6:.0f} MB/s, pull {size / own / 1e6:.0f} MB/s")
    return {
        "curl_mb_s": size / statistics.median(curl for curl, _ in pairs) / 1e6,
        "pull_mb_s": size / statistics.median(own for _, own in pairs) / 1e6,
        "of_curl": statistics.median(curl / own for curl, own in pairs),
    }


def killed(server: Server, size: int, folder: Path) -> dict[str, float]:
    """MB that are sent twice when a pull is killed at half of its file."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        before = server.sent("slow")
        process = subprocess.Popen([sys.executable, "-c", PULL, home, server.url], stdout=subprocess.DEVNULL)
        while server.sent("slow") - before < size // 2 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        server.sent("fast")
        pulled(home, server.url)
        twice = server.sent() - before - size
    print(f"killed at half: {twice / 1e6:.2f} MB were sent twice")
    return {"sent_twice_mb": twice / 1e6}


def main() -> None:
    """Measure and print, or be the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path = resolve_model(options.model).path
    if options.serve:
        serve(path)
        return
    server, size = Server(path), path.stat().st_size
    try:
        with tempfile.TemporaryDirectory(prefix="localllm-download-") as folder:
            facts = throughput(server, size, options.rounds, Path(folder)) | killed(server, size, Path(folder))
    finally:
        server.process.terminate()
        server.process.wait()
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
