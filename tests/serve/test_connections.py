"""Connections: bounded in number, and closed when a client keeps the server waiting."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from apac import limits
from apac.inference import engine
from served import LIMITS, Running, mnist, running

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def impatient() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HEADER_SECONDS", 2.0)
        patch.setattr(limits, "UNREAD_SECONDS", 0.5)
        patch.setattr(engine, "MIN_OPERATIONS", float("inf"))  # exporting takes longer than these tests
        with running(mnist(), wait=False) as server:
            yield server


def connect(server: Running, **options: int) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(20)
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.connect((host, int(port)))
    return connection


def received(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def one_response(connection: socket.socket) -> bytes:
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        part = connection.recv(65536)
        assert part
        answer += part
    return answer


def body(answer: bytes) -> dict[str, str]:
    payload: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return payload


@pytest.mark.parametrize("sent", [b"", b"GET /v2 HT"], ids=["nothing", "half a header"])
def test_a_client_that_sends_no_request_is_disconnected(impatient, sent):
    with connect(impatient) as connection:
        connection.sendall(sent)
        assert received(connection) == b""


def test_half_a_header_after_a_response_does_not_hold_the_connection(impatient):
    with connect(impatient) as connection:
        connection.sendall(GET)
        assert one_response(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(GET[:20])
        assert received(connection) == b""


def test_what_is_not_http_is_refused_in_json(impatient):
    with connect(impatient) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert body(answer) == {"error": "this is not a valid HTTP request."}


def test_too_many_connections_are_503_with_retry_after_and_more_are_closed(monkeypatch, unprepared):
    monkeypatch.setattr(limits, "SPARE_CONNECTIONS", 1)
    with ExitStack() as stack:
        server = stack.enter_context(running(mnist(), limits=replace(LIMITS, connections=2), wait=False))
        first, _, third, fourth = [stack.enter_context(connect(server)) for _ in range(4)]
        assert received(fourth) == b""
        third.sendall(GET)
        answer = received(third)
        first.sendall(GET)
        assert one_response(first).startswith(b"HTTP/1.1 200")
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1\r\n" in answer
    assert b"connection: close\r\n" in answer
    assert body(answer) == {"error": "the server has too many connections; try again."}


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux closes connections that nobody reads")
def test_a_client_that_reads_no_response_is_disconnected(impatient):
    with connect(impatient, SO_RCVBUF=4096) as connection:
        connection.setblocking(False)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with pytest.raises(ConnectionError):  # without reading, until the server resets the connection
            for _ in range(6000):  # a minute
                try:
                    while True:
                        connection.send(request)
                except BlockingIOError:
                    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error:
                        raise ConnectionError from None
                time.sleep(0.01)
