"""The server as a process: signals, restarts, workers, and the sentences of `apac serve`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from commands import call, refusal
from served import process, request, tensor

INFER = "/v2/models/mnist-cnn/infer"


def load(address: str, content: bytes, answers: list[bytes], lost: list[str], *, keeps: bool = False) -> None:
    """Send requests, each over its own connection or all over one, until the server takes no more."""
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        while True:
            try:
                response = client.post(INFER, content=content, headers={} if keeps else {"Connection": "close"})
            except httpx.ConnectError:
                return
            except httpx.TransportError as error:
                lost.append(repr(error))
                return
            if response.status_code != 200:
                lost.append(response.text)
            answers.append(response.content)


def terminate_under_load(pixels: Any, *options: str) -> None:
    content = json.dumps(request(tensor(pixels[:4]), passes=32)).encode()
    answers, lost = list[bytes](), list[str]()
    with process("--port", "0", *options) as (server, address), ThreadPoolExecutor(8) as pool:
        for number in range(8):
            pool.submit(load, address, content, answers, lost, keeps=number % 2 == 0)
        for _ in range(6000):  # a minute
            if len(answers) >= 16 or lost:
                break
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert not lost
    assert len(answers) >= 16
    assert len(set(answers)) == 1


def test_sigterm_under_load_answers_every_accepted_request_and_ends_with_0(pixels):
    terminate_under_load(pixels)


@pytest.mark.slow
def test_sigterm_under_load_answers_every_accepted_request_of_all_workers(pixels):
    terminate_under_load(pixels, "--workers", "2")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_alone_in_a_crowd_and_after_kill_9_and_a_restart_the_bytes_are_the_same(pixels, workers):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    content = json.dumps(request(tensor(pixels[:1]))).encode()
    crowd = json.dumps(request(tensor(pixels[1:65]))).encode()
    answers = set()
    for _ in range(2):
        with process("--port", port, "--workers", workers) as (server, address), ThreadPoolExecutor(3) as pool:

            def infer(payload: bytes) -> bytes:
                response = httpx.post(f"{address}{INFER}", content=payload, trust_env=False, timeout=60)
                assert response.status_code == 200
                return response.content

            answers.add(infer(content))
            others = [pool.submit(infer, crowd) for _ in range(2)]
            answers |= {infer(content) for _ in range(5)}
            for other in others:
                other.result()
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
    assert len(answers) == 1


@pytest.mark.slow
def test_a_second_signal_ends_at_once(pixels):
    content = json.dumps(request(tensor(pixels[:64]), passes=16_384)).encode()
    with process("--port", "0") as (server, address):
        client = threading.Thread(target=load, args=(address, content, [], []))
        client.start()
        time.sleep(1)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 1
        client.join()


STUCK = """
import time
from apac.serve import routes
from apac.serve.server import Configuration, serve
routes._read = lambda *arguments: time.sleep(600)
serve(Configuration(("mnist-cnn",), port=0, threads=1), lambda names, address: print(address, flush=True))
"""


@pytest.mark.slow
def test_sigterm_does_not_wait_for_a_file_that_nobody_waits_for():
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().strip()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/classify", files={"image": b"x"}, trust_env=False, timeout=3)
        server.send_signal(signal.SIGTERM)
        try:
            assert server.wait(30) == 0
        finally:
            server.kill()


@pytest.mark.slow
def test_workers_share_the_port_and_the_counts_and_are_replaced(pixels):
    content = json.dumps(request(tensor(pixels[:1]), passes=16)).encode()
    with process("--port", "0", "--workers", "2") as (server, address):

        def children() -> set[str]:
            return set(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())

        def infer() -> int:
            return httpx.post(f"{address}{INFER}", content=content, trust_env=False, timeout=60).status_code

        assert [infer() for _ in range(20)] == [200] * 20  # also while the second worker is not ready yet
        counts = httpx.get(f"{address}/metrics", trust_env=False).text
        assert float(re.search(r'apac_images_total\{model="mnist-cnn"\} (\S+)', counts)[1]) >= 20
        before = children()
        victim = next(pid for pid in before if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(int(victim), signal.SIGKILL)
        for _ in range(600):
            if victim not in children() and len(children()) >= len(before):
                break
            time.sleep(0.1)
        assert victim not in children()
        server.send_signal(signal.SIGTERM)
        assert server.wait(90) == 0


def _token(folder: Path) -> Path:
    path = folder / "good token"
    path.write_text("0123456789abcdef\n")
    return path


def test_bad_options_are_one_sentence(tmp_path, monkeypatch):
    token = tmp_path / "token"
    assert refusal("serve", "mnist-cnn", "--host", "0.0.0.0").endswith("give a token by --token-file.")
    assert "cannot be read" in refusal("serve", "mnist-cnn", "--token-file", token)
    token.write_text("short\n")
    assert "at least 16 characters" in refusal("serve", "mnist-cnn", "--token-file", token)
    assert "holds no run" in refusal("serve", tmp_path / "nothing", "--port", 0)
    assert "two runs are named mnist-cnn" in refusal("serve", "mnist-cnn", "mnist-cnn", "--port", 0)
    assert "less than or equal to" in call("serve", "mnist-cnn", "--max-seconds", "inf").stderr
    assert refusal("serve", "mnist-cnn", "--token-file", _token(tmp_path), "--host", "a" * 70).endswith(
        "is not the name or address of a machine; choose another address."
    )
    assert "must not exceed --queue 5" in refusal("serve", "mnist-cnn", "--queue", "5")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in refusal(
            "serve", "mnist-cnn", "--port", port
        )
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    source = Path(__file__).parents[2] / "src/apac/pretrained/mnist-cnn/run.json"
    payload = json.loads(source.read_text()) | {"complete": False}
    (unfinished / "run.json").write_text(json.dumps(payload))
    assert "is not finished; continue it with --resume." in refusal("serve", unfinished, "--port", 0)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert refusal("serve", "mnist-cnn").endswith("pip install 'augmented-pattern-classification[serve]'")
