"""Training on ranks: the weights of a single process, but for rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import apac
from ranked import on_ranks, trained

CONFIG = apac.TrainConfig(epochs=2, batch_size=20, learning_rate=0.02, seed=4, validation_fraction=0.2)


@pytest.mark.parametrize(
    ("ranks", "config"),
    [
        (2, CONFIG),
        (3, replace(CONFIG, optimizer="muon", ema_decay=0.9)),
    ],
    ids=["two ranks", "three ranks, seven rows at most, Muon and averaged weights"],
)
def test_the_weights_are_those_of_a_single_process(ranks, config):
    # In float64 only the order of the sums differs, so 1e-9 is rounding and nothing else. Images are float32: sampled
    # and deformed as in a single process.
    results = on_ranks(ranks, trained, config)
    alone = trained(config)
    for result in results:
        assert result["weights"].keys() == alone["weights"].keys()
        for name, tensor in alone["weights"].items():
            torch.testing.assert_close(result["weights"][name], tensor, atol=1e-9, rtol=1e-9, msg=name)
        for (loss, error), (expected, same) in zip(result["history"], alone["history"], strict=True):
            assert loss == pytest.approx(expected, rel=1e-6)  # float32
            assert error == same
    for name, tensor in results[0]["weights"].items():
        assert torch.equal(tensor, results[1]["weights"][name]), name
