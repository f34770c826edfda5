"""`apac` with a checkpoint after every few steps, for ranks that are killed: python tests/elastic.py train ..."""

from __future__ import annotations

import os

from apac.cli import main
from apac.distributed.ranks import exchange
from apac.runs import checkpointer

checkpointer.SECONDS_BETWEEN = 0.2
if "APAC_SEVERAL_MACHINES" in os.environ:  # no shared memory
    exchange.LARGEST = 0
main()
