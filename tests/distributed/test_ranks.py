"""Training on ranks: the weights of a single process, but for rounding."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest
import torch

import apac
from apac.distributed.ranks.gradients import GradientSum
from apac.distributed.ranks.group import Group
from apac.distributed.ranks.layers import whole_batches
from apac.errors import RankError
from ranked import on_ranks, trained, trained_and_refused
from threaded_ranks import on_threads

ALIKE = "start all of them with the same command, version and data."
CONFIG = apac.TrainConfig(epochs=2, batch_size=20, learning_rate=0.02, seed=4, validation_fraction=0.2)
THREE = replace(CONFIG, optimizer="muon", ema_decay=0.9)


@pytest.mark.parametrize(
    ("ranks", "config"),
    [(2, CONFIG), pytest.param(3, THREE, marks=pytest.mark.slow)],
    ids=["two ranks", "three ranks, uneven shares, Muon and averaged weights"],
)
def test_the_weights_are_those_of_a_single_process_and_errors_reach_all_ranks(ranks, config):
    results = on_ranks(ranks, trained_and_refused, config)
    alone = trained(config)
    for result in results:
        assert result["weights"].keys() == alone["weights"].keys()
        # In float64 only the order of the sums differs, so 1e-9 leaves room for rounding and for nothing else.
        for name, tensor in alone["weights"].items():
            torch.testing.assert_close(result["weights"][name], tensor, atol=1e-9, rtol=1e-9, msg=name)
        for (loss, error), (expected, same) in zip(result["history"], alone["history"], strict=True):
            assert loss == pytest.approx(expected, rel=1e-6)  # the loss of each step is summed in float32
            assert error == same
        assert [re.sub(r"\(digest \w+\)", "(D)", sentence) for sentence in result["refused"]] == [
            "the ranks disagree: seed is 0 on rank 0 and 1 on rank 1; start all of them with the same command, version "
            "and data.",
            f"batch_size=1 leaves none of its virtual samples for some of {ranks} ranks; start fewer of them, or use a "
            f"larger batch_size.",
            f"the ranks disagree: out is None on rank 0 and run on rank 1; {ALIKE}",
            f"the ranks disagree: cache is pixels on rank 0 and None on rank 1; {ALIKE}",
            f"the ranks disagree: the network is Double of 16 tensors (D) on rank 0 and Sequential of 16 tensors (D) "
            f"on rank 1; {ALIKE}",
            f"on rank 1 of {ranks}, there is no data.",
            "the folder is full.",
        ]
    for name, tensor in results[0]["weights"].items():
        assert torch.equal(tensor, results[1]["weights"][name]), name


@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalization_of_bfloat16_on_ranks_is_that_of_a_single_process(affine, random, monkeypatch):
    def summed(group: Group, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(torch.stack(group.gather(tensor.clone())).sum(dim=0))

    monkeypatch.setattr(Group, "sum_", summed)
    x = (3 * torch.randn(20, 4, 5, 5, generator=random) + 1).bfloat16()
    dy = torch.randn(20, 4, 5, 5, generator=random).bfloat16()

    def normalized(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        layer, rows = torch.nn.BatchNorm2d(4, affine=affine), group.rows(20)
        own = x[rows].clone().requires_grad_()
        with whole_batches(layer, group, 20):
            y = layer(own)
        y.backward(dy[rows])
        assert own.grad is not None
        return y.detach(), own.grad

    y, dx = (torch.cat(parts) for parts in zip(*on_threads(2, normalized), strict=True))
    own = x.clone().requires_grad_()
    expected = torch.nn.BatchNorm2d(4, affine=affine)(own)
    expected.backward(dy)
    # one unit in the last of 8 bits
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=2**-8)
    torch.testing.assert_close(dx, own.grad, rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_shares_of_the_ranks_are_all_rows_once(size):
    shares = [Group(rank, size).rows(20) for rank in range(size)]
    assert [row for share in shares for row in range(20)[share]] == list(range(20))
    assert max(s.stop - s.start for s in shares) - min(s.stop - s.start for s in shares) <= 1


def test_one_rank_of_each_machine_goes_before_the_others(monkeypatch):
    own, order = threading.local(), []
    monkeypatch.setattr("apac.distributed.ranks.group.machine", lambda: own.machine)

    def called(group: Group) -> int:
        own.machine = "first" if group.rank < 2 else "second"
        return group.in_turns(lambda: order.append(group.rank) or group.rank)

    assert on_threads(5, called) == [0, 1, 2, 3, 4]
    assert order[:2] == [0, 2] and sorted(order[2:]) == [1, 3, 4]


@pytest.mark.parametrize("items", [0, 1, 7, 12])
def test_ranks_share_items_and_all_of_them_have_every_result_in_order(items):
    ran: list[list[int]] = [[], [], []]

    def shared(group: Group) -> list[int]:
        def run(own: list[int]) -> list[int]:
            ran[group.rank] += own
            return [10 * item for item in own]

        results = list(group.share(run, range(items), each=2, work="numbers"))
        group.end_share()
        return results

    assert on_threads(3, shared) == [[10 * item for item in range(items)]] * 3
    assert sorted(item for own in ran for item in own) == list(range(items))
    assert max(map(len, ran)) <= -(-items // 3) + 1


def test_an_item_that_fails_on_one_rank_fails_on_all_of_them():
    def fail(items: list[int]) -> list[int]:
        if 4 in items:
            raise apac.InputError("item 4 is bad.")
        return items

    def shared(group: Group) -> str:
        with pytest.raises(apac.InputError) as refused:
            list(group.share(fail, range(9), each=2, work="numbers"))
        return str(refused.value)

    assert on_threads(3, shared) == ["on rank 1 of 3, item 4 is bad."] * 3


@pytest.mark.parametrize(("counts", "works"), [((5, 4), ("a", "a")), ((5, 9), ("a", "a")), ((4, 4), ("a", "b"))])
def test_ranks_that_do_not_share_the_same_work_are_told(counts, works):
    def shared(group: Group) -> str:
        with pytest.raises(RankError) as refused:
            list(group.share(list, range(counts[group.rank]), each=2, work=works[group.rank]))
            group.end_share()
        return str(refused.value)

    for sentence in on_threads(2, shared):
        assert sentence.startswith("the ranks do not share the same work; start all of them with the same images")


def test_a_single_process_keeps_its_gradients_and_asks_itself_whether_to_stop():
    gradients = GradientSum(should_stop=lambda: True)
    loss = torch.tensor(2.0)
    assert gradients.share(5, 20, loss) is None
    assert gradients(torch.nn.Linear(1, 1), loss, None) is loss
    assert gradients.should_stop()
