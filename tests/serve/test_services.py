"""Threads for decoding: bounded, free of requests that were given up, and not waited for at the end."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from apac import limits
from apac.serve import protocol
from apac.serve.headers import check_headers
from apac.serve.limits import Limits
from apac.serve.metrics import Metrics
from apac.serve.protocol import RequestInput, images_of
from apac.serve.refusal import Refusal
from apac.serve.services import Services
from served import files, run_length_bmp


class Body:
    """Stands for the body of a request."""


@pytest.fixture
def services() -> Services:
    return Services({}, Limits(), Metrics())


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What threads wait for."""
    event = threading.Event()
    yield event
    event.set()


def started(services: Services, event: threading.Event, count: int) -> list[asyncio.Task[bool]]:
    return [asyncio.ensure_future(services.in_thread(event.wait, 60)) for _ in range(count)]


def test_a_request_that_left_before_it_was_decoded_holds_no_memory(services, go_on):
    async def run() -> None:
        busy = started(services, go_on, limits.DECODERS)
        body = Body()
        kept = weakref.ref(body)
        waiting = asyncio.ensure_future(services.in_thread(id, body))
        del body
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        del waiting
        gc.collect()
        assert kept() is None
        go_on.set()
        await asyncio.gather(*busy)

    asyncio.run(run())


def test_a_decoder_is_free_again_when_its_function_has_returned(services, go_on):
    async def run() -> None:
        busy = started(services, go_on, limits.DECODERS)
        while not services.futures or not all(future.running() for future in services.futures):
            await asyncio.sleep(0.01)
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)
        assert services.free.locked() and services.is_decoding
        go_on.set()
        async with asyncio.timeout(60):
            assert await services.in_thread(int, "3") == 3

    asyncio.run(run())


def test_the_function_of_a_request_that_left_is_told(services, go_on):
    told: list[threading.Event] = []

    def decode(canceled: threading.Event) -> None:
        told.append(canceled)
        assert go_on.wait(60)

    async def run() -> None:
        task = asyncio.ensure_future(services.decode(decode))
        while not told:
            await asyncio.sleep(0.01)
        assert not told[0].is_set()
        task.cancel()
        await asyncio.wait({task})
        assert told[0].is_set()
        go_on.set()

    asyncio.run(run())


def test_the_end_does_not_wait_for_a_decoder(services, go_on):
    services.decoders.submit(go_on.wait, 60)
    ending = threading.Thread(target=services.close)
    ending.start()
    ending.join(20)
    assert not ending.is_alive()


def picture(width: int, height: int, format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("1" if format == "PNG" else "L", (width, height)).save(file, format, **options)
    return file.getvalue()


def test_a_bmp_file_with_run_length_encoding_is_refused():
    content = run_length_bmp(255, 20)
    with Image.open(io.BytesIO(content)) as file:
        file.load()  # it is valid
    with pytest.raises(Refusal, match="run-length encoding are not read; send a PNG file"):
        check_headers([content], Limits())
    check_headers([picture(255, 20, "BMP")], Limits())


def test_the_pixels_of_all_files_of_a_request_are_bounded():
    file = picture(300, 100)
    check_headers([file] * 3, Limits(pixels=90_000))
    with pytest.raises(Refusal, match="may have at most 0 megapixels together"):
        check_headers([file] * 3, Limits(pixels=89_999))


def test_scans_of_a_progressive_file_count_as_pixels():
    file = picture(64, 64, "JPEG", progressive=True)
    last = file[file.rfind(b"\xff\xda") : -2]
    check_headers([file], Limits(pixels=64 * 64))
    with pytest.raises(Refusal, match="megapixels together"):
        check_headers([file[:-2] + last * 20 + file[-2:]], Limits(pixels=64 * 64))


def test_the_files_of_a_request_that_left_are_not_decoded(server, seven, monkeypatch):
    canceled = threading.Event()
    read: list[str] = []

    def read_and_leave(run: Any, content: bytes, limits: Limits, name: str) -> object:
        read.append(name)
        canceled.set()
        return original(run, content, limits, name)

    original = protocol.read_picture
    monkeypatch.setattr(protocol, "read_picture", read_and_leave)
    with pytest.raises(Refusal):
        images_of(server.model, RequestInput.model_validate(files(seven, seven, seven)), canceled)
    assert read == ["image 0"]
