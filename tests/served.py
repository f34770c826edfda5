"""Serve models from a thread of the tests."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2 as httpx
import torch
import uvicorn
from torch import Tensor, nn

import apac
from apac.serve.app import build, services_of
from apac.serve.guard import Guard
from apac.serve.limits import Limits
from apac.serve.model import Model
from apac.serve.server import uvicorn_config

LIMITS = Limits(images=80, passes=2048, queue=200, body_seconds=10.0, seconds=20.0)


@dataclass
class Running:
    """A server in a thread."""

    address: str
    guard: Guard

    @property
    def model(self) -> Model:
        return next(iter(services_of(self.guard).models.values()))

    def wait_until_idle(self) -> None:
        """Wait until no image is under way."""
        engine = self.model.engine
        for _ in range(2000):
            if not engine.waiting and not engine.under_way:
                return
            time.sleep(0.01)
        raise AssertionError("the engine still works")

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=30, trust_env=False, **options)

    def infer(self, payload: dict[str, Any], name: str = "mnist-cnn") -> dict[str, Any]:
        with self.client() as client:
            response = client.post(f"/v2/models/{name}/infer", json=payload)
        assert response.status_code == 200, response.text
        return {output["name"]: output["data"] for output in response.json()["outputs"]}

    def refusal(self, payload: Any, status: int = 400) -> str:
        with self.client() as client:
            content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            response = client.post("/v2/models/mnist-cnn/infer", content=content)
        assert response.status_code == status, response.text
        assert list(response.json()) == ["error"]
        return response.json()["error"]


@contextmanager
def running(
    *models: Model, limits: Limits = LIMITS, token: bytes | None = None, wait: bool = True
) -> Iterator[Running]:
    """Serve models in a thread until the end of the block."""
    guard = build(models, limits, token)
    server = uvicorn.Server(uvicorn_config(guard))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            for model in models if wait else ():
                assert model.engine.ready.wait(60)
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", guard)
        finally:
            server.should_exit = True
            thread.join()


def mnist(limits: Limits = LIMITS, **changes: Any) -> Model:
    return Model("mnist-cnn", replace(apac.load("mnist-cnn"), **changes), limits)


class Gate(nn.Module):
    """A network that waits until it may go on, and fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.fails = False
        self.passes = 0  # of all images
        self.closes_at = math.inf  # passes

    def forward(self, images: Tensor) -> Tensor:
        if self.passes >= self.closes_at:
            self.closes_at = math.inf
            self.open.clear()
        assert self.open.wait(30)
        self.passes += len(images)
        if self.fails:
            raise RuntimeError("a secret of the network")
        return torch.cat((images.flatten(1)[:, :9], images.new_zeros(len(images), 1)), dim=1)


def wait_for(condition: Callable[[], Any]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def tensor(values: Any, datatype: str = "UINT8") -> dict[str, Any]:
    return {"name": "images", "datatype": datatype, "shape": list(values.shape), "data": values.flatten().tolist()}


def files(*contents: bytes) -> dict[str, Any]:
    encoded = [base64.b64encode(content).decode() for content in contents]
    return {"name": "images", "datatype": "BYTES", "shape": [len(encoded)], "data": encoded}


def request(inputs: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {"inputs": [inputs], "parameters": parameters}


def run_length_bmp(width: int, height: int) -> bytes:
    """A BMP file of one color in a few bytes per row."""
    row = bytes([255, 7]) * (width // 255) + b"\0\0"
    data = row * height + b"\0\1"
    palette = bytes(1024)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 2835, 2835, 256, 0)
    start = 14 + len(header) + len(palette)
    return struct.pack("<2sIHHI", b"BM", start + len(data), 0, 0, start) + header + palette + data


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server and yield it with its address when it is ready. The log goes nowhere."""
    command = [sys.executable, "-m", "apac", "--threads", "1", "serve", "mnist-cnn", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            address = re.search(r"http://\S+", server.stdout.readline())[0]
            for _ in range(1200):
                try:
                    if httpx.get(f"{address}/v2/health/ready", trust_env=False, timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            yield server, address
        finally:
            server.kill()
