"""How often answers of a probability were right: measured, stored and found again for the same rule only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import apac
from apac.evaluation.reliability import FILE, Reliability, find_reliability, measure_reliability, store

U = apac.Homography(std=0.1)
FIXED = apac.FixedPasses(16)


def classifier(rule: apac.Rule = FIXED, **options) -> apac.Classifier:
    return apac.Classifier(lambda images: images.flatten(1), U, rule, **options)


def of(rule: str = "product", passes: int | None = 16, temperature: float = 1.0, right: int = 7) -> Reliability:
    confidence = torch.full((10, 2), 0.3, dtype=torch.float64).log()
    correct = torch.arange(10) < right
    return measure_reliability(rule, passes, confidence, correct, temperature=temperature, deformation=U)


def test_groups_have_equal_sizes_and_count_the_right_answers():
    confidence = torch.linspace(0.5, 1, 1000, dtype=torch.float64)
    correct = torch.arange(1000) % 10 < torch.arange(1000) // 100  # more and more
    both = torch.stack([confidence, 1 - confidence], dim=1).log()
    found = measure_reliability("product", 4, both, correct, temperature=1.0, deformation=U)
    assert found.images == (50,) * 20
    assert sum(found.right) == int(correct.sum())
    lowest, highest = found.such_answers(0.3), found.such_answers(1.0)
    assert (lowest.accuracy, highest.accuracy) == (0.0, 0.9)
    assert found.such_answers(0.76).accuracy == 0.5  # of images 500 to 549


def test_equal_probabilities_are_one_group():
    assert of().images == (10,)
    confidence = torch.cat([torch.full((150,), 0.999), torch.full((50,), 0.6)]).double()
    both = torch.stack([confidence, 1 - confidence], dim=1).log()
    found = measure_reliability("plain", 1, both, torch.ones(200, dtype=torch.bool), temperature=1.0, deformation=U)
    assert found.images == (50, 150)


def test_the_reliability_of_the_same_rule_is_found(tmp_path):
    store(tmp_path, [of("plain", 1), of(passes=4), of(passes=16), of("sum", 16), of(temperature=0.5, right=5)])
    assert find_reliability(tmp_path, classifier()) == of()
    assert find_reliability(tmp_path, classifier(combine="sum")) == of("sum", 16)
    assert find_reliability(tmp_path, classifier(temperature=0.5)) == of(temperature=0.5, right=5)
    assert find_reliability(tmp_path, classifier(), plain=True) == of("plain", 1)


def test_nothing_is_found_for_other_passes_another_temperature_or_another_deformation(tmp_path):
    store(tmp_path, [of()])
    assert find_reliability(tmp_path, classifier(apac.FixedPasses(17))) is None
    assert find_reliability(tmp_path, classifier(temperature=1.1)) is None
    assert find_reliability(tmp_path, replace(classifier(), deformation=apac.Homography(std=0.2))) is None
    assert find_reliability(tmp_path, classifier(apac.Certified())) is None  # 16 passes are few
    assert find_reliability(tmp_path / "elsewhere", classifier()) is None
    assert find_reliability(None, classifier()) is None


def test_many_fixed_passes_stand_in_for_the_certified_rule_until_it_is_evaluated(tmp_path):
    store(tmp_path, [of(passes=64, right=3), of(passes=256, right=4)])
    assert find_reliability(tmp_path, classifier(apac.Certified())) == of(passes=256, right=4)
    store(tmp_path, [of(passes=None, right=9)])
    assert find_reliability(tmp_path, classifier(apac.Certified())) == of(passes=None, right=9)


def test_what_is_measured_again_replaces_what_was_stored(tmp_path):
    store(tmp_path, [of(right=1), of("sum", 16)])
    store(tmp_path, [of(right=2)])
    assert find_reliability(tmp_path, classifier()) == of(right=2)
    assert find_reliability(tmp_path, classifier(combine="sum")) == of("sum", 16)


@pytest.mark.parametrize("text", ["{", "[]", '{"reliability": [{}]}', '{"reliability": 3}'])
def test_a_damaged_file_says_nothing_and_is_replaced(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    assert find_reliability(tmp_path, classifier()) is None
    store(tmp_path, [of()])
    assert find_reliability(tmp_path, classifier()) == of()
