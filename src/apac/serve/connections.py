"""HTTP connections: bounded in number, and closed when a client keeps the server waiting."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from apac import limits
from apac.serve.guard import REFUSAL, Guard
from apac.serve.refusal import unavailable

DRAIN_SECONDS = 0.5  # for requests on their way, when the server ends
CROWDED = "the server has too many connections; try again."


class Connection(H11Protocol):
    """A connection of a client to a server whose application is a `Guard`."""

    _timer: asyncio.TimerHandle | None = None  # while a header is expected

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        guard = self.config.app
        assert isinstance(guard, Guard)
        excess = len(self.connections) - guard.limits.connections
        if excess > limits.SPARE_CONNECTIONS:
            transport.abort()
            return
        if excess > 0:
            self.app = self._refuse
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            connected = transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * limits.UNREAD_SECONDS))
        self._watch_header()
        if guard.draining():
            self.shutdown()

    def shutdown(self) -> None:
        """Close the connection after the response. A client without a request may have one on its way."""
        if self._is_served:
            super().shutdown()
        else:
            self.loop.call_later(DRAIN_SECONDS, self._close_unless_served)

    def _close_unless_served(self) -> None:
        if not self._is_served:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_header()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the form of every other error."""
        body = json.dumps({"error": "this is not a valid HTTP request."}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REFUSAL] = unavailable(CROWDED)
        await self.config.loaded_app(scope, receive, send)

    def _watch_header(self) -> None:
        """Wait a limited time for a header, from the connection or the first byte after a response."""
        if self._is_served:
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(limits.HEADER_SECONDS, self.transport.close)

    @property
    def _is_served(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
