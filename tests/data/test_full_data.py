"""The full sets, from fetching to a decision. Run with: scripts/test -m data"""

from __future__ import annotations

import pytest

import apac
from apac import data
from apac.evaluation.fixed import evaluate

pytestmark = pytest.mark.data


def test_after_an_epoch_on_mnist_apac_is_as_good_as_plain_and_better_than_one_pass(tmp_path):
    apac.train("mnist-cnn", "mnist", config=apac.TrainConfig(epochs=1), out=tmp_path / "run")
    run = apac.load(tmp_path / "run")
    test = data.load("mnist")
    result = evaluate(run.classifier(), run.normalize(test.test_images), test.test_labels, (1, 32))
    assert result.plain < 0.06
    assert result.rows[1].product < result.rows[0].product / 2
    # After one epoch the two rules are alike but for chance: three standard deviations of the changed decisions.
    assert len(result.corrupted) - len(result.corrected) < 3 * (len(result.corrupted) + len(result.corrected)) ** 0.5


def test_an_epoch_on_whitened_cifar10_learns_and_stores_the_whitening(tmp_path):
    config = apac.TrainConfig(epochs=1, batch_size=50, learning_rate=0.02)
    made = apac.train("cifar10-cnn", "cifar10", config=config, out=tmp_path / "run")
    assert made.history[-1].validation_error < 0.65
    run = apac.load(tmp_path / "run")
    test = data.load("cifar10")
    images = run.normalize(test.test_images[:500])
    assert abs(float(images.mean())) < 0.05
    assert evaluate(run.classifier(), images, test.test_labels[:500], (16,)).rows[0].product < 0.65
