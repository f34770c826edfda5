"""`apac` with a checkpoint after every few steps, for ranks that are killed: python tests/elastic.py train ..."""

from __future__ import annotations

from apac.cli import main
from apac.runs import checkpointer

checkpointer.SECONDS_BETWEEN = 0.2
main()
