"""The sum of one tensor per rank, through shared memory and by a collective."""

from __future__ import annotations

import resource
import signal

import pytest
import torch

from apac.distributed.ranks import exchange as module
from apac.distributed.ranks.exchange import exchange
from apac.distributed.ranks.group import Group
from ranked import on_ranks

ROUNDS, VALUES = 50, 1001


def sums(blind_rank: int | None, full: bool = False) -> tuple[str, list[torch.Tensor]]:
    """Return the kind of exchange, and its sums of different values."""
    group = Group.current()
    if group.rank == blind_rank:
        module._opened = lambda path, token, size: None
    if full:  # the memory of the first rank cannot be had
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, most))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ranks = exchange(group, VALUES, torch.float64, torch.device("cpu"))
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    results = []
    for round_ in range(ROUNDS):
        ranks.own.copy_(values(round_, group.rank))
        results.append(ranks.sum().clone())
    return type(ranks).__name__, results


def values(round_: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * round_ + rank)
    return torch.randn(VALUES, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [((None,), "_SharedMemory"), ((2,), "_Collective"), ((None, True), "_Collective")],
    ids=["one machine", "a rank elsewhere", "no memory"],
)
def test_every_rank_has_the_sums_of_every_round(arguments, kind):
    expected = [sum(values(round_, rank) for rank in range(3)) for round_ in range(ROUNDS)]
    first, *_ = outcomes = on_ranks(3, sums, *arguments)
    for used, results in outcomes:
        assert used == kind
        for result, same, total in zip(results, first[1], expected, strict=True):
            assert torch.equal(result, same)
            torch.testing.assert_close(result, total, rtol=0, atol=1e-14)  # the order of three numbers near 1


def test_large_networks_are_left_to_the_collective(monkeypatch):
    monkeypatch.setattr(module, "_shared_memory", lambda group, size: pytest.fail("too large"))
    values = module.LARGEST // 8 + 1  # of a rank; two tables of float32
    assert type(exchange(Group(), values, torch.float32, torch.device("cpu"))).__name__ == "_Collective"


def test_memory_of_another_process_is_not_taken_for_the_ranks(tmp_path):
    size, token = module.TOKEN_BYTES + 8, b"t" * module.TOKEN_BYTES
    for content in (b"o" * size, token, token + b"123456789"):
        path = tmp_path / "memory"
        path.write_bytes(content)
        assert module._opened(str(path), token, size) is None
    path.write_bytes(token + b"12345678")
    assert module._opened(str(path), token, size) is not None
    assert module._opened(str(tmp_path / "nothing"), token, size) is None
