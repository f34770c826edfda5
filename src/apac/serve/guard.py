"""What stands before every route: the token, limits on the body, headers, the log and the counts."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apac.serve.limits import Limits
from apac.serve.metrics import Metrics
from apac.serve.refusal import Refusal, unavailable

# The page asks for the token itself, and an orchestrator has none.
OPEN_PATHS = ("/", "/v2/health/live", "/v2/health/ready")
CLOSING = (408, 413)  # statuses after which the rest of the body is not read
OPEN_FOLDER = "/static/"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
RECORD = "apac.record"  # of the scope: what the log line says beyond the guard's own knowledge
CLIENT_LEFT = 499  # as nginx logs it; the client does not see it
ALLOWED_SITES = (b"same-origin", b"none")  # of Sec-Fetch-Site: this server's page, and its user; programs send nothing
REFUSAL = "apac.refusal"  # of the scope: why the request is refused unread


class ClientLeft(Exception):
    """The client closed the connection before it had sent its request."""


@dataclass
class Guard:
    """ASGI middleware around all routes."""

    app: ASGIApp
    limits: Limits
    metrics: Metrics
    token: bytes | None = None
    draining: Callable[[], bool] = lambda: False
    buffered: int = field(default=0, init=False)  # bytes of the bodies of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, size, is_complete = time.perf_counter(), 0, 0, False
        record: dict[str, Any] = {}
        scope[RECORD] = record

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                closes = self.draining() or status in CLOSING or REFUSAL in scope
                extra = HEADERS | ({"connection": "close"} if closes else {})
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in extra.items() if name.encode() not in present),
                ]
            await send(message)
            is_complete |= message["type"] == "http.response.body" and not message.get("more_body", False)

        async def receive_or_leave() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not is_complete:
                record["left"] = True
            return message

        try:
            try:
                self._check_headers(scope)
                body = await self._read(receive_or_leave)
                size = len(body)
                await self.app(scope, _replayed(body, receive_or_leave), send_with_headers)
            except Refusal as refusal:
                await response(refusal)(scope, receive, send_with_headers)
        except ClientLeft:
            pass
        finally:
            self.buffered -= size
            status = CLIENT_LEFT if record.pop("left", False) else status
            seconds = time.perf_counter() - started
            self.metrics.request(getattr(scope.get("route"), "path", "other"), status, seconds)
            self._log(scope, status, seconds, size, record)

    def _check_headers(self, scope: Scope) -> None:
        if REFUSAL in scope:
            raise scope[REFUSAL]
        headers = dict(scope["headers"])
        path = scope["path"]
        if self.token is None:
            # Only this machine may ask, and no web page that gave its own name the address of this machine.
            host = headers.get(b"host", b"").decode("latin-1")
            if host.rpartition(":")[0] not in LOCAL_NAMES and host not in LOCAL_NAMES:
                raise Refusal(421, "this server answers only at localhost; it has no token for other names.")
            if headers.get(b"sec-fetch-site", b"none") not in ALLOWED_SITES and scope["method"] != "GET":
                raise Refusal(403, "pages of other sites may not use this server.")
        elif path not in OPEN_PATHS and not path.startswith(OPEN_FOLDER):
            scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(sent.strip(), self.token):
                raise Refusal(401, "send the token of this server as a bearer token.")
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > self.limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a request may have at most {self.limits.body_bytes >> 20} MiB.")

    async def _read(self, receive: Receive) -> bytes:
        """Return the body, which the limits bound in size and time. Its size is added to `buffered`."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientLeft
                    part = message.get("body", b"")
                    size += len(part)
                    self.buffered += len(part)
                    if size > self.limits.body_bytes:
                        raise self._too_large()
                    if self.buffered > self.limits.buffered_bytes:
                        raise unavailable("the server holds too many requests; try again.")
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            self.buffered -= size
            raise Refusal(408, "the request took too long to arrive.") from None
        except BaseException:
            self.buffered -= size
            raise
        return b"".join(parts)

    def _log(self, scope: Scope, status: int, seconds: float, size: int, record: dict[str, Any]) -> None:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
            "bytes": size,
            **record,
        }
        logging.getLogger("apac.serve.requests").info(json.dumps(line))


def response(refusal: Refusal) -> JSONResponse:
    return JSONResponse({"error": refusal.sentence}, refusal.status, refusal.headers)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that was read already, and then waits for the client to leave."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
