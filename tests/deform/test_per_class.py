"""Class-distinctive deformation: each sample is deformed by the deformation of its class."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import apac
from apac import trees
from apac.randomness import generator

FLIP, IDENTITY = apac.Flip(1.0), apac.Compose()
untyped: Any = apac  # for arguments of the wrong type


def test_each_sample_is_deformed_by_the_deformation_of_its_class(random):
    u = apac.PerClass({1: FLIP, 2: FLIP}, default=IDENTITY, classes=4)
    images, labels = torch.rand(8, 1, 4, 6), torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    result = u.apply(images, u.sample(8, (1, 4, 6), generator=random, labels=labels))
    mirrored = (labels == 1) | (labels == 2)
    torch.testing.assert_close(result[mirrored], images[mirrored].flip(-1), atol=1e-5, rtol=0)
    assert torch.equal(result[~mirrored], images[~mirrored])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_labels_may_have_any_integer_type(dtype, random):
    u = apac.PerClass({1: FLIP}, default=IDENTITY, classes=3)
    parameters = u.sample(4, (1, 2, 2), generator=random, labels=torch.tensor([0, 1, 1, 2], dtype=dtype))
    assert parameters.set_index.tolist() == [0, 1, 1, 0]


def test_classes_with_equal_deformations_share_a_set():
    u = apac.PerClass({1: apac.Flip(0.3), 7: apac.Flip(0.3)}, default=apac.Elastic(), classes=10)
    assert u.sets == (apac.Elastic(), apac.Flip(0.3))
    assert u.set_of_class == (0, 1, 0, 0, 0, 0, 0, 1, 0, 0)


def test_with_one_set_the_result_is_that_of_the_set_itself():
    u = apac.presets.mnist()
    alike = apac.PerClass(dict.fromkeys(range(10), u), classes=10)
    images, labels = torch.rand(5, 1, 28, 28), torch.tensor([0, 3, 9, 3, 1])
    parameters = alike.sample(5, (1, 28, 28), generator=generator(1, "test", 0), labels=labels)
    plain = u.sample(5, (1, 28, 28), generator=generator(1, "test", 0))
    assert torch.equal(alike.apply(images, parameters), u.apply(images, plain))


def test_one_row_of_parameters_serves_all_images_of_its_class(random):
    u = apac.PerClass({0: FLIP}, default=IDENTITY, classes=2)
    parameters = u.sample(2, (1, 3, 3), generator=random, labels=torch.tensor([0, 1]))
    images = torch.rand(4, 1, 3, 3)
    torch.testing.assert_close(u.apply(images, trees.rows(parameters, slice(0, 1))), images.flip(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.PerClass({0: FLIP}, classes=3), "no deformation for class 1, 2; pass default="),
        (lambda: apac.PerClass({3: FLIP}, default=FLIP, classes=3), "must be between 0 and 2, got 3"),
        (lambda: untyped.PerClass({0.5: FLIP}, default=FLIP, classes=3), "must be integers, got"),
        (lambda: apac.PerClass({}, default=FLIP, classes=0), "classes of a PerClass must be an integer"),
        (lambda: untyped.PerClass({0: "flip"}, classes=1), "takes class-indistinctive deformations"),
        (
            lambda: apac.PerClass({0: apac.PerClass({0: FLIP}, classes=1)}, classes=1),
            "takes class-indistinctive deformations",
        ),
    ],
)
def test_a_wrong_per_class_is_rejected_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (None, "pass labels=..."),
        (torch.tensor([0, 1, 2]), "labels must be between 0 and 1"),
        (torch.tensor([0.0, 1.0, 1.0]), "labels must be integers"),
        (torch.tensor([0, 1]), "3 parameters need 3 labels"),
    ],
)
def test_labels_out_of_range_or_missing_are_rejected(labels, sentence, random):
    u = apac.PerClass({0: FLIP}, default=IDENTITY, classes=2)
    with pytest.raises(apac.InputError, match=sentence):
        u.sample(3, (1, 3, 3), generator=random, labels=labels)
