"""The ranks of a torch.distributed process group; a process without one is a group of one rank."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from apac.errors import ApacError, InputError, RankError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Group:
    """This process among the ranks. A group of one rank does nothing.

    Every rank calls the same methods in the same order, like collectives of torch.distributed.

    >>> Group(rank=1, size=3).rows(10)
    slice(3, 6, None)
    >>> Group().gather("a value")
    ['a value']
    """

    rank: int = 0
    size: int = 1

    @staticmethod
    def current() -> Group:
        """Return the ranks of the process group, if one is initialized."""
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return Group()
        return Group(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this rank writes the files and reports the progress."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """Return the share of this rank in `count` rows: consecutive, and equal but for one row."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over the ranks, which is the same on all of them."""
        if self.size > 1:
            with _translate_rank_errors():
                torch.distributed.all_reduce(tensor)
        return tensor

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of the first rank."""
        if self.size > 1:
            with _translate_rank_errors():
                for tensor in tensors:
                    torch.distributed.broadcast(tensor, 0)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _translate_rank_errors():
            torch.distributed.all_gather_object(values, value)
        return values

    def on_first(self, action: Callable[[], Result]) -> Result:
        """Return what `action` returns on the first rank, the only one that calls it. If it fails, all ranks do."""
        if self.size == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.first:
            outcome = [*_outcome(action)]
        with _translate_rank_errors():
            torch.distributed.broadcast_object_list(outcome, 0)
        value, failure = outcome
        if failure is not None:
            raise agreed(failure)
        return value  # type: ignore[no-any-return]

    def together(self, action: Callable[[], Result]) -> Result:
        """Return what `action` returns on this rank. If it fails on some ranks, all of them raise the first error."""
        if self.size == 1:
            return action()
        value, failure = _outcome(action)
        self._raise_first(self.gather(failure))
        return value  # type: ignore[return-value]

    def share(
        self, run: Callable[[list[Item]], list[Result]], items: Iterable[Item], *, each: int, work: str
    ) -> Generator[Result, None, None]:
        """Yield the result of every item, in their order, on all ranks. A rank runs up to `each` of them at a time.

        `work` tells these items from all others, so that ranks notice if they do not share the same ones. After the
        last items, call `end_share`.
        """
        remaining = iter(items)
        while taken := list(islice(remaining, each * self.size)):
            own = taken[self.rank :: self.size]
            results = self._results(lambda: run(own), f"{len(taken)} of {work}")  # noqa: B023 (it is called at once)
            yield from (results[i % self.size][i // self.size] for i in range(len(taken)))

    def end_share(self) -> None:
        """Raise RankError if another rank has items to share that this one does not have."""
        if self.size > 1:
            self._results(list, "")

    def _results(self, action: Callable[[], Result], work: str) -> list[Result]:
        """Return what `action` returns on each rank. Raise the first error, or RankError if they do other work."""
        value, failure = _outcome(action)
        shares = self.gather((value, failure, work))
        self._raise_first([failure for _, failure, _ in shares])
        if any(other != work for _, _, other in shares):
            raise agreed(
                RankError(
                    "the ranks do not share the same work; start all of them with the same images and settings, on "
                    "processors of the same kind."
                )
            )
        return [value for value, _, _ in shares]

    def _raise_first(self, failures: list[ApacError | None]) -> None:
        """Raise the first of the errors of all ranks, if there is one."""
        failed = [rank for rank, error in enumerate(failures) if error is not None]
        if not failed:
            return
        error = failures[failed[0]]
        assert error is not None
        if len(failed) < self.size:
            error = type(error)(f"on rank {failed[0]} of {self.size}, {error}")
        raise agreed(error)

    def in_turns(self, action: Callable[[], Result]) -> Result:
        """Return what `action` returns on this rank, where it may find what another rank of its machine has stored.

        It is called on the first rank, then on the first rank of each other machine, then on all others.
        """
        machines = self.gather(machine())
        turn = 0 if self.first else 1 if machines.index(machine()) == self.rank else 2
        result: Any = None
        for now in range(3):
            found: Any = self.together(action if now == turn else lambda: None)
            result = found if now == turn else result
        return result  # type: ignore[no-any-return]

    def require_same(self, values: Mapping[str, Any]) -> None:
        """Raise InputError on all ranks if they do not have the same values, which names the first difference."""
        first, *others = self.gather(dict(values))
        for rank, other in enumerate(others, start=1):
            for name, value in first.items():
                if other.get(name) != value:
                    raise agreed(
                        InputError(
                            f"the ranks disagree: {name} is {value} on rank 0 and {other.get(name)} on rank {rank}; "
                            f"start all of them with the same command, version and data."
                        )
                    )


def machine() -> str:
    """Return a name that no other running machine has."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot}"


def agreed(error: ApacError) -> ApacError:
    """Mark an error that all ranks raise, so that only the first one needs to report it."""
    error.agreed = True
    return error


def _outcome(action: Callable[[], Result]) -> tuple[Result | None, ApacError | None]:
    try:
        return action(), None
    except ApacError as error:
        return None, type(error)(str(error))


@contextmanager
def _translate_rank_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("DataLoader worker"):  # its signal interrupts whatever the main thread does
            raise
        logging.getLogger("apac").debug("a collective failed", exc_info=True)
        raise RankError(
            "another rank has ended or cannot be reached, so this one ends too; its own message says why. Start all "
            "ranks again; a training continues from its last checkpoint with resume=True."
        ) from error
