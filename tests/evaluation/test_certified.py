"""The certified rule on labeled images: statistics as in numpy, and the comparison with a fixed number of passes."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from dataclasses import fields, replace
from threading import local

import numpy as np
import pytest
import torch
from torch import Tensor

import apac
from apac.classify.decision import TENSORS, Decision
from apac.classify.scores import Scores
from apac.distributed.ranks.group import Group
from apac.errors import RankError
from apac.evaluation.certified import (
    Agreement,
    CertifiedEvaluation,
    Difference,
    compare,
    decisions_csv,
    evaluate_certified,
)
from apac.randomness import generator
from apac.runs.storage import read_tensors, write_tensors
from decisions import make_decision
from file_jobs import file_classifier
from threaded_ranks import on_threads

RULE = apac.Certified(error=1e-3, limit=96)
KINDS = ("clear", "unclear", "noise", "sometimes opposed", "nan in the end")
COUNTS = (180, 6, 2, 4, 2)  # of each kind
COUNT = sum(COUNTS)


def mixed() -> tuple[apac.Classifier, Tensor]:
    """Return a classifier and images of five kinds, encoded in their first pixel. The logits change with every pass."""
    kinds = torch.tensor([kind for kind, count in enumerate(COUNTS) for _ in range(count)])
    kinds = kinds[torch.randperm(len(kinds), generator=generator(0, "test", 0))]
    images = torch.zeros(len(kinds), 1, 2, 1)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = kinds, torch.arange(len(kinds))
    calls, random = dict.fromkeys(range(len(kinds)), 0), generator(1, "test", 0)

    def network(batch: Tensor) -> Tensor:
        logits = torch.zeros(len(batch), 3, dtype=torch.float64)
        logits[:, 2] = -5.0
        noise = torch.randn(len(batch), generator=random, dtype=torch.float64)
        for row, (kind, number) in enumerate(batch[:, 0, :, 0].long().tolist()):
            calls[number] += 1
            name = KINDS[kind]
            if name == "clear":
                logits[row, number % 2] = 20.0
            elif name == "unclear":
                logits[row, 1] = 6.0 + noise[row]
            elif name == "noise":
                logits[row, 0] = noise[row]
            elif name == "sometimes opposed":
                logits[row, 0] = -40.0 if calls[number] % 16 == 5 else 25.0
            elif calls[number] > 20:
                logits[row, 1] = math.nan
        return logits

    return apac.Classifier(network, apac.Compose(), RULE, device_batch=8, seed=7), images


@pytest.fixture(scope="module")
def evaluated() -> tuple[CertifiedEvaluation, Tensor]:
    classifier, images = mixed()
    labels = torch.arange(len(images)) % 3
    return evaluate_certified(classifier, images, labels), labels


def test_statistics_agree_with_numpy(evaluated):
    result, labels = evaluated
    decision = result.decision
    passes, stopped = decision.passes.numpy(), np.array(decision.stopped)
    assert result.images == len(labels) == sum(COUNTS)
    assert result.mean == pytest.approx(np.mean(passes))
    assert result.median == pytest.approx(np.median(passes))
    assert result.percentile99 == pytest.approx(np.percentile(passes, 99))
    assert result.unsettled == np.sum(stopped == "limit")
    assert result.wrong == pytest.approx(np.mean(decision.labels.numpy() != labels.numpy()))
    assert result.clipped == np.sum((stopped == "certified") & (decision.clipped.numpy() > 0))
    assert result.failed == np.sum(stopped == "nan")
    assert (result.rule, result.seed) == (RULE, 7)
    assert result.seconds > 0


def test_each_kind_of_image_is_counted_once(evaluated):
    result, _ = evaluated
    assert result.unsettled == COUNTS[2]
    assert result.clipped == COUNTS[3]
    assert result.failed == COUNTS[4]
    assert result.decision.stopped.count("certified") == sum(COUNTS[:2]) + COUNTS[3]
    assert len(result.decision.passes.unique()) > 3


def test_a_clipped_image_that_is_not_certified_is_not_counted_as_clipped():
    leads = itertools.cycle([40.0, -40.0])

    def network(images: Tensor) -> Tensor:
        return torch.tensor([[next(leads), 0.0]], dtype=torch.float64)

    classifier = apac.Classifier(network, apac.Compose(), apac.Certified(limit=32), device_batch=1)
    result = evaluate_certified(classifier, torch.zeros(1, 1, 1, 1), torch.tensor([0]))
    assert result.decision.clipped[0] > 0
    assert result.unsettled == 1
    assert result.clipped == 0


def test_the_decision_is_that_of_the_classifier(evaluated):
    result, _ = evaluated
    classifier, images = mixed()
    decision = classifier.decide(images)
    for name in ("labels", "passes", "clipped"):
        assert torch.equal(getattr(decision, name), getattr(result.decision, name))
    assert decision.stopped == result.decision.stopped


def test_several_ranks_share_the_passes_and_have_the_decisions_of_one_process(monkeypatch):
    classifier = replace(file_classifier().classifier, rule=RULE, device_batch=4)
    images = torch.rand(50, 1, 8, 8, generator=generator(0, "test", 0))  # several blocks of work in each pass
    labels = torch.zeros(50, dtype=torch.int64)
    expected = evaluate_certified(classifier, images, labels).decision
    groups = local()
    monkeypatch.setattr(Group, "current", staticmethod(lambda: groups.own))
    seen = [0, 0, 0]

    def evaluate_on(group: Group) -> Decision:
        groups.own = group

        def network(batch: Tensor) -> Tensor:
            seen[group.rank] += len(batch)
            return classifier.network(batch)

        return evaluate_certified(replace(classifier, network=network), images, labels).decision

    for decision in on_threads(3, evaluate_on):
        assert decision.stopped == expected.stopped
        for name in TENSORS:
            assert torch.equal(getattr(decision, name), getattr(expected, name)), name
    assert len(images) < min(seen)
    assert max(seen) < 0.5 * sum(seen)


@pytest.mark.parametrize("change", ["error", "seed", "images"])
def test_ranks_that_do_not_decide_alike_are_told(monkeypatch, change):
    images = torch.rand(50, 1, 8, 8, generator=generator(0, "test", 0))
    groups = local()
    monkeypatch.setattr(Group, "current", staticmethod(lambda: groups.own))

    def evaluate_on(group: Group) -> str:
        groups.own, other = group, bool(group.rank)
        rule = replace(RULE, error=0.5) if change == "error" and other else RULE
        seed = 1 if change == "seed" and other else 0
        classifier = replace(file_classifier().classifier, rule=rule, seed=seed, device_batch=4)
        decided = images.flip(3) if change == "images" and other else images
        with pytest.raises(RankError) as refused:
            evaluate_certified(classifier, decided, torch.zeros(50, dtype=torch.int64))
        return str(refused.value)

    for sentence in on_threads(2, evaluate_on):
        assert sentence.startswith("the ranks do not share the same work")


def test_json_contains_all_but_the_decision(evaluated):
    result, _ = evaluated
    payload = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert payload["rule"] == {"kind": "Certified", "error": 1e-3, "limit": 96, "clip": 30.0}
    assert "decision" not in payload
    for name in ("images", "seed", "wrong", "mean", "median", "percentile99", "unsettled", "clipped", "failed"):
        assert payload[name] == getattr(result, name)


def test_a_cached_decision_is_reused_and_a_damaged_one_is_recomputed(tmp_path):
    classifier, images = mixed()
    labels, file = torch.arange(len(images)) % 3, tmp_path / "scores" / "cached.safetensors"
    first = evaluate_certified(classifier, images, labels, cache=file)

    def fail(images: Tensor) -> Tensor:
        if images.any():
            raise AssertionError("computed again")
        return torch.zeros(len(images), 3)  # a blank image tells the number of classes

    again = evaluate_certified(replace(classifier, network=fail), images, labels, cache=file)
    assert again.to_json() == first.to_json()
    assert again.decision.stopped == first.decision.stopped
    for field in fields(first.decision):
        if field.name not in ("stopped", "combine"):
            torch.testing.assert_close(
                getattr(again.decision, field.name), getattr(first.decision, field.name), atol=0, rtol=0, equal_nan=True
            )
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(AssertionError, match="computed again"):
        evaluate_certified(replace(classifier, network=fail), images, labels, cache=file)


@pytest.mark.parametrize(
    "values",
    [
        *({"labels": value} for value in (torch.zeros(COUNT), torch.full((COUNT,), 3), torch.full((COUNT,), -2))),
        *({"labels": value} for value in (torch.zeros(COUNT, 2, dtype=torch.int64), torch.tensor(0))),
        *(
            {"passes": value}
            for value in (torch.zeros(COUNT, dtype=torch.bool), torch.zeros(COUNT - 1, dtype=torch.int64))
        ),
        *({"margins": torch.zeros(COUNT, 3).double()}, {"log_scores": torch.zeros(COUNT, 0).double()}),
        {"other": torch.zeros(COUNT).double()},
    ],
    ids=lambda values: " ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in values.items()),
)
def test_a_cached_decision_of_another_kind_is_recomputed(values, tmp_path):
    classifier, images = mixed()
    labels, file = torch.arange(len(images)) % 3, tmp_path / "cached.safetensors"
    evaluate_certified(classifier, images, labels, cache=file)

    def fail(images: Tensor) -> Tensor:
        raise AssertionError("computed again")

    tensors, metadata = read_tensors(file, "", lambda shapes: None)
    for changed in ((tensors | values, metadata), (tensors, metadata | {"stopped": "unknown " * len(images)})):
        write_tensors(file, *changed)
        with pytest.raises(AssertionError, match="computed again"):
            evaluate_certified(replace(classifier, network=fail), images, labels, cache=file)


def test_progress_is_reported():
    classifier, images = mixed()
    seen = []
    evaluate_certified(
        classifier, images, torch.zeros(len(images), dtype=torch.long), progress=lambda *a: seen.append(a[1:3])
    )
    assert seen[-1] == (len(images), len(images))


def test_csv_has_one_line_per_image_with_its_label(evaluated):
    result, labels = evaluated
    text = decisions_csv(result.decision, labels)
    assert text.endswith("\n")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [int(line["image"]) for line in lines] == list(range(sum(COUNTS)))
    columns = {
        "truth": labels,
        "label": result.decision.labels,
        "runner_up": result.decision.runners_up,
        "margin": result.decision.margins,
        "margin_error": result.decision.margin_errors,
        "passes": result.decision.passes,
        "clipped": result.decision.clipped,
        "probability": result.decision.probabilities.max(dim=1).values,
    }
    assert list(lines[0]) == ["image", *columns, "stopped", "settled", "file"]
    for name, values in columns.items():
        np.testing.assert_array_equal([float(line[name]) for line in lines], values.double().numpy())
    assert tuple(line["stopped"] for line in lines) == result.decision.stopped
    assert [line["settled"] for line in lines] == [str(why == "certified") for why in result.decision.stopped]


def scores_of(log_means: list[list[float]], passes: int = 1000, probabilities: list[list[float]] | None = None):
    log = torch.tensor(log_means, dtype=torch.float64)
    probability = log.exp() if probabilities is None else torch.tensor(probabilities, dtype=torch.float64)
    return Scores(passes, passes * log, passes * log.square(), passes * probability, passes * probability.square())


def test_decisions_that_more_passes_change_are_listed_with_both_margins():
    decision = make_decision(
        ["certified", "certified", "limit", "limit", "nan", "certified"],
        labels=[0, 1, 2, 1, -1, 2],
        margins=[3.0, 0.25, 0.1, 0.2, math.nan, 0.5],
        margin_errors=[0.1, 0.05, 0.3, 0.3, math.nan, 0.125],
        passes=[32, 640, 1000, 1000, 16, 48],
    )
    scores = scores_of(
        [
            [-0.1, -3.0, -4.0],
            [-4.0, -1.0, -0.75],  # 2 instead of 1
            [-0.5, -2.0, -1.0],  # 0 instead of 2, which was not certain
            [-2.0, -0.5, -1.0],
            [-0.5, -2.0, -1.0],
            [-0.25, -2.0, -1.0],  # 0 instead of 2
        ]
    )
    agreement = compare(decision, scores, torch.tensor([0, 1, 2, 0, 0, 0]), 12.5)
    assert agreement == Agreement(
        passes=1000,
        certified=3,
        differ=(
            Difference(1, certified=1, fixed=2, passes=640, margin=0.25, margin_error=0.05, fixed_margin=0.25),
            Difference(5, certified=2, fixed=0, passes=48, margin=0.5, margin_error=0.125, fixed_margin=0.75),
        ),
        differ_at_limit=(2,),
        wrong=3 / 6,
        seconds=12.5,
    )
    payload = json.loads(json.dumps(agreement.to_json(), allow_nan=False))
    assert payload["differ"][1] == {
        "image": 5,
        "certified": 2,
        "fixed": 0,
        "passes": 48,
        "margin": 0.5,
        "margin_error": 0.125,
        "fixed_margin": 0.75,
    }
    assert (payload["passes"], payload["certified"], payload["differ_at_limit"], payload["wrong"]) == (
        1000,
        3,
        [2],
        0.5,
    )


def test_decisions_by_the_sum_are_compared_with_decisions_by_the_sum():
    """Class 1 by the product, class 0 by the sum."""
    scores = scores_of([[-2.0, -1.0]], probabilities=[[0.625, 0.375]])
    labels = torch.tensor([0])
    by_sum = compare(make_decision(["certified"], log_scores=[[-2.0, -1.0]], combine="sum"), scores, labels, 1.0)
    by_product = compare(make_decision(["certified"], log_scores=[[-2.0, -1.0]]), scores, labels, 1.0)
    assert (by_sum.differ, by_sum.wrong) == ((), 0.0)
    assert by_product.differ[0].fixed_margin == 1.0
    assert by_product.wrong == 1.0
    other = compare(
        make_decision(["certified"], labels=1, log_scores=[[-2.0, -1.0]], combine="sum"), scores, labels, 1.0
    )
    assert other.differ[0].fixed_margin == 0.25


def test_decisions_agree_with_their_own_scores():
    classifier, images = mixed()
    chosen = images[[kind in (0, 1) for kind in images[:, 0, 0, 0].tolist()]]
    decision = classifier.decide(chosen)
    agreement = compare(decision, classifier.score(chosen, 0, 64), decision.labels, 0.5)
    assert agreement.differ == agreement.differ_at_limit == ()
    assert (agreement.certified, agreement.wrong, agreement.passes) == (len(chosen), 0.0, 64)


def test_both_resolve_ties_to_the_lower_class_index():
    agreement = compare(make_decision(["limit"], margins=0.0), scores_of([[-1.0, -1.0]]), torch.tensor([0]), 1.0)
    assert agreement.differ_at_limit == ()


def test_a_rule_that_is_not_certified_is_rejected():
    classifier = apac.Classifier(lambda images: images.flatten(1), apac.Compose(), apac.FixedPasses(4))
    with pytest.raises(apac.InputError, match=r"must be a Certified, got FixedPasses\(passes=4\)"):
        evaluate_certified(classifier, torch.zeros(2, 1, 1, 3), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize(
    ("count", "labels", "sentence"),
    [
        (3, torch.zeros(2, dtype=torch.long), r"labels must be integers of shape \(3,\)"),
        (3, torch.zeros(3), "labels must be integers .*, got torch.float32"),
        (3, torch.zeros(3, 1, dtype=torch.long), r"one per image, got torch.int64 \(3, 1\)"),
        (0, torch.zeros(0, dtype=torch.long), "at least one image to evaluate"),
        pytest.param(
            3,
            torch.full((3,), 9),
            "labels must be between 0 and 2",
        ),
    ],
)
def test_wrong_labels_are_rejected_in_one_sentence(count, labels, sentence):
    classifier = apac.Classifier(lambda images: 20 * images.flatten(1), apac.Compose(), apac.Certified(limit=16))
    with pytest.raises(apac.InputError, match=sentence):
        evaluate_certified(classifier, torch.ones(count, 1, 1, 3), labels)
