"""How often answers of a probability were right: measured, stored and found again for the same rule only."""

from __future__ import annotations

import json
from dataclasses import replace
from threading import Thread

import pytest
import torch

import apac
from apac.evaluation.reliability import FILE, Reliability, find_reliability, measure_reliability, store
from apac.randomness import generator
from apac.runs.folder_lock import locked

U = apac.Homography(std=0.1)
FIXED = apac.FixedPasses(16)


def classifier(rule: apac.Rule = FIXED, **options) -> apac.Classifier:
    return apac.Classifier(lambda images: images.flatten(1), U, rule, **options)


def of(rule: str = "product", passes: int | None = 16, temperature: float = 1.0, right: int = 7) -> Reliability:
    confidence = torch.full((20, 2), 0.3, dtype=torch.float64).log()
    correct = torch.arange(20) < right
    deformation = apac.Compose() if rule == "plain" else U
    certified = apac.Certified() if passes is None else None
    return measure_reliability(
        rule, passes, confidence, correct, temperature=temperature, deformation=deformation, certified=certified
    )


def measured(confidence: torch.Tensor, correct: torch.Tensor) -> Reliability:
    both = torch.stack([confidence, 1 - confidence], dim=1).log()
    return measure_reliability("product", 4, both, correct, temperature=1.0, deformation=U)


def test_groups_count_the_right_answers_of_a_range_of_probabilities():
    confidence = torch.linspace(0.5, 0.9999, 1000, dtype=torch.float64)
    correct = torch.rand(1000, generator=generator(0, "test", 0)) < confidence
    found = measured(confidence, correct)
    assert (sum(found.images), sum(found.right)) == (1000, int(correct.sum()))
    assert min(found.images) >= 20
    such = found.bin_of(0.76)
    assert (such.low, such.high) == (0.7, 0.8)
    inside = (confidence > 0.7) & (confidence <= 0.8)
    assert (such.images, such.right) == (int(inside.sum()), int(correct[inside].sum()))
    assert such.accuracy == such.right / such.images


def test_groups_of_few_images_are_merged_with_their_neighbors():
    assert of().images == (20,)  # there are no more
    assert of().bin_of(0.99).images == 20
    confidence = torch.cat([torch.full((150,), 0.97), torch.full((15,), 0.65), torch.full((15,), 0.75)]).double()
    found = measured(confidence, confidence < 0.7)
    assert (found.images, found.right, found.bounds) == ((30, 150), (15, 0), (0.8, 1.0))
    found = measured(torch.tensor([0.55] * 25 + [0.99999] * 5).double(), torch.ones(30, dtype=torch.bool))
    assert (found.images, found.bounds) == ((30,), (1.0,))


def test_the_reliability_of_the_same_rule_is_found(tmp_path):
    store(tmp_path, [of("plain", 1), of(passes=4), of(passes=16), of("sum", 16), of(temperature=0.5, right=5)])
    assert find_reliability([tmp_path], classifier()) == of()
    assert find_reliability([tmp_path], classifier(combine="sum")) == of("sum", 16)
    assert find_reliability([tmp_path], classifier(temperature=0.5)) == of(temperature=0.5, right=5)
    assert find_reliability([tmp_path], classifier(), plain=True) == of("plain", 1)


def test_nothing_is_found_for_other_passes_another_temperature_or_another_deformation(tmp_path):
    store(tmp_path, [of()])
    assert find_reliability([tmp_path], classifier(apac.FixedPasses(17))) is None
    assert find_reliability([tmp_path], classifier(temperature=1.1)) is None
    assert find_reliability([tmp_path], replace(classifier(), deformation=apac.Homography(std=0.2))) is None
    assert find_reliability([tmp_path], classifier(apac.Certified())) is None  # 16 passes are few
    assert find_reliability([tmp_path / "elsewhere"], classifier()) is None
    assert find_reliability([None], classifier()) is None


def test_many_fixed_passes_stand_in_for_the_certified_rule_until_it_is_evaluated(tmp_path):
    store(tmp_path, [of(passes=64, right=3), of(passes=256, right=4)])
    assert find_reliability([tmp_path], classifier(apac.Certified())) == of(passes=256, right=4)
    store(tmp_path, [of(passes=None, right=9)])
    assert find_reliability([tmp_path], classifier(apac.Certified())) == of(passes=None, right=9)
    other = classifier(apac.Certified(limit=64))
    assert find_reliability([tmp_path], other) == of(passes=256, right=4)


def test_the_first_folder_comes_first(tmp_path):
    store(tmp_path / "own", [of(right=3)])
    store(tmp_path / "shipped", [of(), of("sum")])
    folders = [tmp_path / "own", tmp_path / "shipped"]
    assert find_reliability(folders, classifier()) == of(right=3)
    assert find_reliability(folders, classifier(combine="sum")) == of("sum")


def test_what_is_measured_again_replaces_what_was_stored(tmp_path):
    store(tmp_path, [of(right=1), of("sum", 16)])
    store(tmp_path, [of(right=2)])
    assert find_reliability([tmp_path], classifier()) == of(right=2)
    assert find_reliability([tmp_path], classifier(combine="sum")) == of("sum", 16)


@pytest.mark.parametrize("text", ["{", "[]", '{"reliability": [{}]}', '{"reliability": 3}'])
def test_a_damaged_file_says_nothing_and_is_replaced(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    assert find_reliability([tmp_path], classifier()) is None
    store(tmp_path, [of()])
    assert find_reliability([tmp_path], classifier()) == of()


@pytest.mark.parametrize(
    "values",
    [
        *({"temperature": value} for value in ("x", None, float("nan"), 10**400, 0)),
        *({"images": value} for value in (["a"], [0], [True], [10, 20], [], [5])),
        *({"right": value} for value in (["a"], [-1], [21], [2.5])),
        *({"bounds": [value]} for value in ("x", None, float("inf"))),
        *({"passes": value} for value in ([1], "16", 2.5)),
        *({"certified": value} for value in (5, [1], [None, 64], [0.1, "x"])),
        *({"rule": 5}, {"deformation": []}, {"other": 1}),
    ],
    ids=str,
)
def test_a_file_with_values_of_another_kind_says_nothing(values, tmp_path):
    store(tmp_path, [of()])
    payload = json.loads((tmp_path / FILE).read_text())
    payload["reliability"][0] |= values
    (tmp_path / FILE).write_text(json.dumps(payload))
    for rule in (FIXED, apac.Certified()):
        assert find_reliability([tmp_path], classifier(rule)) is None


def test_another_process_waits_until_a_file_that_is_being_changed_is_written(tmp_path):
    pytest.importorskip("fcntl")
    other = Thread(target=store, args=(tmp_path, [of("sum", 16)]))
    with locked(tmp_path):
        other.start()
        other.join(0.5)
        assert other.is_alive() and not (tmp_path / FILE).exists()
    other.join()
    assert find_reliability([tmp_path], classifier(combine="sum")) == of("sum", 16)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("name", ["mnist-cnn", "cifar10-cnn"])
def test_the_shipped_networks_have_the_reliability_of_their_own_rule(name):
    """Made by apac evaluate NAME --passes 1,4,16,64, also with --paper-rule, as reliability.json."""
    run = apac.load(name)
    assert run.choice is not None
    plain = replace(run.classifier(), temperature=run.choice.plain.temperature(apac.FixedPasses(1)))
    paper = run.classifier(paper_rule=True)
    for classifier, of_plain in ((run.classifier(), False), (plain, True), (paper, False), (paper, True)):
        found = find_reliability([run.folder], classifier, plain=of_plain)
        assert found is not None
        assert sum(found.images) == 10_000
        assert found.bin_of(0.9995).accuracy > found.bin_of(0.45).accuracy


def test_fewer_images_than_a_group_needs_are_not_stored(tmp_path):
    store(tmp_path, [measured(torch.full((19,), 0.9), torch.ones(19, dtype=torch.bool))])
    assert json.loads((tmp_path / FILE).read_text()) == {"reliability": []}
