"""Worker processes that share one listening socket."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from apac.serve.metrics import SHARED_FOLDER
from apac.serve.signals import KILLED, handled_signals

POLL_SECONDS = 0.2


def supervise(work: Callable[[], None], count: int, listener: socket.socket) -> None:
    """Run `work` in processes that accept from the listener, and replace those that die, until a signal.

    The first signal ends the workers after all requests are answered, the second at once.
    """
    workers: list[BaseProcess] = []
    signals = 0
    folder = tempfile.TemporaryDirectory(prefix="apac-metrics-")

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            for worker in workers:
                worker.kill()
            folder.cleanup()
            os._exit(KILLED)

    context = multiprocessing.get_context("spawn")  # a forked process cannot use the threads of torch
    with folder:
        os.environ[SHARED_FOLDER] = folder.name
        try:
            with handled_signals(handle):
                while not signals:
                    for worker in [worker for worker in workers if not worker.is_alive()]:
                        mark_process_dead(worker.pid)
                        workers.remove(worker)
                    while len(workers) < count:
                        worker = context.Process(target=work)
                        worker.start()
                        workers.append(worker)
                    time.sleep(POLL_SECONDS)
                listener.close()  # otherwise clients could still connect, to a queue that no worker reads
                for worker in workers:
                    worker.terminate()
                for worker in workers:
                    worker.join()
        finally:
            del os.environ[SHARED_FOLDER]


def end_with_parent() -> None:
    """End this worker when its parent is killed, so that a new server can listen at the same port."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(KILLED)

    threading.Thread(target=watch, name="apac-parent", daemon=True).start()
