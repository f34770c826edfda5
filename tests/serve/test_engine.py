"""The engine behind the routes: a bounded queue, deadlines, clients that leave, failures."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest
import torch

import apac
from apac.serve.model import Model, Parameters
from served import LIMITS, Gate, mnist, request, running, tensor, wait_for

ZEROS = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def gated(gate: Gate, **limits: Any) -> Model:
    return mnist(replace(LIMITS, **limits), network=gate)


def infer(server: Any, count: int = 1, **parameters: Any) -> httpx.Response:
    with server.client() as client:
        payload = request(tensor(ZEROS.expand(count, -1, -1, -1)), **parameters)
        return client.post("/v2/models/mnist-cnn/infer", json=payload)


def in_thread(function: Any, *arguments: Any, **options: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    results: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments, **options)))
    thread.start()
    return thread, results


def test_a_full_queue_is_503_with_retry_after_and_accepted_requests_are_answered(gate):
    model = gated(gate, queue=70, images=70)
    with running(model, limits=model.limits) as server:
        gate.open.clear()
        first = in_thread(infer, server, 1, passes=16)
        wait_for(lambda: model.engine.under_way == 1)
        second = in_thread(infer, server, 70, passes=16)
        wait_for(lambda: model.engine.waiting == 70)
        refused = infer(server, passes=16)
        gate.open.set()
        for thread, results in (first, second):
            thread.join()
            assert results[0].status_code == 200
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json() == {"error": "the queue is full; try again."}


def test_a_request_that_takes_too_long_is_refused_and_frees_its_place(gate):
    model = gated(gate, seconds=0.3)
    with running(model, limits=model.limits) as server:
        gate.open.clear()
        refused = infer(server, passes=16)
        gate.open.set()
        server.wait_until_idle()
        decided = asyncio.run(model.engine.decide(ZEROS.float(), model.settings(Parameters(passes=16))))
    assert decided[0].is_final
    assert refused.status_code == 503
    assert refused.json()["error"].startswith("the decision took longer than 0.3 s")


def test_a_client_that_leaves_frees_its_place(gate, monkeypatch):
    monkeypatch.setattr("apac.serve.engine.UNDER_WAY", 64)  # some of the images below wait
    model = gated(gate)
    with running(model, limits=model.limits) as server:
        gate.open.clear()
        body = json.dumps(request(tensor(ZEROS.expand(70, -1, -1, -1)), passes=2048)).encode()
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v2/models/mnist-cnn/infer HTTP/1.1\r\nHost: localhost\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wait_for(lambda: model.engine.under_way and model.engine.waiting)
        wait_for(lambda: model.engine.waiting == 0)
        gate.open.set()
        server.wait_until_idle()
        assert gate.passes < 70 * 2048 / 10
        assert infer(server, passes=16).status_code == 200


def test_a_small_request_does_not_wait_for_a_large_one(gate, monkeypatch):
    monkeypatch.setattr("apac.serve.engine.UNDER_WAY", 64)  # all places are taken by the large one
    model = gated(gate, passes=16_384)
    images = ZEROS.float()

    async def decide() -> None:
        large = model.settings(Parameters(passes=16_384))
        async with model.engine.deciding(images.expand(64, -1, -1, -1), large):
            while model.engine.under_way < 64:
                await asyncio.sleep(0.01)
            await model.engine.decide(images.expand(2, -1, -1, -1), model.settings(Parameters(passes=32)))

    with running(model, limits=model.limits) as server:
        asyncio.run(decide())
        server.wait_until_idle()
    assert gate.passes < 64 * 16_384 / 4


def test_a_network_that_fails_is_503_in_a_fixed_sentence_and_the_engine_recovers(gate):
    model = gated(gate)
    with running(model, limits=model.limits) as server:
        gate.fails = True
        failed = infer(server, passes=16)
        gate.fails = False
        assert failed.status_code == 503
        assert failed.json() == {"error": "the model failed to decide the images."}
        wait_for(model.engine.ready.is_set)
        assert infer(server, passes=16).status_code == 200


def test_the_model_is_ready_after_its_first_decision(gate):
    gate.open.clear()
    model = gated(gate)
    with running(model, limits=model.limits, wait=False) as server, server.client() as client:
        paths = ("/v2/health/ready", "/v2/models/mnist-cnn/ready")
        assert [client.get(path).status_code for path in paths] == [503, 503]
        assert client.get("/v2/health/live").status_code == 200
        early = infer(server, passes=16)
        assert (early.status_code, early.json()["error"]) == (503, "the model is not ready yet; try again.")
        gate.open.set()
        wait_for(model.engine.ready.is_set)
        assert [client.get(path).status_code for path in paths] == [200, 200]


def test_a_run_without_deformation_is_decided_by_one_pass_unless_the_request_says_otherwise(unprepared):
    model = mnist(deformation=apac.Compose())
    with running(model) as server:
        assert infer(server).json()["outputs"][6]["data"] == [1]
        assert infer(server, limit=64).json()["outputs"][6]["data"] != [1]
