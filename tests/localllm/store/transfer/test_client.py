"""HTTP rules: redirects, credentials, certificates, proxies, retries, and no secret in any message."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from localllm.errors import DownloadError
from localllm.store.transfer import Client, NetworkOptions
from localllm.store.transfer.client import Credentials, HttpStatusError, origin_of
from localllm.store.transfer.limiter import RateLimiter
from localllm.store.transfer.retry import RetryPolicy, TransientError, parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.localllm.store.conftest import FaultServer


def get(network: NetworkOptions, url: str, credentials: Credentials | None = None) -> bytes:
    with Client(network) as client:
        return client.get(url, limit=1000, credentials=credentials)[0]


def test_redirects_are_followed_and_endless_ones_are_not(server: FaultServer, network: NetworkOptions) -> None:
    server.add("/c", b"here")
    server.fail_always("/a", status=302, headers={"Location": "/b"})
    server.fail_always("/b", status=307, headers={"Location": f"{server.url}/c"})
    server.fail_always("/loop", status=301, headers={"Location": "/loop"})
    assert get(network, f"{server.url}/a") == b"here"
    with pytest.raises(DownloadError, match="redirects"):
        get(network, f"{server.url}/loop")
    server.fail_always("/odd", status=302, headers={"Location": "ftp://elsewhere/x"})
    with pytest.raises(DownloadError, match="no web address"):
        get(network, f"{server.url}/odd")


def test_secrets_of_a_url_are_not_shown(
    server: FaultServer, network: NetworkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.fail_always("/x?key=hunter2", status=403)
    with pytest.raises(HttpStatusError) as caught:
        get(network, f"{server.url}/x?key=hunter2", Credentials(origin_of(server.url), "Bearer hunter3"))
    assert "hunter" not in str(caught.value)
    assert "hunter" not in repr(Credentials("https://host:443", "Bearer hunter3"))
    assert "hunter3" not in caplog.text


def test_a_long_answer_is_cut_off(server: FaultServer, network: NetworkOptions) -> None:
    server.add("/long", bytes(100_000))
    with pytest.raises(DownloadError, match="longer than 1000 bytes"):
        get(network, f"{server.url}/long")


def test_a_host_that_does_not_exist_and_a_port_nobody_listens_on(network: NetworkOptions) -> None:
    for url in ("http://127.0.0.1:9/x", "http://no-such-host.invalid/x"):
        with pytest.raises(DownloadError, match="4 tries"):
            get(network, url)
    for url in ("http://127.0.0.1:99999/x", "nonsense", "http://"):
        with pytest.raises(DownloadError):
            get(network, url)


@pytest.fixture
def secure_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An https server with a certificate of its own: (address, certificate)."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names]
    subprocess.run(command, capture_output=True, check=True)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"secure")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://localhost:{server.server_port}/x", certificate
    server.shutdown()
    server.server_close()


def test_an_unknown_certificate_is_refused_and_ssl_cert_file_trusts_it(
    secure_server: tuple[str, Path], network: NetworkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate = secure_server
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(DownloadError, match="certificate is not trusted") as caught:
        get(network, url)
    assert "SSL_CERT_FILE" in str(caught.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert get(network, url) == b"secure"
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent.pem")
    with pytest.raises(DownloadError, match="network settings"):
        get(network, url)


def test_proxies_are_used_for_http_and_passed_by_for_no_proxy(
    server: FaultServer, network: NetworkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.fail_always("http://models.invalid/file", status=200, body=b"by proxy")
    assert get(network, "http://models.invalid/file") == b"by proxy"
    server.add("/direct", b"direct")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert get(network, f"{server.url}/direct") == b"direct"
    assert server.requests[-1].path == "/direct"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), (" 0 ", 0.0), ("Mon, 30 Nov 2026 12:00:10 GMT", 10.0), ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0)],
)
def test_retry_after(value: str, seconds: float) -> None:
    assert parse_retry_after(value, datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)) == seconds


@pytest.mark.parametrize("value", [None, "", "soon", "-5", "1e9", "²"])
def test_an_unreadable_retry_after_is_passed_over(value: str | None) -> None:
    assert parse_retry_after(value) is None


def test_backoff_grows_to_its_ceiling_and_a_server_may_ask_for_more() -> None:
    policy = RetryPolicy(attempts=9, base=1.0, ceiling=8.0)
    for failures in range(1, 9):
        longest = min(8.0, 2.0 ** (failures - 1))
        assert longest / 2 <= policy.delay(failures, None) <= longest
    assert policy.delay(1, 20.0) == 20.0
    assert policy.delay(1, 1e9) == 300.0
    with Client(NetworkOptions(retry=policy)) as client, pytest.raises(DownloadError, match="9 tries"):
        client.delay_or_give_up(9, TransientError("busy"), "file")


def test_the_limiter_lets_the_rate_through() -> None:
    now = [100.0]
    limiter = RateLimiter(1000.0, lambda: now[0])
    waited = 0.0
    for _ in range(50):
        delay = limiter.delay(100)
        waited += delay
        now[0] += delay
    assert waited == pytest.approx(5.0 - 0.25, abs=0.01)
    now[0] += 100
    assert limiter.delay(200) == pytest.approx(0.0)
    assert RateLimiter(None).delay(10**9) == 0.0
