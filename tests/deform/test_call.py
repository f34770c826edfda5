"""Deformations in a custom training loop: calls, DataLoader workers, layers of a network."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import apac
from apac.deform.rows import deform_rows
from apac.randomness import generator
from kinds import KINDS, PER_CLASS

SHAPE = (3, 12, 10)


@pytest.mark.parametrize("u", KINDS, ids=repr)
def test_a_call_samples_parameters_for_each_image_and_applies_them(u, random):
    images = torch.rand(4, *SHAPE, generator=random)
    parameters = u.sample(4, SHAPE, generator=generator(5, "test", 0))
    labels = torch.tensor([0, 1, 2, 3])
    for extra in ({}, {"labels": labels}):  # class-indistinctive kinds ignore labels
        assert torch.equal(u(images, generator=generator(5, "test", 0), **extra), u.apply(images, parameters))


@pytest.mark.parametrize("u", KINDS, ids=repr)
def test_a_call_without_a_generator_fails(u):
    with pytest.raises(TypeError, match="generator"):
        u(torch.zeros(2, *SHAPE))


def test_a_class_distinctive_call_uses_the_labels(random):
    u = apac.PerClass({1: apac.FeatureDropout(1.0)}, default=apac.Compose(), classes=2)
    images, labels = torch.ones(4, 1, 2, 2), torch.tensor([0, 1, 1, 0])
    assert u(images, generator=random, labels=labels).amax((1, 2, 3)).tolist() == [1, 0, 0, 1]
    for label in (1, torch.tensor(1)):
        assert u(images[0], generator=random, labels=label).max() == 0
    with pytest.raises(apac.InputError, match=r"according to its class; pass labels=\.\.\."):
        u(images, generator=random)


@pytest.mark.parametrize("u", [apac.presets.mnist(), apac.Color()], ids=repr)
def test_a_single_image_is_deformed_as_a_batch_of_one(u, random):
    image = torch.rand(*SHAPE, generator=random)
    single = u(image, generator=generator(5, "test", 0))
    assert single.shape == SHAPE
    assert torch.equal(single, u(image[None], generator=generator(5, "test", 0))[0])


def test_a_call_with_another_number_of_dimensions_is_rejected(random):
    with pytest.raises(
        apac.InputError, match=r"a batch \(N, C, H, W\) or one image \(C, H, W\), got the shape \(5, 5\)"
    ):
        apac.Flip()(torch.zeros(5, 5), generator=random)


def test_arguments_of_another_type_are_rejected_in_one_sentence(random):
    wrong: Any = None
    with pytest.raises(apac.InputError, match=r"generator must be a torch.Generator, got None"):
        apac.Flip()(torch.zeros(2, *SHAPE), generator=wrong)
    with pytest.raises(apac.InputError, match=r"images must be a tensor, .* got ndarray"):
        apac.Flip()(np.zeros((2, *SHAPE)), generator=random)  # type: ignore[arg-type]
    with pytest.raises(apac.InputError, match="a DeformationLayer takes a Deformation, got 3"):
        apac.DeformationLayer(3)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Offset(apac.Deformation):
    """A user-defined deformation with only sample and apply."""

    std: float = 1.0

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Any:
        return self.std * torch.randn(n, 1, 1, 1, generator=generator)

    def apply(self, images: Tensor, parameters: Any) -> Tensor:
        return images + parameters


class Deformed(Dataset[Tensor]):
    def __init__(self, deformation: apac.Deformation) -> None:
        self.deformation = deformation

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return self.deformation(torch.zeros(1, 8, 8), generator=torch.default_generator, labels=index)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
@pytest.mark.parametrize(
    "u",
    [Offset(), apac.Compose(Offset(), apac.presets.mnist()), apac.PerClass({}, default=Offset(), classes=8)],
    ids=repr,
)
def test_dataloader_workers_draw_different_parameters_and_repeat_them_for_the_same_seed(u):
    def epoch(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat(list(DataLoader(Deformed(u), batch_size=2, num_workers=2)))

    with torch.random.fork_rng():
        first, again, other = epoch(0), epoch(0), epoch(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first.flatten(1).unique(dim=0)) == 8


@pytest.mark.parametrize("u", [Offset(), *KINDS, PER_CLASS], ids=repr)
def test_a_pickled_deformation_gives_the_same_virtual_samples(u, random):
    images, labels = torch.rand(2, *SHAPE, generator=random), torch.tensor([0, 1])
    copies = [pickle.loads(pickle.dumps(u)), copy.deepcopy(u)]
    expected = u(images, generator=generator(5, "test", 0), labels=labels)
    for other in copies:
        assert torch.equal(other(images, generator=generator(5, "test", 0), labels=labels), expected)


def test_a_layer_deforms_in_training_mode_and_preprocesses_in_evaluation_mode():
    def halve(image: Tensor) -> Tensor:
        return image / 2

    u = apac.Compose(Offset(), apac.from_callable(lambda image: image, after=halve))
    model = nn.Sequential(apac.DeformationLayer(u), nn.Flatten())
    images = torch.ones(3, 1, 2, 2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = model.train()(images)
        following = model(images)
        torch.manual_seed(0)
        again = model(images)
    assert torch.equal(first, again)
    assert not torch.equal(first, following)
    assert len(first.unique(dim=0)) == 3
    assert torch.equal(model.eval()(images), torch.full((3, 4), 0.5))


def test_a_layer_forwards_labels_and_prints_its_deformation():
    layer = apac.DeformationLayer(apac.PerClass({0: apac.FeatureDropout(1.0)}, default=apac.Compose(), classes=2))
    images = torch.ones(2, 1, 2, 2)
    assert layer(images, torch.tensor([0, 1])).amax((1, 2, 3)).tolist() == [0, 1]
    with pytest.raises(apac.InputError, match="labels"):
        layer(images)
    assert repr(apac.DeformationLayer(apac.Flip(0.3))) == "DeformationLayer(Flip(probability=0.3))"
    assert not layer.state_dict()


@dataclass(frozen=True)
class Brighter(apac.Deformation):
    """As a user writes one: without a thought about devices."""

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return torch.rand(n, generator=generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return images + parameters[:, None, None, None]


def test_parameters_are_moved_to_the_device_of_the_images(random):
    images = torch.empty(4, *SHAPE, device="meta")
    assert Brighter()(images, generator=random).device.type == "meta"
    labels = torch.zeros(4, dtype=torch.long)
    assert deform_rows(Brighter(), images[1:3], slice(1, 3), generator=random, labels=labels).device.type == "meta"


class Squeezed(Brighter):
    def preprocess(self, images: Tensor) -> Tensor:
        return images / 2


@pytest.mark.parametrize(
    ("u", "expected"),
    [
        (apac.Flip(), False),
        (apac.Compose(), False),
        (apac.presets.photos(), False),
        (PER_CLASS, False),
        (Squeezed(), True),
        (apac.Compose(apac.Flip(), Squeezed()), True),
        (apac.PerClass({0: apac.Compose(Squeezed(), apac.Flip())}, default=Squeezed(), classes=2), True),
    ],
    ids=repr,
)
def test_a_deformation_tells_whether_it_preprocesses(u, expected):
    assert u.preprocesses == expected
