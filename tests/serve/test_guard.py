"""What stands before the routes: tokens, limits, headers, the log, the counts."""

from __future__ import annotations

import io
import json
import logging
import socket
import struct
import time
import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from served import LIMITS, Running, mnist, request, running, tensor

ZEROS = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)


def raw(server: Running, content: bytes, *, close: bool = False) -> bytes:
    """Send bytes and return what comes back until the server closes the connection."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(content)
        if close:
            return b""
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def header(method: str, path: str, **headers: object) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_declared_size_above_the_limit_is_refused_before_the_body_is_read(server):
    answer = raw(server, header("POST", "/classify", Content_Length=10**12))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"a request may have at most 16 MiB." in answer


def test_a_body_without_a_declared_size_is_cut_at_the_limit(server):
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(header("POST", "/classify", Transfer_Encoding="chunked"))
        try:
            for _ in range(17):  # one more than the limit
                connection.sendall(chunk)
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        except ConnectionError:  # the server does not read what it does not need
            pass
    with server.client() as client:
        assert client.get("/v2/health/live").status_code == 200
    assert server.guard.buffered == 0


def test_a_body_that_does_not_arrive_is_given_up():
    limits = replace(LIMITS, body_seconds=0.5)
    with running(mnist(limits), limits=limits, wait=False) as server:
        answer = raw(server, header("POST", "/classify", Content_Length=100) + b"half")
        assert answer.startswith(b"HTTP/1.1 408")
        assert server.guard.buffered == 0


def test_a_client_that_leaves_while_it_sends_is_forgotten_and_499_in_the_log(server, caplog):
    with caplog.at_level(logging.INFO, "apac.serve.requests"):
        raw(server, header("POST", "/classify", Content_Length=100) + b"half", close=True)
        for _ in range(2000):
            if caplog.records:
                break
            time.sleep(0.01)
    assert [json.loads(record.message)["status"] for record in caplog.records] == [499]
    assert server.guard.buffered == 0


def test_a_client_that_leaves_while_it_watches_is_499_in_the_log(server, seven, caplog):
    with caplog.at_level(logging.INFO, "apac.serve.requests"), server.client() as client:
        sent: dict[str, Any] = {"files": {"image": seven}, "headers": {"Accept": "text/event-stream"}}
        with client.stream("POST", "/classify?passes=2048", **sent) as response:
            assert next(response.iter_bytes()).startswith(b"event: start")
        for _ in range(2000):
            if caplog.records:
                break
            time.sleep(0.01)
    assert [json.loads(record.message)["status"] for record in caplog.records] == [499]
    server.wait_until_idle()


def png_header(width: int, height: int) -> bytes:
    """A PNG file that declares a size, with hardly any data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def encoded(format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (300, 300), "red").save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        png_header(6000, 6000),
        png_header(2**31 - 1, 2**31 - 1),
        encoded("GIF"),
        encoded("TIFF"),
        encoded("PNG", save_all=True, append_images=[Image.new("RGB", (300, 300), "blue")]),
        encoded("JPEG", progressive=True) + b"\xff\xda" * 200,
        encoded("PNG")[:-100],
    ],
    ids=["36 megapixels", "bomb", "GIF", "TIFF", "two frames", "many scans", "cut"],
)
def test_files_beyond_the_limits_are_refused(server, content):
    with server.client() as client:
        response = client.post("/classify", files={"image": content})
    assert response.status_code == 400
    sentences = ("the image cannot be read; send a picture", "the image files of a request may have at most 25 mega")
    assert response.json()["error"].startswith(sentences)


def test_pages_of_other_sites_and_other_names_are_refused(server):
    with server.client() as client:
        rebound = client.get("/v2", headers={"Host": "evil.example:8000"})
        foreign = [
            client.post("/classify", files={"image": b"x"}, headers={"Sec-Fetch-Site": site})
            for site in ("cross-site", "same-site", "same-origin", "none")
        ]
        page = client.get("/")
    assert rebound.status_code == 421
    assert [response.status_code for response in foreign] == [403, 403, 400, 400]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in page.headers
    assert "server" not in page.headers
    with server.client() as client:
        assert client.get("/static/../app.py").status_code == 404
        assert client.get("/static/%2e%2e/app.py").status_code == 404
        assert client.get("/static/page.js").headers["content-type"].startswith("text/javascript")


def test_a_token_opens_everything_but_the_page_and_the_health():
    with running(mnist(), token=b"a secret of this test", wait=False) as server, server.client() as client:
        paths = ("/v2", "/v2/models/mnist-cnn", "/metrics", "/openapi.json", "/models")
        assert {client.get(path).status_code for path in paths} == {401}
        wrong = client.get("/v2", headers={"Authorization": "Bearer a secret of this tesT"})
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")
        assert wrong.json() == {"error": "send the token of this server as a bearer token."}
        right = {"Authorization": "bearer a secret of this test", "Host": "any.example"}
        assert {client.get(path, headers=right).status_code for path in paths} == {200}
        assert client.get("/openapi.json", headers=right).json()["security"] == [{"token": []}]
        assert client.get("/").status_code == client.get("/static/page.css").status_code == 200
        assert client.get("/v2/health/live").status_code == 200


def test_every_request_is_one_line_of_json_and_is_counted(server, caplog):
    with caplog.at_level(logging.INFO, "apac.serve.requests"), server.client() as client:
        client.post("/v2/models/mnist-cnn/infer", json=request(tensor(ZEROS), passes=20))
        client.get("/nothing%0A")
        metrics = client.get("/metrics").text
    lines = [json.loads(record.message) for record in caplog.records if record.name == "apac.serve.requests"]
    infer, missing = lines[:2]
    assert infer["status"] == 200
    assert (infer["model"], infer["images"], infer["passes"], infer["settled"]) == ("mnist-cnn", 1, 20, 0)
    assert {"time", "client", "method", "path", "seconds", "bytes"} <= set(infer)
    assert (missing["status"], missing["path"]) == (404, "/nothing\n")
    counts = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(counts['apac_requests_total{route="/v2/models/{name}/infer",status="200"}']) >= 1
    assert float(counts['apac_passes_total{model="mnist-cnn"}']) >= 20
    assert float(counts['apac_images_total{model="mnist-cnn"}']) >= 1
    assert 'apac_queue_images{model="mnist-cnn"}' in counts
    assert any(name.startswith("apac_request_seconds_bucket") for name in counts)


def test_the_bodies_of_all_requests_together_are_bounded():
    with running(mnist(), limits=replace(LIMITS, buffered_bytes=1000), wait=False) as server, server.client() as client:
        response = client.post("/classify", files={"image": b"x" * 2000})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
