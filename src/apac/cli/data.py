"""apac data"""

from __future__ import annotations

from typing import Annotated

import typer

from apac.cli.errors import handle_errors
from apac.cli.terminal import show_progress


@handle_errors
def fetch(name: Annotated[str, typer.Argument(help="mnist or cifar10.", show_default=False)]) -> None:
    """Download a data set and verify it.

    Example:  apac data fetch mnist
    """
    from apac import data

    with show_progress() as progress:
        path = data.fetch(name, progress=progress)
    print(path)


@handle_errors
def path() -> None:
    """Print the folder of the downloaded data (the environment variable APAC_DATA overrides it).

    Example:  apac data path
    """
    from apac import data

    print(data.cache_folder())
