"""Error as a function of M, compared with an independent count; every pass is computed once."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss
from torch import Tensor, nn

import apac
from apac import models
from apac.evaluation.calibration import fit_temperature
from apac.evaluation.fixed import evaluate
from apac.evaluation.reliability import measure_each
from apac.randomness import generator

U = apac.Homography(std=0.3)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """In float64: rounding does not change a label."""
    return models.build("mnist-cnn", generator=generator(1, "test", 0)).double().eval()


@pytest.fixture
def part(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:60].double(), digits[1][:60]


def test_errors_are_those_of_separate_decisions_for_each_m(network, part):
    images, labels = part
    result = evaluate(apac.Classifier(network, U, seed=3), images, labels, (8, 1, 3))
    truth = labels.numpy()
    assert [row.passes for row in result.rows] == [1, 3, 8]
    for row in result.rows:
        rule = apac.FixedPasses(row.passes)
        product = apac.Classifier(network, U, rule, seed=3).decide(images)
        by_sum = apac.Classifier(network, U, rule, seed=3, combine="sum").decide(images)
        assert row.product == (product.labels.numpy() != truth).mean()
        assert row.sum == (by_sum.labels.numpy() != truth).mean()
        assert row.top2 == (product.top(2).numpy() != truth[:, None]).all(1).mean()
    with torch.no_grad():
        plain = network(images).numpy()
    assert result.plain == (plain.argmax(1) != truth).mean()
    assert result.plain_top2 == (np.argsort(-plain)[:, :2] != truth[:, None]).all(1).mean()


def test_corrected_corrupted_and_wrong_images_are_listed(network, part):
    images, labels = part
    result = evaluate(apac.Classifier(network, U), images, labels, (4,))
    apac_right = (apac.Classifier(network, U, apac.FixedPasses(4)).decide(images).labels == labels).numpy()
    with torch.no_grad():
        plain_right = (network(images).argmax(1) == labels).numpy()
    assert result.corrected == tuple(np.flatnonzero(apac_right & ~plain_right))
    assert result.corrupted == tuple(np.flatnonzero(plain_right & ~apac_right))
    assert result.wrong == tuple(np.flatnonzero(~apac_right))
    assert result.corrected or result.corrupted
    changed = len(result.corrected) + len(result.corrupted)
    assert result.mcnemar == pytest.approx(stats.binomtest(len(result.corrected), changed).pvalue)


def test_every_pass_is_computed_once_for_all_m_and_both_combinations(network, part):
    count = 0

    def counting(images: Tensor) -> Tensor:
        nonlocal count
        count += len(images)
        return network(images)

    evaluate(apac.Classifier(counting, U), part[0], part[1], (1, 4, 16))
    assert count == 60 * (1 + 16)  # the plain pass and the 16 passes of the largest M


def test_top_2_is_ranked_by_the_product_and_not_by_the_sum():
    """Class 2 is likely once and impossible once: second by the sum, last by the product."""
    passes = iter([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.85, 0.15, 1e-12]])  # the plain one, then two

    def network(images: Tensor) -> Tensor:
        return torch.tensor([next(passes)], dtype=torch.float64).log()

    result = evaluate(apac.Classifier(network, U, device_batch=1), torch.zeros(1, 1, 4, 4), torch.tensor([2]), (2,))
    assert result.scores is not None
    assert result.scores.probability_mean[0].argsort(descending=True).tolist() == [0, 2, 1]
    assert result.scores.log_mean[0].argsort(descending=True).tolist() == [0, 1, 2]
    assert result.rows[0].top2 == 1.0


def test_without_passes_only_the_plain_prediction_is_evaluated(network, part):
    result = evaluate(apac.Classifier(network, apac.Compose()), part[0], part[1], ())
    assert result.rows == ()
    assert result.scores is None
    assert len(result.wrong) == round(result.plain * 60)


def test_json_and_csv_contain_the_table(network, part):
    result = evaluate(apac.Classifier(network, U), part[0], part[1], (1, 2))
    payload = json.loads(json.dumps(result.to_json()))
    assert payload["images"] == 60
    assert [row["product"] for row in payload["rows"]] == [row.product for row in result.rows]
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [line["rule"] for line in lines] == ["plain", "apac", "apac"]
    assert float(lines[2]["sum_error"]) == result.rows[1].sum
    assert [(part["rule"], part["passes"]) for part in payload["measures"]] == [
        ("plain", 1),
        *((rule, passes) for passes in (1, 2) for rule in ("product", "sum")),
    ]
    by_sum = result.measures_of("sum", 2)
    assert float(lines[2]["sum_calibrated_nll"]) == by_sum.calibrated.nll.value
    assert float(lines[2]["sum_aurc_se"]) == by_sum.uncalibrated.aurc.standard_error
    assert (
        float(lines[0]["product_nll"])
        == float(lines[0]["sum_nll"])
        == result.measures_of("plain").uncalibrated.nll.value
    )


def test_measures_are_those_of_the_probabilities_of_decisions(network, part):
    images, labels = part
    result = evaluate(apac.Classifier(network, U, seed=3), images, labels, (2, 8))
    for combine in ("product", "sum"):
        rule = apac.FixedPasses(8)
        decision = apac.Classifier(network, U, rule, seed=3, combine=combine).decide(images)
        found = result.measures_of(combine)
        assert (found.rule, found.passes) == (combine, 8)
        expected = log_loss(labels, decision.probabilities, labels=range(10))
        assert found.uncalibrated.nll.value == pytest.approx(expected, rel=1e-9)
    assert result.held_out == 0
    with pytest.raises(
        apac.InputError, match="'product' with 3 passes was not evaluated; choose among plain with 1, product with"
    ):
        result.measures_of("product", 3)


def test_temperatures_are_fitted_on_held_out_images_which_get_the_same_passes(network, part):
    images, labels = part[0][:40], part[1][:40]
    apart = (part[0][40:], part[1][40:])
    seen: list[str] = []
    classifier = apac.Classifier(network, U, seed=3)
    result = evaluate(
        classifier,
        images,
        labels,
        (2, 4),
        held_out=apart,
        progress=lambda task, done, total, note="": seen.append(task),
    )
    assert result.held_out == 20
    assert set(seen) == {"deciding", "deciding held-out images"}
    decision = replace(classifier, rule=apac.FixedPasses(4)).decide(apart[0])
    expected = fit_temperature(decision.log_scores, apart[1])
    assert result.measures_of("product", 4).temperature == pytest.approx(expected, rel=1e-6)
    assert result.measures_of("plain").temperature == pytest.approx(
        fit_temperature(classifier.plain(apart[0]), apart[1]), rel=1e-6
    )


@pytest.mark.parametrize(
    ("held_out", "sentence"),
    [
        (3, r"held_out must be a pair \(images, labels\), got int"),
        (
            (torch.zeros(2, 1, 28, 28), torch.zeros(3, dtype=torch.long)),
            r"in held_out, labels must be integers of shape",
        ),
        ((torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.long)), "in held_out, images must hold at least one"),
        ((torch.zeros(1, 1, 28, 28).double(), torch.tensor([10])), "labels must be between 0 and 9"),
    ],
)
def test_wrong_held_out_images_are_rejected_in_one_sentence(network, part, held_out, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        evaluate(apac.Classifier(network, U), part[0], part[1], (1,), held_out=held_out)


def test_the_reliability_belongs_to_the_temperature_of_each_rule(network, part, monkeypatch):
    monkeypatch.setattr("apac.evaluation.reliability.MIN_IMAGES", 1)  # so that there is more than one group
    result = evaluate(apac.Classifier(network, U), part[0], part[1], (2,))
    found = measure_each(result.scored, part[1], U, lambda rule, passes: float(passes))
    assert [(of.rule, of.passes, of.temperature) for of in found] == [
        ("plain", 1, 1.0),
        ("product", 2, 2.0),
        ("sum", 2, 2.0),
    ]
    decision = apac.Classifier(network, U, apac.FixedPasses(2), temperature=2.0).decide(part[0])
    counted = found[1]
    assert sum(counted.right) == int((decision.labels == part[1]).sum())
    inside = decision.probabilities.amax(dim=1) <= counted.bounds[0]
    assert counted.images[0] == int(inside.sum()) < 60


def test_progress_counts_every_pass_once(network, part):
    seen = []
    evaluate(
        apac.Classifier(network, U),
        part[0],
        part[1],
        (2, 5),
        progress=lambda task, done, total, note="": seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (5, 5)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, np.uint8])
def test_labels_are_integers_of_any_type(network, part, kind):
    images, labels = part
    converted = labels.numpy().astype(kind) if isinstance(kind, type) else labels.to(kind)
    classifier = apac.Classifier(network, U)
    found, expected = (evaluate(classifier, images, given, (1,)) for given in (converted, labels))
    assert (found.rows, found.wrong) == (expected.rows, expected.wrong)


@pytest.mark.parametrize(
    ("labels", "passes", "sentence"),
    [
        (torch.full((60,), 10), (1,), "labels must be between 0 and 9 for a network of 10 classes, got 10 to 10"),
        (torch.full((60,), -1), (1,), "labels must be between 0 and 9"),
        (torch.zeros(59, dtype=torch.long), (1,), r"integers of shape \(60,\), one per image, got torch.int64 \(59,\)"),
        (torch.zeros(60), (1,), "labels must be integers .*, got torch.float32"),
        (torch.zeros(60, dtype=torch.bool), (1,), "labels must be integers .*, got torch.bool"),
        (torch.zeros(60, dtype=torch.long), (4, 0), "of at least 1, got 0"),
        (torch.zeros(60, dtype=torch.long), 3, r"passes must be a sequence of integers, such as \(1, 4, 16\), got 3"),
    ],
)
def test_wrong_labels_or_passes_are_rejected_in_one_sentence(network, part, labels, passes, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        evaluate(apac.Classifier(network, U), part[0], labels, passes)


def test_no_images_are_rejected(network):
    with pytest.raises(apac.InputError, match="at least one image to evaluate"):
        evaluate(apac.Classifier(network, U), torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.long))


def test_labels_may_be_a_list_of_integers():
    classifier = apac.Classifier(lambda images: images.flatten(1), apac.Compose())
    images = torch.eye(4).view(4, 1, 2, 2)
    assert evaluate(classifier, images, [0, 1, 2, 0], (1,)).wrong == (3,)
    with pytest.raises(apac.InputError, match="labels must be integers, one per image, got a list"):
        evaluate(classifier, images, ["a", "b", "c", "d"], (1,))  # type: ignore[list-item]
