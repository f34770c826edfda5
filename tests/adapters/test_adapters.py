"""Transforms of other libraries satisfy the contract of a deformation."""

from __future__ import annotations

import pickle
import random as python_random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import apac
from apac.adapters.transforms.seeded import SeededParameters
from apac.randomness import generator

SHAPE = (3, 16, 16)
N = 4


def torchvision_transform():
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


def add_noise(image: Tensor) -> Tensor:
    """Noise from the generators of torch, numpy and Python."""
    noise = torch.rand(image.shape) + torch.from_numpy(np.random.rand(*image.shape)) + python_random.random()
    return image.add_(noise.float())  # in place


MAKERS = {
    "torchvision": lambda **more: apac.from_torchvision(torchvision_transform(), **more),
    "kornia": lambda **more: apac.from_kornia(kornia_transform(), **more),
    "albumentations": lambda **more: apac.from_albumentations(albumentations_transform(), **more),
    "callable": lambda **more: apac.from_callable(add_noise, **more),
}


@pytest.fixture(params=MAKERS)
def u(request) -> apac.Deformation:
    return MAKERS[request.param]()


@pytest.fixture
def images(random) -> Tensor:
    return torch.rand(N, *SHAPE, generator=random)


def test_apply_is_pure_and_all_randomness_is_in_the_parameters(u, images, random):
    parameters = u.sample(N, SHAPE, generator=random)
    before = images.clone()
    first = u.apply(images, parameters)
    torch.rand(5), np.random.rand(5), python_random.random()
    assert torch.equal(u.apply(images, parameters), first)
    assert torch.equal(images, before)
    assert first.shape == images.shape and first.dtype == images.dtype
    with pytest.raises(TypeError):
        u.sample(N, SHAPE)


def test_every_image_has_independent_parameters_and_does_not_depend_on_its_neighbors(u, images, random):
    parameters = u.sample(N, SHAPE, generator=random)
    same = images[:1].expand(N, -1, -1, -1)
    virtual = u.apply(same, parameters)
    assert len({tuple(image.flatten().tolist()) for image in virtual}) == N
    for i in (0, N - 1):
        assert torch.equal(u.apply(same[i : i + 1], SeededParameters(parameters.seed[i : i + 1]))[0], virtual[i])


def test_one_row_of_parameters_serves_all_images(u, images, random):
    parameters = u.sample(1, SHAPE, generator=random)
    virtual = u.apply(images, parameters)
    for i in (0, N - 1):
        # libraries compute coordinates by matrix products, whose rounding depends on the number of images
        torch.testing.assert_close(u.apply(images[i : i + 1], parameters)[0], virtual[i], atol=1e-5, rtol=0)


def numpy_state() -> np.ndarray:
    state = np.random.get_state()
    assert isinstance(state, tuple)
    return state[1]


def test_the_global_generators_are_restored(u, images, random):
    parameters = u.sample(N, SHAPE, generator=random)
    states = torch.get_rng_state(), numpy_state(), python_random.getstate()
    u.apply(images, parameters)
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(numpy_state(), states[1])
    assert python_random.getstate() == states[2]


class Network(nn.Module):
    """A linear network with pooling, for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3 * 16, 4, generator=generator(3, "test", 0)))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1) @ self.weight


# Float32 matrix products of different batch sizes differ by the rounding of a logit.
LOGIT_ROUNDING = 1e-4


def test_decisions_do_not_depend_on_the_device_batch_and_passes_are_a_prefix(u, images):
    decided = [
        apac.Classifier(Network(), u, apac.FixedPasses(4), device_batch=size, seed=2).decide(images) for size in (1, 7)
    ]
    torch.testing.assert_close(decided[0].log_scores, decided[1].log_scores, atol=LOGIT_ROUNDING, rtol=0)
    classifier = apac.Classifier(Network(), u, apac.FixedPasses(8), seed=2)
    first, rest = classifier.score(images, 0, 4), classifier.score(images, 4, 8)
    torch.testing.assert_close(first.log_mean, decided[0].log_scores, atol=LOGIT_ROUNDING, rtol=0)
    in_one = classifier.decide(images)
    torch.testing.assert_close(first.merge(rest).log_mean, in_one.log_scores, atol=LOGIT_ROUNDING, rtol=0)


def test_independent_parameters_follow_from_the_pixels_of_an_image(u, images):
    classifier = apac.Classifier(Network(), u, apac.FixedPasses(4), independent=True)
    together = classifier.decide(images).log_scores
    alone = classifier.decide(images[3:4]).log_scores
    torch.testing.assert_close(alone, together[3:4], atol=LOGIT_ROUNDING, rtol=0)
    twice = classifier.decide(images[:1].repeat(2, 1, 1, 1)).log_scores
    torch.testing.assert_close(twice[0], twice[1], atol=LOGIT_ROUNDING, rtol=0)


def test_threads_do_not_interfere(u, images, random):
    all_parameters = [u.sample(N, SHAPE, generator=random) for _ in range(4)]
    expected = [u.apply(images, parameters) for parameters in all_parameters]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda parameters: u.apply(images, parameters), all_parameters))
    for result, alone in zip(results, expected, strict=True):
        assert torch.equal(result, alone)


def test_it_composes_with_built_in_kinds_and_per_class(images, random):
    u = apac.from_callable(lambda image: image + torch.rand(1))
    both = apac.Compose(apac.Flip(0.5), u)
    assert both.apply(images, both.sample(N, SHAPE, generator=random)).shape == images.shape
    distinctive = apac.PerClass({1: u}, default=apac.Flip(), classes=4)
    assert apac.Classifier(Network(), distinctive, apac.FixedPasses(3)).decide(images).passes.tolist() == [3] * N


@pytest.mark.parametrize("name", ["torchvision", "kornia"])
def test_gray_images_are_supported(name, images, random):
    plain = {"torchvision": lambda: torchvision_transform().transforms[0], "kornia": kornia_transform}[name]()
    u = {"torchvision": apac.from_torchvision, "kornia": apac.from_kornia}[name](plain)
    assert u.apply(images[:, :1], u.sample(N, (1, 16, 16), generator=random)).shape == (N, 1, 16, 16)


@pytest.mark.parametrize("name", ["torchvision", "kornia"])
def test_preprocessing_runs_before_and_after(name, images, random):
    def larger(image: Tensor) -> Tensor:
        batch = image if image.ndim == 4 else image[None]
        result = nn.functional.interpolate(batch, (24, 24))
        return result if image.ndim == 4 else result[0]

    u = MAKERS[name](before=larger, after=lambda image: (image - 0.5) / 0.25)
    bare = MAKERS[name]()
    parameters = u.sample(N, SHAPE, generator=random)
    expected = (bare.apply(larger(images), parameters) - 0.5) / 0.25
    torch.testing.assert_close(u.apply(images, parameters), expected)


def test_preprocessing_by_albumentations(images, random):
    albumentations = pytest.importorskip("albumentations")
    u = MAKERS["albumentations"](before=albumentations.Resize(24, 20), after=albumentations.Normalize(0.5, 0.25, 1.0))
    parameters = u.sample(N, SHAPE, generator=random)
    virtual = u.apply(images, parameters)
    assert virtual.shape == (N, 3, 24, 20)
    assert virtual.min() < -0.5
    assert MAKERS["albumentations"]().apply(images[:, :1], parameters).shape == (N, 1, 16, 16)


class Sized(nn.Module):
    """A network for normalized images of 24 × 24 only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3 * 24 * 24, 4, generator=generator(3, "test", 0)))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight


def larger(image: Tensor) -> Tensor:
    return nn.functional.interpolate(image[None], (24, 24))[0]


def normalized(image: Tensor) -> Tensor:
    return (image - 0.5) / 0.25


@pytest.mark.parametrize("rule", [apac.FixedPasses(4), apac.Certified(0.1, limit=32)], ids=repr)
def test_the_plain_prediction_includes_preprocessing_and_the_identity_gives_it(rule, images):
    expected = Sized()(normalized(nn.functional.interpolate(images, (24, 24)))).log_softmax(1).double()
    identity = apac.from_callable(lambda image: image, before=larger, after=normalized)
    for u in (identity, apac.Compose(identity), apac.PerClass({}, default=identity, classes=4)):
        classifier = apac.Classifier(Sized(), u, rule)
        torch.testing.assert_close(classifier.plain(images), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(classifier.decide(images).log_scores, expected, atol=1e-4, rtol=1e-4)


def test_shapes_that_vary_between_passes_are_rejected(images):
    u = apac.from_callable(lambda image: image[:, : 8 + int(torch.randint(2, ()))])
    for size in (1, 64):
        with pytest.raises(apac.InputError, match="returns images of different shapes"):
            apac.Classifier(Network(), u, apac.FixedPasses(8), device_batch=size).decide(images)


@pytest.mark.parametrize("rule", [apac.FixedPasses(4), apac.Certified(0.1, limit=32)], ids=repr)
def test_a_random_crop_needs_a_fixed_crop_for_the_plain_prediction(rule, images):
    def crop(image: Tensor) -> Tensor:
        top, left = torch.randint(0, 5, (2,)).tolist()
        return image[:, top : top + 12, left : left + 12]

    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    sentence = r"turns images \(3, 16, 16\) into \(3, 12, 12\), but without its random part.*\(3, 16, 16\); pass after="
    with pytest.raises(apac.InputError, match=sentence):
        apac.Classifier(network, apac.from_callable(crop), rule).decide(images)
    middle = apac.from_callable(crop, after=lambda image: image if image.shape[1] == 12 else image[:, 2:14, 2:14])
    assert apac.Classifier(network, middle, rule).decide(images).log_scores.shape == (N, 4)


@pytest.mark.parametrize("where", ["before", "after"])
def test_random_preprocessing_is_rejected(where, images):
    u = apac.from_callable(lambda image: image, **{where: add_noise})
    with pytest.raises(apac.InputError, match=r"before or after of from_callable.* is random"):
        apac.Classifier(Network(), u, apac.FixedPasses(2)).plain(images)


def test_preprocessing_restores_the_global_generators(images):
    albumentations = pytest.importorskip("albumentations")
    u = apac.from_albumentations(albumentations.HorizontalFlip(), after=albumentations.Normalize(max_pixel_value=1.0))
    np.random.seed(1)
    u.preprocess(images)
    after = np.random.rand()
    np.random.seed(1)
    assert np.random.rand() == after


def test_parts_after_a_resize_are_sampled_for_the_new_size(images, random):
    u = apac.Compose(apac.from_callable(lambda image: image, before=larger), apac.Elastic(), apac.Jitter())
    assert u.apply(images, u.sample(N, SHAPE, generator=random)).shape == (N, 3, 24, 24)


def test_seeding_gives_torch_numpy_and_python_independent_streams():
    from apac.randomness import seeding

    with seeding() as seed_all:
        draws = []
        for seed in range(300):
            seed_all(seed * 2**20 + 5)
            draws.append([int(torch.randint(2, ())), np.random.randint(2), python_random.randint(0, 1)])
    assert np.abs(np.corrcoef(np.array(draws).T) - np.eye(3)).max() < 0.25


def test_scores_are_not_cached_for_transforms_of_other_libraries(images, tmp_path):
    from apac.evaluation.fixed import evaluate

    classifier = apac.Classifier(Network(), apac.from_callable(add_noise))
    labels = torch.zeros(N, dtype=torch.long)
    with pytest.raises(apac.InputError, match="cannot be stored"):
        evaluate(classifier, images, labels, (2,), cache=tmp_path)
    assert evaluate(classifier, images, labels, (2,)).images == N


def test_it_pickles(images, random):
    u = apac.from_callable(add_noise, after=normalized)
    parameters = u.sample(N, SHAPE, generator=random)
    assert torch.equal(pickle.loads(pickle.dumps(u)).apply(images, parameters), u.apply(images, parameters))


def test_an_empty_batch_gives_an_empty_batch(u, random):
    assert u.apply(torch.zeros(0, *SHAPE), u.sample(1, SHAPE, generator=random)).shape == (0, *SHAPE)


class Counting:
    """A transform with state."""

    count = 0

    def __call__(self, image: Tensor) -> Tensor:
        self.count += 1
        return image + self.count


own_random = python_random.Random(0)


def own_generator(image: Tensor) -> Tensor:
    """A flip that draws from a generator of its own, which is never seeded."""
    return image.flip(-1) if own_random.random() < 0.5 else image


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Counting(), "from_callable(Counting) returns different images for the same image and seed"),
        (own_generator, "from_callable(own_generator) returns different images for the same image and seed"),
        (lambda image: image[:, : 2 + int(8 * torch.rand(()))], "returns images of different shapes"),
        (lambda image: image.long(), "must return a floating-point image (C, H, W), got torch.int64 (3, 16, 16)"),
        (lambda image: image.mean(), "must return a floating-point image (C, H, W), got torch.float32 ()"),
        (lambda image: image.numpy(), "got ndarray"),
        (lambda image: image.view(7, 7), "failed on a tensor of shape (3, 16, 16): shape '[7, 7]' is invalid"),
    ],
)
def test_an_unsuitable_transform_is_rejected_in_one_sentence(function, sentence, images, random):
    u = apac.from_callable(function)
    with pytest.raises(apac.InputError) as error:
        u.apply(images, u.sample(N, SHAPE, generator=random))
    assert sentence in str(error.value)


def test_a_kornia_transform_that_changes_the_batch_size_is_rejected(images, random):
    u = apac.from_kornia(lambda batch: torch.cat([batch, batch]))
    with pytest.raises(
        apac.InputError, match=r"must return one image for one image, a tensor \(1, C, H, W\), got \(2, 3, 16, 16\)"
    ):
        u.apply(images, u.sample(N, SHAPE, generator=random))


FIRST = {
    apac.from_callable: lambda: add_noise,
    apac.from_torchvision: lambda: add_noise,
    apac.from_kornia: kornia_transform,
    apac.from_albumentations: albumentations_transform,
}


@pytest.mark.parametrize(
    "maker", [apac.from_callable, apac.from_torchvision, apac.from_kornia, apac.from_albumentations]
)
def test_a_transform_that_is_not_callable_is_rejected(maker):
    with pytest.raises(apac.InputError, match=r"the transform of from_.* must be callable with an image, got 5"):
        maker(5)
    with pytest.raises(apac.InputError, match=r"the after of from_.* must be callable with an image, got 'resize'"):
        maker(FIRST[maker](), after="resize")


def test_a_missing_albumentations_gives_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(apac.InputError, match=r"albumentations is not installed; run: pip install .*\[adapters\]"):
        apac.from_albumentations(lambda image: image)


def test_albumentations_transforms_are_copied_and_others_rejected(images, random):
    pytest.importorskip("albumentations")
    with pytest.raises(apac.InputError, match="takes albumentations transforms, got <lambda>; use from_callable"):
        apac.from_albumentations(lambda image: image)
    mine = albumentations_transform()
    u = apac.from_albumentations(mine)
    parameters = u.sample(1, SHAPE, generator=random)
    array = images[0].permute(1, 2, 0).numpy()
    results = []
    for _ in range(2):
        u.apply(images, parameters)
        results.append(mine(image=array)["image"])
    assert not np.array_equal(*results)


def test_it_has_a_short_repr(u):
    assert repr(u).startswith("from_") and repr(u).endswith(")")


class Random:
    """An own random transform, followed by a deterministic step."""

    def __init__(self, step) -> None:
        self.step = step

    def __call__(self, image: Tensor) -> Tensor:
        return self.step(image.flip(-1) if torch.rand(()) < 0.5 else image)


@pytest.mark.parametrize(
    ("step", "warned"),
    [
        (lambda image: (image - 0.5) / 0.5, True),
        (lambda image: (image - 0.1307) / 0.3081, True),
        (lambda image: (image - 127.5) / 127.5, True),  # made for pixels in 0 … 255
        (lambda image: image, False),
        (lambda image: image + torch.randn(image.shape), False),
        (lambda image: image * torch.empty(()).uniform_(0.5, 1.5), False),
        (lambda image: torch.nn.functional.pad(image, (8, 8, 8, 8))[..., ::2, ::2], False),  # most of it is blank
    ],
)
def test_a_normalization_in_the_random_part_is_noticed(step, warned, random, caplog):
    u = apac.from_callable(Random(step))
    images = torch.rand(4, 3, 16, 16, generator=random)
    u(images, generator=random)
    assert not caplog.records  # training is right
    for _ in range(2):
        u.preprocess(images)
    assert [record.message for record in caplog.records if "after=..." in record.message] == [
        f"{u} changes the values of every image, as a normalization does, and the plain prediction is without it, "
        f"which makes APAC look better than it is: pass the normalization as after=... or before=..."
    ] * warned


def erased(image: Tensor) -> Tensor:
    image = image.clone()
    image[:, :8, :8] = 0
    return image


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_normalization_outside_of_the_random_part_is_right(place, random, caplog):
    u = apac.from_callable(Random(erased), **{place: lambda image: (image - 0.45) / 0.225})
    u.preprocess(torch.rand(4, 3, 16, 16, generator=random))
    assert not caplog.records
