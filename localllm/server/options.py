"""How a server behaves towards its clients."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from localllm.errors import ConfigurationError

from .body import BodyLimits

LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """`api_key`: what clients must send as a bearer token. `cors_origins`: web pages that may call from a browser.

    `allowed_hosts`: further names by which clients may call a server that listens on this computer only; one that
    listens on other addresses takes any. `drain_seconds`: how long running answers may take after SIGTERM.
    `log_prompts` writes prompts into the log. `most_waiting`: requests at a time before 503.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = field(default=None, repr=False)
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    body: BodyLimits = field(default_factory=BodyLimits)
    drain_seconds: float = 600.0
    log_prompts: bool = False
    most_waiting: int = 1024

    def __post_init__(self) -> None:
        for origin in self.cors_origins:
            if origin == "*" and self.api_key is None:
                raise ConfigurationError(
                    "--cors-origin '*' would let every web page use this server",
                    hint="Name the pages (https://page.example), or set an API key too.",
                )
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise ConfigurationError(f"--cors-origin {origin!r}: an origin looks like https://page.example")
        if self.api_key is not None and not self.api_key.isascii():
            raise ConfigurationError("the API key must be plain ASCII, as HTTP headers are")

    @property
    def is_local(self) -> bool:
        """Whether only this computer can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def warning(self) -> str | None:
        """What the person who starts the server must know."""
        if self.is_local or self.api_key is not None:
            return None
        return (
            f"anyone who can reach {self.host}:{self.port} can use this server: set an API key "
            "(--api-key or LOCALLLM_API_KEY) or listen on 127.0.0.1"
        )
