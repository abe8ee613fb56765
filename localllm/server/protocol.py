"""HTTP/1.1 as uvicorn speaks it; what goes wrong before a request is whole is an error object too, and heads may not
drip."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import APIError
from .stream import encode_json

HEAD_SECONDS = 30.0  # from the connection, or a request's first byte, until its last header


class Protocol(H11Protocol):
    """One connection."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It left."""
        self._cancel_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        if self._head is None and self.conn.their_state is h11.IDLE:
            self._await_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(APIError(400, "this is not a request of HTTP/1.1", code="invalid_http"))

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _head_is_late(self) -> None:
        self._head = None
        message = f"the headers did not arrive within {HEAD_SECONDS:g} seconds"
        self._refuse(APIError(408, message, code="head_timeout"))

    def _refuse(self, error: APIError) -> None:
        """The error object, unless an answer began, and the end of the connection."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encode_json(error.body())
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            reason = HTTPStatus(error.status).phrase.encode()
            events = (
                h11.Response(status_code=error.status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()
