"""Training on ranks: the weights of a single process, but for rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import apac
from apac.distributed.ranks.gradients import GradientSum
from apac.distributed.ranks.group import Group
from ranked import on_ranks, trained, trained_and_refused

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
        assert result["refused"] == [
            "the ranks disagree: seed is 0 on rank 0 and 1 on rank 1; start all of them with the same command, version "
            "and data.",
            f"batch_size=1 leaves none of its virtual samples for some of {ranks} ranks; start fewer of them, or use a "
            f"larger batch_size.",
            f"on rank 1 of {ranks}, there is no data.",
            "the folder is full.",
        ]
    for name, tensor in results[0]["weights"].items():
        assert torch.equal(tensor, results[1]["weights"][name]), name


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_shares_of_the_ranks_are_all_rows_once(size):
    shares = [Group(rank, size).rows(20) for rank in range(size)]
    assert [row for share in shares for row in range(20)[share]] == list(range(20))
    assert max(s.stop - s.start for s in shares) - min(s.stop - s.start for s in shares) <= 1


def test_a_single_process_keeps_its_gradients_and_asks_itself_whether_to_stop():
    gradients = GradientSum(should_stop=lambda: True)
    loss = torch.tensor(2.0)
    assert gradients.share(5, 20, loss) is None
    assert gradients(torch.nn.Linear(1, 1), loss, None) is loss
    assert gradients.should_stop()
