"""apac serve"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from apac.cli.errors import handle_errors
from apac.errors import InputError, Interrupted, require
from apac.serve.limits import Limits
from apac.validation import MAX_INTEGER


@handle_errors
def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders from apac train, mnist-cnn, cifar10-cnn or cifar10-modern.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at. Any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 chooses a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token that clients send as a bearer token.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with its own copy of the networks.")] = 1,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait for their first pass.")] = Limits.queue,
    max_images: Annotated[int, typer.Option(min=1, help="Images of a request.")] = Limits.images,
    max_passes: Annotated[int, typer.Option(min=16, help="Passes of an image.")] = Limits.passes,
    max_megapixels: Annotated[int, typer.Option(min=1, max=50, help="Megapixels of all image files of a request.")] = (
        Limits.pixels // 1_000_000
    ),
    max_megabytes: Annotated[int, typer.Option(min=1, max=256, help="Size of a request in MiB.")] = (
        Limits.body_bytes >> 20
    ),
    max_seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Time of a decision.")] = Limits.seconds,
    seed: Annotated[int, typer.Option(min=0, max=MAX_INTEGER, help="Seed of requests that name none.")] = 0,
) -> None:
    """Serve runs by HTTP: a page to draw or drop an image on, and the Open Inference Protocol v2.

    Example:  apac serve mnist-cnn    and open http://127.0.0.1:8000

    Example:  curl -F image=@seven.jpg http://127.0.0.1:8000/classify

    Example:  apac serve runs/photos cifar10-cnn --host 0.0.0.0 --token-file token

    SIGTERM or Ctrl-C stops the server after all requests are answered, with status 0 or 130; a second one stops it at
    once.
    """
    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, extra="serve")
    import torch

    from apac.serve.server import LOCAL, Configuration
    from apac.serve.server import serve as run_server

    token = None if token_file is None else _read_token(token_file)
    if token is None and host not in LOCAL:
        raise InputError(f"--host {host} lets other machines in; give a token by --token-file.")
    if max_images > queue:
        raise InputError(f"--max-images {max_images} must not exceed --queue {queue}.")
    limits = Limits(
        body_bytes=max_megabytes << 20,
        images=max_images,
        pixels=max_megapixels * 1_000_000,
        passes=max_passes,
        seconds=max_seconds,
        queue=queue,
    )
    threads = max(1, torch.get_num_threads() // workers)
    configuration = Configuration(tuple(map(str, runs)), host, port, token, workers, threads, seed, limits)
    if run_server(configuration, _print_address) == signal.SIGINT:
        raise Interrupted("stopped; all accepted requests were answered.")


def _print_address(names: Sequence[str], address: str) -> None:
    print(f"serving {', '.join(names)} at {address}", flush=True)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"the token file {path} cannot be read; write one line of ASCII text to it.") from None
    if len(token) < 16 or not token.isprintable() or " " in token:
        raise InputError(f"the token in {path} must have at least 16 characters and no spaces.")
    return token
