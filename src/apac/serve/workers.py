"""Worker processes that share one listening socket."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from apac.serve.metrics import SHARED_FOLDER
from apac.serve.signals import KILLED, handled_signals

POLL_SECONDS = 0.2


def supervise(work: Callable[[], None], count: int) -> None:
    """Run `work` in processes until a signal, and replace those that die.

    The first signal is passed on and ends the workers after all requests are answered, the second at once.
    """
    workers: list[BaseProcess] = []
    stopping = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        for worker in workers:
            if worker.is_alive():
                worker.kill() if stopping else worker.terminate()
        if stopping:
            os._exit(KILLED)
        stopping = True

    context = multiprocessing.get_context("spawn")  # a forked process cannot use the threads of torch
    with tempfile.TemporaryDirectory(prefix="apac-metrics-") as folder:
        os.environ[SHARED_FOLDER] = folder
        try:
            with handled_signals(handle):
                while not stopping or any(worker.is_alive() for worker in workers):
                    for worker in [worker for worker in workers if not worker.is_alive()]:
                        mark_process_dead(worker.pid)
                        workers.remove(worker)
                    while not stopping and len(workers) < count:
                        worker = context.Process(target=work)
                        worker.start()
                        workers.append(worker)
                    time.sleep(POLL_SECONDS)
        finally:
            del os.environ[SHARED_FOLDER]
