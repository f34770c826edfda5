"""Transforms of other libraries keep the promises of a deformation."""

from __future__ import annotations

import random as python_random
import sys
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import apac
from apac.adapters.seeded import Seeds
from apac.randomness import generator

SHAPE = (3, 16, 16)


def torchvision_transform():
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        # The wheel was built for CUDA: it lacks two operators of object detection, which no transform uses.
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torchvision_transform.keep = library
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomAffine(20, translate=(0.1, 0.1)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3)])


def kornia_transform():
    augmentation = pytest.importorskip("kornia.augmentation")
    parts = (
        augmentation.RandomAffine(20.0, p=1.0),
        augmentation.RandomHorizontalFlip(),
        augmentation.RandomGaussianNoise(),
    )
    return augmentation.AugmentationSequential(*parts, data_keys=["input"])


def albumentations_transform():
    albumentations = pytest.importorskip("albumentations")
    return albumentations.Compose(
        [
            albumentations.Affine(rotate=(-20, 20), p=1.0),
            albumentations.HorizontalFlip(),
            albumentations.RandomBrightnessContrast(),
        ]
    )


def noise_of_three(image: Tensor) -> Tensor:
    """From the generators of torch, numpy and Python."""
    noise = torch.rand(image.shape) + torch.from_numpy(np.random.rand(*image.shape)) + python_random.random()
    return image.add_(noise.float())  # in place


MAKERS = {
    "torchvision": lambda **more: apac.from_torchvision(torchvision_transform(), **more),
    "kornia": lambda **more: apac.from_kornia(kornia_transform(), **more),
    "albumentations": lambda **more: apac.from_albumentations(albumentations_transform(), **more),
    "callable": lambda **more: apac.from_callable(noise_of_three, **more),
}


@pytest.fixture(params=MAKERS)
def u(request) -> apac.Deformation:
    return MAKERS[request.param]()


@pytest.fixture
def images(random) -> Tensor:
    return torch.rand(12, *SHAPE, generator=random)


def test_apply_is_pure_and_all_randomness_is_in_the_parameters(u, images, random):
    theta = u.sample(12, SHAPE, generator=random)
    before = images.clone()
    first = u.apply(images, theta)
    torch.rand(5), np.random.rand(5), python_random.random()  # elsewhere
    assert torch.equal(u.apply(images, theta), first)
    assert torch.equal(images, before)
    assert first.shape == images.shape and first.dtype == images.dtype
    with pytest.raises(TypeError):
        u.sample(12, SHAPE)


def test_every_image_has_a_draw_of_its_own_which_its_neighbours_do_not_change(u, images, random):
    theta = u.sample(12, SHAPE, generator=random)
    same = images[:1].expand(12, -1, -1, -1)
    virtual = u.apply(same, theta)
    assert len({tuple(image.flatten().tolist()) for image in virtual}) == 12
    for i in (0, 5, 11):
        assert torch.equal(u.apply(same[i : i + 1], Seeds(theta.seed[i : i + 1]))[0], virtual[i])


def test_one_draw_serves_all_images(u, images, random):
    theta = u.sample(1, SHAPE, generator=random)
    virtual = u.apply(images, theta)
    for i in (0, 7):
        assert torch.equal(u.apply(images[i : i + 1], theta)[0], virtual[i])


def test_the_global_generators_are_left_as_they_were(u, images, random):
    theta = u.sample(12, SHAPE, generator=random)
    states = torch.get_rng_state(), np.random.get_state()[1], python_random.getstate()
    u.apply(images, theta)
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])
    assert python_random.getstate() == states[2]


class Network(nn.Module):
    """A linear network that pools, so that images of any size will do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3 * 16, 4, generator=generator(3, "test", 0)))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1) @ self.weight


def test_decisions_are_equal_for_any_device_batch_and_passes_are_a_prefix(u, images):
    decided = [
        apac.Classifier(Network(), u, apac.FixedPasses(16), device_batch=size, seed=2).decide(images)
        for size in (1, 7, 64)
    ]
    for other in decided[1:]:
        torch.testing.assert_close(other.log_scores, decided[0].log_scores, atol=1e-6, rtol=0)
        assert torch.equal(other.labels, decided[0].labels)
    whole = apac.Classifier(Network(), u, seed=2)
    first, rest = whole.score(images, 0, 16), whole.score(images, 16, 64)
    torch.testing.assert_close(first.log_mean, decided[0].log_scores, atol=1e-6, rtol=0)
    in_one = apac.Classifier(Network(), u, apac.FixedPasses(64), seed=2).decide(images)
    torch.testing.assert_close(first.merge(rest).log_mean, in_one.log_scores, atol=1e-6, rtol=0)


def test_independent_draws_know_an_image_by_its_pixels(u, images):
    classifier = apac.Classifier(Network(), u, apac.FixedPasses(4), independent=True)
    together = classifier.decide(images).log_scores
    torch.testing.assert_close(classifier.decide(images[3:4]).log_scores, together[3:4], atol=1e-6, rtol=0)
    twice = images[:1].repeat(2, 1, 1, 1)
    assert torch.equal(*classifier.decide(twice).log_scores)


def test_threads_do_not_disturb_each_other(u, images, random):
    thetas = [u.sample(12, SHAPE, generator=random) for _ in range(6)]
    alone = [u.apply(images, theta) for theta in thetas]
    found: list[Tensor | None] = [None] * 6

    def work(i: int) -> None:
        found[i] = u.apply(images, thetas[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, found, strict=True):
        assert torch.equal(one, other)


def test_a_composition_with_kinds_of_the_package_and_per_class(images, random):
    u = apac.from_callable(lambda image: image + torch.rand(1))
    both = apac.Compose(apac.Flip(0.5), u)
    assert both.apply(images, both.sample(12, SHAPE, generator=random)).shape == images.shape
    distinctive = apac.PerClass({1: u}, default=apac.Flip(), classes=4)
    assert apac.Classifier(Network(), distinctive, apac.FixedPasses(3)).decide(images).passes.tolist() == [3] * 12


@pytest.mark.parametrize("name", ["torchvision", "kornia"])
def test_fixed_preprocessing_goes_before_and_after(name, images, random):
    def larger(image: Tensor) -> Tensor:
        batch = image if image.ndim == 4 else image[None]
        result = nn.functional.interpolate(batch, (24, 24))
        return result if image.ndim == 4 else result[0]

    u = MAKERS[name](before=larger, after=lambda image: (image - 0.5) / 0.25)
    bare = MAKERS[name]()
    theta = u.sample(12, SHAPE, generator=random)
    expected = (bare.apply(larger(images), theta) - 0.5) / 0.25
    torch.testing.assert_close(u.apply(images, theta), expected)


def test_fixed_preprocessing_of_albumentations(images, random):
    albumentations = pytest.importorskip("albumentations")
    u = MAKERS["albumentations"](before=albumentations.Resize(24, 20), after=albumentations.Normalize(0.5, 0.25, 1.0))
    theta = u.sample(12, SHAPE, generator=random)
    virtual = u.apply(images, theta)
    assert virtual.shape == (12, 3, 24, 20)
    assert virtual.min() < -0.5
    assert MAKERS["albumentations"]().apply(images[:, :1], theta).shape == (12, 1, 16, 16)


def test_no_image_is_no_image(u, random):
    assert u.apply(torch.zeros(0, *SHAPE), u.sample(1, SHAPE, generator=random)).shape == (0, *SHAPE)


class Counting:
    """A transform with a memory."""

    count = 0

    def __call__(self, image: Tensor) -> Tensor:
        self.count += 1
        return image + self.count


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Counting(), "from_callable(Counting) makes another image of the same one with the same seed"),
        (lambda image: image[:, : 2 + int(8 * torch.rand(()))], "makes images of different shapes"),
        (lambda image: image.long(), "must make a floating-point image (C, H, W), got torch.int64 (3, 16, 16)"),
        (lambda image: image.mean(), "must make a floating-point image (C, H, W), got torch.float32 ()"),
        (lambda image: image.numpy(), "got ndarray"),
        (lambda image: image.view(7, 7), "failed on an image of shape (3, 16, 16): shape '[7, 7]' is invalid"),
    ],
)
def test_a_transform_that_cannot_serve_is_refused_in_one_sentence(function, sentence, images, random):
    u = apac.from_callable(function)
    with pytest.raises(apac.InputError) as refused:
        u.apply(images, u.sample(12, SHAPE, generator=random))
    assert sentence in str(refused.value)


def test_a_kornia_transform_that_changes_the_batch_is_refused(images, random):
    u = apac.from_kornia(lambda batch: torch.cat([batch, batch]))
    with pytest.raises(
        apac.InputError, match=r"must make one image of one, a tensor \(1, C, H, W\), got \(2, 3, 16, 16\)"
    ):
        u.apply(images, u.sample(12, SHAPE, generator=random))


@pytest.mark.parametrize(
    "maker", [apac.from_callable, apac.from_torchvision, apac.from_kornia, apac.from_albumentations]
)
def test_what_cannot_be_called_is_refused(maker):
    with pytest.raises(apac.InputError, match="takes a transform that can be called with an image, got 5"):
        maker(5)
    with pytest.raises(apac.InputError, match="takes a after that can be called with an image, got 'resize'"):
        maker(lambda image: image, after="resize")


def test_a_missing_albumentations_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(apac.InputError, match=r"albumentations is not installed; .*\[adapters\]"):
        apac.from_albumentations(lambda image: image)


def test_it_prints_its_name_and_is_not_stored(u):
    assert repr(u).startswith("from_") and repr(u).endswith(")")
    with pytest.raises(apac.InputError, match="cannot be stored in a run; give it to a Classifier"):
        u.to_json()
