"""apac data"""

from __future__ import annotations

from typing import Annotated

import typer

from apac.refusal import kindly
from apac.terminal import watched


@kindly
def fetch(name: Annotated[str, typer.Argument(help="mnist or cifar10.", show_default=False)]) -> None:
    """Download a data set, check its digests and keep it.

    Example:  apac data fetch mnist
    """
    from apac import data

    with watched() as progress:
        path = data.fetch(name, progress=progress)
    print(path)


@kindly
def path() -> None:
    """Print the folder of the downloaded data (the environment variable APAC_DATA overrides it).

    Example:  apac data path
    """
    from apac import data

    print(data.cache_folder())
