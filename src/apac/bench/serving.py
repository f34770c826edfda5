"""`apac serve` under load, next to `Classifier.decide` on the same images: throughput, and latency below saturation.

The server is a process of its own; this process sends the requests over loopback and waits for the answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apac import data
from apac.bench.race import Entry, race
from apac.classify.classifier import Classifier
from apac.classify.rules.fixed import FixedPasses
from apac.errors import InputError
from apac.progress import Progress
from apac.randomness import generator
from apac.runs.run import load

IMAGES = 512
PER_REQUEST = 16
CONNECTIONS = 8  # at saturation: 128 images are sent at a time, as many as share a round
LATENCIES = 60  # requests of one image, evenly spaced at a tenth of the load
READY_SECONDS = 120
PASSES = 64  # of random images in color, which no rule settles
DECIDE, SERVE = "classifier.decide", "apac serve"


@dataclass(frozen=True)
class Load:
    """What is sent to a model."""

    model: str
    pixels: Tensor  # (N, C, H, W) uint8
    parameters: dict[str, Any]
    classifier: Classifier


def measure(rounds: int, progress: Progress) -> list[Entry]:
    loads = [_digits(), _colors()]
    with _server([each.model for each in loads]) as port:
        return [entry for each in loads for entry in _measure(each, port, rounds, progress)]


def _digits() -> Load:
    run = load("mnist-cnn")
    return Load("mnist-cnn", data.load("mnist-5k").test_images[:IMAGES], {}, run.classifier())


def _colors() -> Load:
    run = load("cifar10-cnn")
    pixels = torch.randint(0, 256, (IMAGES, 3, 32, 32), generator=generator(0, "bench", 0), dtype=torch.uint8)
    return Load("cifar10-cnn", pixels, {"passes": PASSES}, run.classifier(FixedPasses(PASSES)))


def _measure(each: Load, port: int, rounds: int, progress: Progress) -> list[Entry]:
    normalize = load(each.model).normalize
    images = normalize(each.pixels)
    prepared = each.classifier.prepared(images, 1_000)
    requests = [_request(each, part) for part in each.pixels.split(PER_REQUEST)]

    def decide() -> float:
        prepared.decide(normalize(each.pixels))  # from the same pixels as the server
        return len(images)

    def served() -> float:
        asyncio.run(_saturate(port, requests))
        return len(images)

    group = f"images per second, {each.model}, {len(images)} images"
    speed = race(group, {DECIDE: decide, SERVE: served}, rounds, progress)
    singles = [_request(each, pixels) for pixels in each.pixels[:LATENCIES].split(1)]
    spaced = asyncio.run(_spaced(port, singles, speed[SERVE]))
    alone = [_seconds(prepared, image) for image in images[:LATENCIES].split(1)]
    medians = {DECIDE: 1000 * statistics.median(alone), SERVE: 1000 * statistics.median(spaced)}
    latency = f"median time of one image at a tenth of that load, {each.model}"
    return [
        *(Entry(group, name, value, "images/s", DECIDE, speed[DECIDE] / value) for name, value in speed.items()),
        *(Entry(latency, name, value, "ms", DECIDE, medians[DECIDE] / value) for name, value in medians.items()),
    ]


def _seconds(classifier: Classifier, image: Tensor) -> float:
    started = time.perf_counter()
    classifier.decide(image)
    return time.perf_counter() - started


def _request(each: Load, pixels: Tensor) -> bytes:
    """Return an HTTP request for images (n, C, H, W) in the Open Inference Protocol."""
    tensor = {"name": "images", "datatype": "UINT8", "shape": list(pixels.shape), "data": pixels.flatten().tolist()}
    body = json.dumps({"inputs": [tensor], "parameters": each.parameters}).encode()
    header = f"POST /v2/models/{each.model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return header.encode() + body


async def _saturate(port: int, requests: Sequence[bytes]) -> None:
    """Send all requests over a few connections, each of which has one under way at any time."""
    remaining = iter(requests)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in remaining:
            await _exchange(reader, writer, request)
        writer.close()

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


async def _spaced(port: int, requests: Sequence[bytes], speed: float) -> list[float]:
    """Send requests of one image at a tenth of the speed, whether or not earlier ones are answered."""

    async def work(number: int, request: bytes) -> float:
        await asyncio.sleep(number * 10 / speed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        started = time.perf_counter()
        await _exchange(reader, writer, request)
        seconds = time.perf_counter() - started
        writer.close()
        return seconds

    return await asyncio.gather(*(work(number, request) for number, request in enumerate(requests)))


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if not head.startswith("HTTP/1.1 200"):
        raise InputError(f"the server refused a request of the benchmark: {head.partition(chr(13))[0]}.")
    return body


@contextmanager
def _server(runs: Sequence[str]) -> Iterator[int]:
    """Start a server of these runs with the threads of this process, and yield its port once it is ready."""
    command = [sys.executable, "-m", "apac", "--threads", str(torch.get_num_threads()), "serve", *runs, "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)$", process.stdout.readline().strip())
            if found is None:
                process.wait()
                log.seek(0)
                raise InputError(f"the server did not start: {log.read().strip().rpartition(chr(10))[2]}")
            asyncio.run(_until_ready(int(found[1])))
            yield int(found[1])
        finally:
            process.terminate()


async def _until_ready(port: int) -> None:
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                if (await reader.read()).startswith(b"HTTP/1.1 200"):
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise InputError(f"the server was not ready after {READY_SECONDS} s.") from None
