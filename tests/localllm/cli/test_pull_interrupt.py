"""Ctrl-C in the middle of a pull: exit code 130, no traceback, and the next pull goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 64 << 20


@pytest.fixture
def slow_server() -> Iterator[str]:
    """A server that sends three megabytes and then nothing more."""
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{SIZE}")
            self.send_header("Content-Length", str(int(last) - int(first) + 1))
            self.send_header("ETag", '"one"')
            self.end_headers()
            self.wfile.write(bytes(min(int(last) - int(first) + 1, 3 << 20)))
            if last != "0":
                stopped.wait(60)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/model.gguf"
    stopped.set()
    server.shutdown()
    server.server_close()


def _listen() -> None:
    """A shell's background jobs, and so their children, do not hear interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(os.name == "nt", reason="signals differ there")
def test_an_interrupt_ends_at_once_and_keeps_what_was_fetched(slow_server: str, private_home: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-m", "localllm", "pull", slow_server, "--json"],
        env={**os.environ, "PYTHONPATH": str(root), "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_listen,
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if '"file_progress"' in line and '"done_bytes": 0' not in line:
                break
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
    (partial,) = (private_home / "models" / "partial").iterdir()
    journal = (partial / "journal").read_bytes()
    assert len(journal.partition(b"\n")[2]) >= 12
