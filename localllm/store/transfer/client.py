"""HTTP for the store: redirects that never carry credentials to another host, clear errors, retries, offline."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from localllm.errors import DownloadError

from ..text import printable, shown_url
from .retry import TRANSIENT_STATUS, RetryPolicy, TransientError, parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx2

MAX_REDIRECTS = 10
REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How to reach servers. `bytes_per_second` None: no limit. Times in seconds.

    Proxies (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) and certificates (the system's, SSL_CERT_FILE, SSL_CERT_DIR)
    are taken from the environment.
    """

    offline: bool = False
    connections: int = 4
    bytes_per_second: float | None = None
    connect_timeout: float = 15.0
    read_timeout: float = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hub_endpoint: str = "https://huggingface.co"
    hub_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """An Authorization header for one origin (scheme://host:port) and no other."""

    origin: str
    authorization: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file on a server. `size_bytes` and `sha256` are what it must have, where they are known beforehand."""

    url: str
    name: str
    size_bytes: int | None = None
    sha256: str | None = None
    credentials: Credentials | None = None


class HttpStatusError(DownloadError):
    """The server refused for good; `status` is the HTTP status and `code` the hub's own error code."""

    def __init__(self, message: str, status: int, code: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


def origin_of(url: str) -> str:
    """scheme://host:port with the default port filled in."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise DownloadError(f"this is not a URL: {shown_url(url)} ({error})") from error
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port or (443 if parts.scheme == 'https' else 80)}"


class Client:
    """A connection pool with the store's rules. Usable from several threads."""

    def __init__(self, options: NetworkOptions | None = None) -> None:
        self.options = options or NetworkOptions()
        self._http: httpx2.Client | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        if self._http is not None:
            self._http.close()
            self._http = None

    @contextmanager
    def stream(
        self, url: str, headers: Mapping[str, str] | None = None, credentials: Credentials | None = None
    ) -> Iterator[httpx2.Response]:
        """GET `url`, follow redirects, and yield the response (status below 300) with its body unread.

        `response.extensions["first_headers"]` holds the headers of the first answer, before redirects.
        Raises TransientError for what may pass, HttpStatusError and DownloadError for what will not.
        """
        import httpx2

        http = self._connected()
        first_headers: httpx2.Headers | None = None
        try:
            for _ in range(MAX_REDIRECTS + 1):
                request = http.build_request("GET", url, headers=_headers_for(url, headers or {}, credentials))
                response = http.send(request, stream=True)
                try:
                    first_headers = response.headers if first_headers is None else first_headers
                    if response.status_code in REDIRECT_STATUS and "location" in response.headers:
                        url = _redirected(url, response.headers["location"])
                        continue
                    _check_status(response)
                    response.extensions["first_headers"] = first_headers
                    yield response
                    return
                finally:
                    response.close()
        except httpx2.TimeoutException as error:
            kind = "connect" if isinstance(error, httpx2.ConnectTimeout) else "answer"
            raise TransientError(f"{_host(url)} did not {kind} in time") from error
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError) as error:
            raise DownloadError(f"this URL cannot be fetched: {shown_url(url)}: {printable(str(error))}") from error
        except httpx2.TransportError as error:
            raise _transport_error(url, error) from error
        raise DownloadError(f"{shown_url(url)}: more than {MAX_REDIRECTS} redirects")

    def get(
        self,
        url: str,
        *,
        limit: int,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        on_retry: Callable[[str, float], None] | None = None,
    ) -> tuple[bytes, httpx2.Headers]:
        """The whole body (at most `limit` bytes, else DownloadError) and headers of a small page, with retries."""
        failures = 0
        while True:
            try:
                with self.stream(url, headers, credentials) as response:
                    body = bytearray()
                    for piece in response.iter_bytes():
                        body += piece
                        if len(body) > limit:
                            raise DownloadError(f"{shown_url(url)}: the answer is longer than {limit} bytes")
                    return bytes(body), response.headers
            except TransientError as error:
                failures += 1
                wait = self.delay_or_give_up(failures, error, shown_url(url))
                if on_retry is not None:
                    on_retry(error.reason, wait)
                time.sleep(wait)

    def delay_or_give_up(self, failures: int, error: TransientError, what: str) -> float:
        """Seconds to wait after the `failures`-th failure in a row; DownloadError when there were enough."""
        policy = self.options.retry
        if failures >= policy.attempts:
            raise DownloadError(
                f"{what}: {error.reason} ({failures} tries)",
                hint="what was fetched so far is kept; run the same command again to go on",
            ) from error
        return policy.delay(failures, error.retry_after)

    def _connected(self) -> httpx2.Client:
        if self.options.offline:
            raise DownloadError(
                "offline: nothing can be fetched",
                hint="unset LOCALLLM_OFFLINE (or HF_HUB_OFFLINE), drop --offline, or: localllm config unset offline",
            )
        if self._http is None:
            import httpx2

            options = self.options
            try:
                self._http = httpx2.Client(
                    timeout=httpx2.Timeout(options.read_timeout, connect=options.connect_timeout, pool=None),
                    limits=httpx2.Limits(max_connections=options.connections + 2),
                    headers={"User-Agent": "localllm", "Accept-Encoding": "identity"},
                )
            except (OSError, ValueError) as error:
                raise DownloadError(
                    f"the network settings cannot be used: {printable(str(error))}",
                    hint="check SSL_CERT_FILE, SSL_CERT_DIR, HTTP_PROXY, HTTPS_PROXY and NO_PROXY",
                ) from error
        return self._http


def _headers_for(url: str, headers: Mapping[str, str], credentials: Credentials | None) -> dict[str, str]:
    sent = dict(headers)
    if credentials is not None and credentials.origin == origin_of(url):
        sent["Authorization"] = credentials.authorization
    return sent


def _redirected(url: str, location: str) -> str:
    target = urljoin(url, location)
    if urlsplit(target).scheme not in ("http", "https"):
        raise DownloadError(f"{shown_url(url)} redirects to something that is no web address: {shown_url(target)}")
    if urlsplit(url).scheme == "https" and urlsplit(target).scheme == "http":
        raise DownloadError(f"{shown_url(url)} redirects from https to plain http ({_host(target)}): refused")
    return target


def _host(url: str) -> str:
    return printable(urlsplit(url).hostname or "the server")


def _check_status(response: httpx2.Response) -> None:
    status = response.status_code
    if status < 300:
        return
    url = str(response.request.url)
    if status in TRANSIENT_STATUS:
        wait = parse_retry_after(response.headers.get("retry-after"))
        raise TransientError(f"{_host(url)} answered {status} {printable(response.reason_phrase, 60)}".rstrip(), wait)
    texts = {
        401: "needs a login",
        403: "refuses access",
        404: "has no such file",
        407: "is behind a proxy that needs a login",
        410: "no longer has this file",
        416: "says the range is outside the file",
    }
    text = texts.get(status, f"answered {status} {printable(response.reason_phrase, 60)}".rstrip())
    code = response.headers.get("x-error-code")
    raise HttpStatusError(f"{_host(url)} {text}: {shown_url(url)} (HTTP {status})", status, code)


def _transport_error(url: str, error: Exception) -> Exception:
    import ssl

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DownloadError(
                f"{_host(url)}: its certificate is not trusted: {printable(cause.verify_message or str(cause))}",
                hint="behind a company proxy, point SSL_CERT_FILE to the company's certificate bundle",
            )
        cause = cause.__cause__ or cause.__context__
    reason = printable(str(error)) or type(error).__name__
    return TransientError(f"{_host(url)}: {reason}")
