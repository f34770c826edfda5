"""Malformed requests: mutated images and JSON, wrong shapes, huge sizes, slow bodies, broken connections.

scripts/test -m slow sends 50,000 of them to a server process, and those that schemathesis derives from the OpenAPI
document; the variable APAC_FUZZ is another number.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import urllib.parse
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from served import Running, process, run_length_bmp

CLIENTS = 6  # at the same time
LARGE_EVERY = 150  # requests
FEW, MANY = 60, int(os.environ.get("APAC_FUZZ", "50000"))
ODD = [None, -1, 0, 1, 2**63, 10**30, 1e308, -0.5, "", "x" * 1000, "\ud800", [], {}, [[]], {"a": {}}, True, [None] * 9]
PATHS = ["/", "/v2", "/classify", "/metrics", "/static/../../x", "/v2/models/%00/infer", "/v2/models/" + "a" * 3000]


class Fuzzer:
    """Sends malformed requests to a server, one after the other, and counts the statuses."""

    def __init__(self, address: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.host, self.port = urllib.parse.urlsplit(address).netloc.split(":")
        self.statuses: Counter[int | str] = Counter()
        self.slow: list[socket.socket] = []
        picture = Image.radial_gradient("L").resize((40, 40))
        self.pictures = [_encoded(picture, kind) for kind in ("PNG", "JPEG", "WEBP", "BMP")]
        data = base64.b64encode(self.pictures[0]).decode()
        inputs = {"name": "images", "datatype": "BYTES", "shape": [1], "data": [data]}
        self.valid = {"id": "a", "inputs": [inputs], "parameters": {"passes": 1, "seed": 3, "top_k": 2}}
        self.connection = self._connect()

    def run(self, count: int) -> None:
        kinds: list[Callable[[], None]] = [
            *[self.mutated_image] * 4,
            *[self.mutated_bytes] * 3,
            *[self.odd_value] * 4,
            *[self.wrong_shape] * 2,
            self.huge_size,
            self.broken_connection,
            self.garbage,
            self.odd_path,
            self.half_closed,
        ]
        for number in range(count):
            if number % 1000 == 500:
                self.slow_request()
            if number % LARGE_EVERY == LARGE_EVERY // 2:
                self.large_body()
            self.random.choice(kinds)()
        for connection in self.slow:  # each was refused or closed in time
            with connection, suppress(ConnectionError):
                self._note(connection.recv(15))
        self.connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, int(self.port), timeout=60)

    def send(self, method: str, path: str, body: bytes, kind: str = "application/json") -> None:
        try:
            self.connection.request(method, path, body, {"Content-Type": kind, "Host": "localhost"})
            response = self.connection.getresponse()
        except (http.client.HTTPException, OSError):  # the server closes a connection after some refusals
            self.connection.close()
            self.connection = self._connect()
            self.connection.request(method, path, body, {"Content-Type": kind, "Host": "localhost"})
            response = self.connection.getresponse()
        content = response.read()
        self.statuses[response.status] += 1
        assert response.status < 500 or response.status == 503, (response.status, method, path, body[:300], content)
        if response.status >= 400 and method != "HEAD":
            assert list(json.loads(content)) == ["error"]

    def raw(self, content: bytes, *, half_closed: bool = False) -> None:
        with socket.create_connection((self.host, int(self.port)), timeout=60) as connection:
            try:
                connection.sendall(content)
                if half_closed:
                    connection.shutdown(socket.SHUT_WR)
                self._note(connection.recv(15))
            except OSError:
                self.statuses["closed"] += 1

    def _note(self, answer: bytes) -> None:
        status = int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else "closed"
        self.statuses[status] += 1
        assert status == "closed" or int(status) < 500 or status == 503

    def infer(self, body: bytes) -> None:
        self.send("POST", "/v2/models/mnist-cnn/infer", body)

    def upload(self, content: bytes) -> None:
        part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + content + b"\r\n--b--\r\n"
        self.send("POST", "/classify?passes=1", part, "multipart/form-data; boundary=b")

    def mutate(self, content: bytes) -> bytes:
        mutated = bytearray(content)
        for _ in range(self.random.choice((1, 1, 2, 8, 64))):
            place = self.random.randrange(max(1, len(mutated)))
            match self.random.randrange(4):
                case 0:
                    mutated[place : place + 1] = bytes([self.random.randrange(256)])
                case 1:
                    del mutated[place : place + self.random.randrange(50)]
                case 2:
                    mutated[place:place] = mutated[place : place + self.random.randrange(50)]
                case 3:
                    mutated[place : place + 4] = self.random.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
        return bytes(mutated)

    def mutated_image(self) -> None:
        self.upload(self.mutate(self.random.choice(self.pictures)))

    def mutated_bytes(self) -> None:
        self.infer(self.mutate(json.dumps(self.valid).encode()))

    def odd_value(self) -> None:
        payload = json.loads(json.dumps(self.valid))
        places = [(payload, key) for key in payload] + [(payload["inputs"][0], key) for key in payload["inputs"][0]]
        places += [(payload["parameters"], key) for key in ("passes", "error", "limit", "seed", "combine", "top_k")]
        where, key = self.random.choice(places)
        where[key] = self.random.choice(ODD)
        self.infer(json.dumps(payload).encode())

    def wrong_shape(self) -> None:
        shape = [self.random.choice((-1, 0, 1, 28, 10**9, 10**18)) for _ in range(self.random.randrange(6))]
        kind = self.random.choice(("FP32", "UINT8", "BYTES"))
        tensor = {"name": "images", "datatype": kind, "shape": shape, "data": [0] * self.random.choice((0, 1, 784))}
        self.infer(json.dumps({"inputs": [tensor], "parameters": {"passes": 1}}).encode())

    def huge_size(self) -> None:
        size = self.random.choice((17 << 20, 10**12, 10**30))
        self.raw(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\nx" % size)

    def broken_connection(self) -> None:
        with socket.create_connection((self.host, int(self.port)), timeout=60) as connection:
            connection.sendall(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nhalf")
        self.statuses["left"] += 1

    def garbage(self) -> None:
        self.raw(self.random.randbytes(self.random.randrange(1, 2000)) + b"\r\n\r\n")

    def half_closed(self) -> None:
        self.raw(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", half_closed=True)

    def large_body(self) -> None:
        bodies, contents = large()
        if self.random.random() < len(bodies) / (len(bodies) + len(contents)):
            self.infer(self.random.choice(bodies))
        else:
            self.upload(self.random.choice(contents))

    def odd_path(self) -> None:
        method = self.random.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"))
        self.send(method, self.random.choice(PATHS), b"")

    def slow_request(self) -> None:
        """Begin a header or a body, and send one more byte of the earlier ones."""
        for earlier in self.slow:
            with suppress(OSError):
                earlier.sendall(b"x")
        connection = socket.create_connection((self.host, int(self.port)), timeout=60)
        whole = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nslow"
        connection.sendall(whole[: self.random.choice((0, 30, len(whole), len(whole)))])
        self.slow.append(connection)


@cache
def large() -> tuple[list[bytes], list[bytes]]:
    """Return bodies of requests and image files that are large, or small and costly."""
    mixed: list[Any] = [1e300, 10**300, -1, "1"]
    kinds: list[list[Any]] = [
        ["x" * 1_000_000] + ["a"] * 1_000_000,
        mixed * 12_000,
        [[]] * 4_000_000,
        [[[[]] * 28] * 28] * 1000,
        [0] * 8_000_000,
    ]
    photo = Image.radial_gradient("L").resize((5000, 5000))
    progressive = _encoded(photo, "JPEG", progressive=True)
    last = progressive[progressive.rfind(b"\xff\xda") : -2]
    many_scans = progressive[:-2] + last * 20 + progressive[-2:]
    contents = [_encoded(photo, "PNG"), progressive, many_scans, run_length_bmp(5000, 4990)]
    many = [base64.b64encode(_encoded(photo.resize((1000, 1000)), "PNG")).decode()] * 50
    return [*(_request(data, "UINT8", (1, 1, 28, 28)) for data in kinds), _request(many, "BYTES", (50,))], contents


def _request(data: list[Any], datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = {"name": "images", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], "parameters": {"passes": 1}}, separators=(",", ":")).encode()


def _encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def test_malformed_requests_are_refused_and_the_next_good_one_is_answered(server: Running, seven: bytes) -> None:
    fuzzer = Fuzzer(server.address, seed=0)
    fuzzer.run(FEW)
    assert set(fuzzer.statuses) <= {200, 400, 404, 405, 408, 413, "closed", "left"}
    assert fuzzer.statuses[400] > FEW // 4
    with server.client() as client:
        assert client.post("/classify", files={"image": seven}).json()["class"] == "7"


def run_clients(address: str, count: int, seed: int) -> Counter[int | str]:
    """Send `count` requests from several clients at the same time, and count the statuses."""
    fuzzers = [Fuzzer(address, seed=seed + number) for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda fuzzer: fuzzer.run(-(-count // CLIENTS)), fuzzers))
    return sum((fuzzer.statuses for fuzzer in fuzzers), Counter[int | str]())


def memory(pid: int, field: str = "VmRSS") -> int:
    status: Any = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(status[1])


def run_schemathesis(address: str) -> None:
    """Let schemathesis send what the OpenAPI document allows and what it excludes, and compare the responses with it.

    One of its checks does not hold: that everything is accepted which the document allows. The module `document` says
    which conditions a schema cannot express.
    """
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{address}/openapi.json", "--seed", "1"]
    options = ["--exclude-checks", "positive_data_acceptance", "--max-examples", "300", "--request-timeout", "60"]
    result = subprocess.run([*command, *options, "--no-color"], capture_output=True, text=True)
    print(result.stdout)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_thousands_of_malformed_requests_leave_the_memory_as_it_was(seven: bytes) -> None:
    with process("--port", "0") as (server, address):
        run_clients(address, 2000, seed=1)  # buffers of the first requests of each kind, also at the same time
        before = memory(server.pid)
        statuses = run_clients(address, MANY, seed=100)
        run_schemathesis(address)
        after, peak = memory(server.pid), memory(server.pid, "VmHWM")
        sizes = f"{before >> 10} MiB before, {after >> 10} MiB after, {peak >> 10} MiB at most"
        print(f"{statuses.total()} requests, {dict(statuses)}, {sizes}")
        assert abs(after - before) < 0.1 * before
        last = Fuzzer(address, seed=0)
        last.upload(seven)
        last.connection.close()
        assert last.statuses == {200: 1}
