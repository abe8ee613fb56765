"""A web server that misbehaves on demand, a small valid model, and transfer options without long waits."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from localllm.gguf_io import QuantType
from localllm.gguf_io.writer import write_gguf
from localllm.paths import Paths
from localllm.store import NetworkOptions, Store
from localllm.store.transfer.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """What a server does wrong in one answer; offsets are bytes of the file, counts are bytes of the body."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    stall_after: int | None = None
    flip_at: int | None = None
    ignore_range: bool = False
    shift_range: int = 0
    longest_range: int | None = None
    lie_length: int = 0
    no_length: bool = False
    etag: str | None = None
    slow: float = 0.0


@dataclass
class Request:
    """A request as it came in; `sent` counts the bytes of the body."""

    path: str
    headers: dict[str, str]
    sent: int = 0

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte asked for."""
        text = self.headers.get("range")
        if text is None:
            return None
        first, _, last = text.removeprefix("bytes=").partition("-")
        return int(first), int(last)


class FaultServer:
    """Serves `files`; `once[path]` faults are used up one a request (probes excepted), `always[path]` stay."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str | None] = {}
        self.types: dict[str, str] = {}
        self.once: defaultdict[str, list[Fault]] = defaultdict(list)
        self.always: dict[str, Fault] = {}
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """Address without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, path: str, content: bytes, etag: str | None = None) -> str:
        """Serve `content`; returns the URL. Without `etag`, it is made from the content; "" sends none."""
        self.files[path] = content
        self.etags[path] = f'"{hashlib.md5(content).hexdigest()}"' if etag is None else (etag or None)
        return self.url + path

    def fail(self, path: str, times: int = 1, **wrong: Any) -> None:
        """The next `times` answers for `path` go wrong (fields of Fault)."""
        self.once[path] += [Fault(**wrong)] * times

    def fail_always(self, path: str, **wrong: Any) -> None:
        """Every answer for `path` goes wrong, probes too."""
        self.always[path] = Fault(**wrong)

    @property
    def sent_bytes(self) -> int:
        """Bytes of bodies that were sent, probes not counted."""
        return sum(request.sent for request in list(self.requests) if request.range != (0, 0))

    def bodies(self, path: str) -> list[Request]:
        """Requests for the content of `path`, without probes."""
        return [request for request in self.requests if request.path == path and request.range != (0, 0)]

    def close(self) -> None:
        """Stop serving."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

            def do_GET(self) -> None:
                request = Request(self.path, {key.lower(): value for key, value in self.headers.items()})
                with outer.lock:
                    outer.requests.append(request)
                    faults = outer.once.get(self.path)
                    fault = (
                        faults.pop(0) if faults and request.range != (0, 0) else outer.always.get(self.path, Fault())
                    )
                try:
                    self.answer(request, fault)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def answer(self, request: Request, fault: Fault) -> None:
                content = outer.files.get(self.path.partition("?")[0])
                if fault.status is not None or content is None:
                    self.send_response(fault.status or 404)
                    for key, value in {"Content-Length": str(len(fault.body)), **fault.headers}.items():
                        self.send_header(key, value)
                    self.end_headers()
                    self.wfile.write(fault.body)
                    return
                self.send_file(request, fault, content)

            def send_file(self, request: Request, fault: Fault, content: bytes) -> None:
                path = self.path.partition("?")[0]
                etag = fault.etag or outer.etags[path]
                wanted = None if fault.ignore_range else request.range
                if_range = request.headers.get("if-range")
                if if_range is not None and if_range != etag:
                    wanted = None
                first, last = wanted or (0, len(content) - 1)
                if wanted is not None and first >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if wanted is not None and fault.longest_range is not None:
                    last = min(last, first + fault.longest_range - 1)
                first += fault.shift_range if wanted is not None else 0
                body = bytearray(content[first : last + 1])
                if fault.flip_at is not None and first <= fault.flip_at <= last:
                    body[fault.flip_at - first] ^= 0xFF
                self.send_response(200 if wanted is None else 206)
                if wanted is not None:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                if fault.no_length:
                    self.send_header("Connection", "close")
                else:
                    self.send_header("Content-Length", str(len(body) + fault.lie_length))
                if etag is not None:
                    self.send_header("ETag", etag)
                self.send_header("Content-Type", outer.types.get(path, "application/octet-stream"))
                for key, value in fault.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.send_body(request, fault, bytes(body))

            def send_body(self, request: Request, fault: Fault, body: bytes) -> None:
                step = 64 << 10
                for start in range(0, len(body), step):
                    piece = body[start : start + step]
                    for limit in (fault.cut_after, fault.stall_after):
                        if limit is not None and start + len(piece) > limit:
                            piece = piece[: max(0, limit - start)]
                    self.wfile.write(piece)
                    request.sent += len(piece)
                    if fault.slow:
                        time.sleep(fault.slow)
                    if fault.stall_after is not None and request.sent >= fault.stall_after:
                        outer.released.wait(60)
                    if len(piece) < min(step, len(body) - start):
                        break
                if fault.cut_after is not None or fault.no_length or fault.lie_length or fault.stall_after is not None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)

        return Handler


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A running server of this test."""
    running = FaultServer()
    yield running
    running.close()


@pytest.fixture
def network() -> NetworkOptions:
    """Options that retry at once and give up soon."""
    return NetworkOptions(
        read_timeout=3.0, connect_timeout=10.0, retry=RetryPolicy(attempts=4, base=0.001, ceiling=0.01)
    )


@pytest.fixture
def store(private_home: Path) -> Store:
    """The store of this test's private home."""
    return Store(Paths.from_environment())


@pytest.fixture(scope="session")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small valid GGUF of about 3 MB."""
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    values = np.random.default_rng(1).standard_normal((768, 1024), dtype=np.float32)
    write_gguf(
        path,
        {"general.architecture": "llama", "general.name": "Small"},
        {"token_embd.weight": (QuantType.F32, values.shape, values)},
    )
    return path.read_bytes()


@pytest.fixture(scope="session")
def big_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A valid GGUF of about 12 MB."""
    path = tmp_path_factory.mktemp("model") / "big.gguf"
    values = np.random.default_rng(2).standard_normal((3072, 1024), dtype=np.float32)
    write_gguf(
        path,
        {"general.architecture": "llama", "general.name": "Big"},
        {"token_embd.weight": (QuantType.F32, values.shape, values)},
    )
    return path.read_bytes()


@pytest.fixture(scope="session")
def noise() -> bytes:
    """4.3 MB that do not repeat, not a whole number of blocks."""
    return random.Random(7).randbytes((4 << 20) + 300_001)
