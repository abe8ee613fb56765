"""The outermost layer: who may call, under which name and from which page; every failure as an error object."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response

from localllm.errors import LocalLLMError

from .errors import APIError, from_library, internal_error, shutting_down
from .options import LOCAL_NAMES
from .stream import ClientGone, JSONAnswer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .service import Service

log = logging.getLogger("localllm.server")
OPEN_PATHS = frozenset(("/", "/health", "/openapi.json"))  # no key needed
METHODS = "GET, POST, OPTIONS"
REQUEST_HEADERS = "Authorization, Content-Type, X-Request-Id"
CLIENT_GONE = 499  # in logs and metrics only


class Gate:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._options = service.options
        self._key = _digest(service.options.api_key or "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, self._cors_headers(Headers(scope=scope)))
        try:
            await self._answer(scope, receive, exchange)
        except ClientGone:
            exchange.status = CLIENT_GONE
            self._service.metrics.cancelled.inc()
        except asyncio.CancelledError:  # a request whose body never came, while the server ends
            if exchange.status or not self._service.draining:
                raise
            await exchange.fail(shutting_down(), scope, receive)
        except APIError as error:
            await exchange.fail(error, scope, receive)
        except LocalLLMError as error:
            log.warning("request %s: %s", exchange.identity, str(error))  # itself it would keep the request alive
            await exchange.fail(from_library(error), scope, receive)
        except HTTPException as error:
            await exchange.fail(_routing_error(error, scope), scope, receive)
        except Exception:
            log.exception("request %s failed", exchange.identity)
            await exchange.fail(internal_error(), scope, receive)
        finally:
            self._service.finished(scope, exchange.identity, exchange.status, exchange.seconds)

    async def _answer(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        headers = Headers(scope=scope)
        scope["request_id"] = exchange.identity
        self._check_host(headers)
        if scope["method"] == "OPTIONS":
            await Response(status_code=204)(scope, receive, exchange.send)
            return
        self._check_origin(scope, headers)
        self._check_key(scope, headers)
        if scope["method"] == "POST" and self._service.draining:
            raise shutting_down()
        await self._app(scope, receive, exchange.send)

    def _check_host(self, headers: Headers) -> None:
        """A web page can point its own name at this computer (DNS rebinding): only known names are answered."""
        if not self._options.is_local:
            return
        host = headers.get("host", "")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if name not in LOCAL_NAMES and name not in self._options.allowed_hosts and name != self._options.host:
            message = "this server answers to localhost only; add other names with --allow-host"
            raise APIError(403, message, kind="permission_error", code="host_not_allowed")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """A page of another origin must not even send a request that does something."""
        origin = headers.get("origin")
        if origin is None or scope["method"] not in ("POST", "PUT", "DELETE") or self._may_call(origin, headers):
            return
        message = "this page's origin may not use the server; allow it with --cors-origin"
        raise APIError(403, message, kind="permission_error", code="origin_not_allowed")

    def _may_call(self, origin: str, headers: Headers) -> bool:
        listed = "*" in self._options.cors_origins or origin in self._options.cors_origins
        return listed or origin in (f"http://{headers.get('host')}", f"https://{headers.get('host')}")

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        if self._options.api_key is None or scope["path"] in OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if not hmac.compare_digest(_digest(given), self._key):
            text = "the API key is wrong" if given else "send the API key: Authorization: Bearer KEY"
            headers_out = {"WWW-Authenticate": "Bearer"}
            raise APIError(401, text, kind="authentication_error", code="invalid_api_key", headers=headers_out)

    def _cors_headers(self, headers: Headers) -> dict[str, str]:
        origin = headers.get("origin")
        if origin is None or not self._options.cors_origins:
            return {}
        if "*" in self._options.cors_origins:
            allowed = {"Access-Control-Allow-Origin": "*"}
        elif origin in self._options.cors_origins:
            allowed = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        else:
            return {"Vary": "Origin"}
        allowed["Access-Control-Expose-Headers"] = "X-Request-Id"
        if headers.get("access-control-request-method"):
            wanted = headers.get("access-control-request-headers")
            allowed["Access-Control-Allow-Methods"] = METHODS
            allowed["Access-Control-Allow-Headers"] = _plain_names(wanted) if wanted else REQUEST_HEADERS
            allowed["Access-Control-Max-Age"] = "600"
        return allowed


class _Exchange:
    """One request's answer on its way out: the headers that every answer has, and whether it began."""

    def __init__(self, scope: Scope, send: Send, headers: dict[str, str]) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        self.identity = given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else f"req_{uuid.uuid4().hex}"
        self.status = 0
        self._send = send
        self._headers = headers | {"X-Request-Id": self.identity, "X-Content-Type-Options": "nosniff"}
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.perf_counter() - self._started

    async def send(self, message: Message) -> None:
        """Pass on, with the headers added."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers[name] = value
        await self._send(message)

    async def fail(self, error: APIError, scope: Scope, receive: Receive) -> None:
        """The error object, unless an answer began (then the connection is closed by leaving it incomplete)."""
        if self.status == 0:
            await JSONAnswer(error.body(), error.status, headers=error.headers)(scope, receive, self.send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _plain_names(header: str) -> str:
    names = [name.strip() for name in header.split(",")]
    return ", ".join(name for name in names if re.fullmatch(r"[A-Za-z0-9-]{1,64}", name))


def _routing_error(error: HTTPException, scope: Scope) -> APIError:
    path = scope["path"][:100]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{scope['method']} {path} is not possible; use {allowed or 'another method'}"
        return APIError(405, message, code="method_not_allowed", headers=error.headers)
    if error.status_code == 404:
        return APIError(404, f"there is nothing at {path}; see /openapi.json", code="not_found")
    return APIError(error.status_code, "the request cannot be answered", code="http_error")
