"""Agents of torchrun, as if each were a machine of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SECONDS = 500  # for an agent to end, on a machine that is busy


def torchrun(log: Path, *arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    """Start an agent, which writes to the log what its ranks print."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, arguments)]
    with log.open("ab") as file:
        return subprocess.Popen(command, env=variables, stdout=file, stderr=file, start_new_session=True)


def host(log: Path, port: int, *arguments: object, first: bool) -> subprocess.Popen[bytes]:
    """Start the agent of one of two hosts with a rank each; the first host holds the rendezvous."""
    return torchrun(
        log,
        *("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 9, "--local-addr", "127.0.0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
        *("--rdzv-conf", f"is_host={str(first).lower()}"),
        *arguments,
        # Otherwise torchrun 2.13 tells a host that comes back no address: it waits for one until it fails.
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        APAC_SEVERAL_MACHINES="1",
    )


def ranks_of(agent: subprocess.Popen[bytes]) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]
    except OSError:
        return []


def kill_host(agent: subprocess.Popen[bytes]) -> None:
    """Kill the agent and its ranks, as if the machine had lost its power."""
    for pid in (agent.pid, *ranks_of(agent)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.wait()


def wait_until(reached: Callable[[], object], agent: subprocess.Popen[bytes]) -> None:
    """Wait until something is the case, or the agent has ended."""
    while not reached() and agent.poll() is None:
        time.sleep(0.05)


def succeeds(log: Path, *agents: subprocess.Popen[bytes]) -> bool:
    """Wait for the agents and return whether all of them succeeded; print the log if not."""
    try:
        done = [agent.wait(SECONDS) for agent in agents] == [0] * len(agents)
    except subprocess.TimeoutExpired:
        done = False
    finally:
        for agent in agents:
            if agent.poll() is None:
                kill_host(agent)
    if not done:
        print(log.read_text()[-5000:])
    return done


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
