"""Pixels are deformed in 0 … 1 and standardized afterwards, in training and testing, for every kind and library."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import apac
from apac.data.normalize import Standardization
from apac.randomness import generator
from kinds import KINDS

SHAPE = (3, 12, 12)
CONFIG = apac.TrainConfig(epochs=1, batch_size=20, validation_fraction=0.25, seed=1)


def from_kornia() -> apac.Deformation:
    augmentation = pytest.importorskip("kornia.augmentation")
    return apac.from_kornia(augmentation.ColorJiggle(0.3, 0.3, 0.3, 0.1, p=1.0))


def from_torchvision() -> apac.Deformation:
    transforms = pytest.importorskip("torchvision.transforms.v2")
    return apac.from_torchvision(transforms.ColorJitter(0.3, 0.3))


def from_albumentations() -> apac.Deformation:
    albumentations = pytest.importorskip("albumentations")
    return apac.from_albumentations(albumentations.RandomBrightnessContrast(p=1.0))


def darken(image: Tensor) -> Tensor:
    return (image * torch.rand(())).clamp(0, 1)


DEFORMATIONS = [
    *((repr(u), lambda u=u: u) for u in KINDS),
    ("kornia", from_kornia),
    ("torchvision", from_torchvision),
    ("albumentations", from_albumentations),
    ("callable", lambda: apac.from_callable(darken)),
]
every_deformation = pytest.mark.parametrize(
    "make", [make for _, make in DEFORMATIONS], ids=[n for n, _ in DEFORMATIONS]
)


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """Dark images with little contrast: standardized values are far from 0 … 1."""
    pixels = torch.randint(20, 60, (40, *SHAPE), generator=generator(0, "test", 0)).byte()
    return pixels, torch.arange(40) % 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 4))


@every_deformation
def test_a_pass_deforms_pixels_in_0_to_1_and_then_standardizes_them(make, data):
    u = make()
    run = apac.train(network(), data, u, config=CONFIG)
    pixels = data[0][:5].float() / 255
    assert isinstance(run.normalization, Standardization)
    mean, deviation = run.normalization.mean[:, None, None], run.normalization.deviation[:, None, None]
    assert float(((pixels - mean) / deviation).abs().max()) > 1.5  # a clamp to 0 … 1 would show
    classifier = run.classifier(apac.FixedPasses(3), seed=7)
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for number in range(3):
        parameters = u.sample(1, SHAPE, generator=generator(7, "pass", number))
        virtual = (u.apply(pixels, parameters) - mean) / deviation
        expected += run.network(virtual).log_softmax(1).double().detach() / 3
    decided = classifier.decide(run.normalize(data[0][:5])).log_scores
    # 1e-4: the rounding of a matrix product, which differs between batch sizes
    torch.testing.assert_close(decided, expected, atol=1e-4, rtol=0)
    plain = run.network((u.preprocess(pixels) - mean) / deviation).log_softmax(1)
    torch.testing.assert_close(classifier.plain(pixels), plain.double(), atol=1e-4, rtol=0)


@every_deformation
def test_training_deforms_pixels_in_0_to_1_and_then_standardizes_them(make, data):
    u = make()
    seen: list[Tensor] = []

    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, images: Tensor) -> Tensor:
            if self.training:
                seen.append(images.detach().clone())
            return self.inner(images)

    run = apac.train(Recorder(), data, u, config=CONFIG)
    random = generator(1, "training step", 0)
    kept = torch.randperm(40, generator=generator(1, "held out", 0))[10:]
    index = torch.randint(30, (20,), generator=random)
    pixels, labels = data[0][kept][index].float() / 255, data[1][kept][index]
    virtual = u(pixels, generator=random, labels=labels)
    torch.testing.assert_close(seen[0], run.normalization.standardize(virtual), atol=1e-5, rtol=0)


def test_a_color_deformation_that_changes_nothing_changes_no_training(data):
    identity = apac.Color(gamma=(1, 1), cast=0)
    with_color = apac.train(network(), data, identity, config=CONFIG)
    without = apac.train(network(), data, apac.Jitter(std=0.0), config=CONFIG)
    # Not bit for bit: pixel ** 1 may round.
    for ours, theirs in zip(with_color.network.parameters(), without.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_the_stored_run_decides_alike(data, tmp_path):
    run = apac.train("own_networks:linear", data, apac.Color(), config=CONFIG, out=tmp_path / "run")
    again = apac.load(tmp_path / "run")
    images = run.normalize(data[0])
    rule = apac.FixedPasses(4)
    assert torch.equal(run.classifier(rule).decide(images).log_scores, again.classifier(rule).decide(images).log_scores)


@pytest.mark.parametrize("u", [apac.Color(), apac.Compose(apac.Flip(), apac.Color())], ids=repr)
def test_a_deformation_of_pixels_is_refused_where_the_values_are_not_pixels(u, data):
    with pytest.raises(apac.InputError, match=r'ZCA whitening comes before .* use normalization="standardization"'):
        apac.train("cifar10-cnn", "cifar10", u)
    with pytest.raises(apac.InputError, match=r"expects pixels in 0 … 1, got values from -2.* to 2"):
        apac.train(network(), (torch.linspace(-2, 2, 40 * 432).view(40, *SHAPE), data[1]), u)
    with pytest.raises(apac.InputError, match="standardize after the deformation"):
        apac.Classifier(network(), u).decide(torch.linspace(-2, 2, 432).view(1, *SHAPE))
    apac.Classifier(network(), u, apac.FixedPasses(1)).decide(torch.linspace(-0.2, 1.2, 432).view(1, *SHAPE))


@pytest.mark.parametrize("make", [from_kornia, from_torchvision, from_albumentations])
def test_a_librarys_transform_expects_pixels_if_it_clamps(make):
    assert make().expects_pixels
    with pytest.raises(apac.InputError, match="expects pixels in 0 … 1"):
        apac.Classifier(network(), make()).decide(torch.linspace(-2, 2, 432).view(1, *SHAPE))


def test_a_librarys_transform_that_moves_pixels_takes_any_values():
    transforms = pytest.importorskip("torchvision.transforms.v2")
    u = apac.from_torchvision(transforms.RandomAffine(15))
    assert not u.expects_pixels
    apac.Classifier(network(), u, apac.FixedPasses(1)).decide(torch.linspace(-2, 2, 432).view(1, *SHAPE))


def test_a_librarys_transform_that_is_rarely_applied_expects_pixels_too():
    albumentations = pytest.importorskip("albumentations")
    assert apac.from_albumentations(albumentations.RandomBrightnessContrast(p=0.1)).expects_pixels


def shifted() -> apac.Deformation:
    """A pipeline with a normalization of its own."""
    return apac.from_callable(darken, after=lambda image: (image - 0.2) * 20)


def test_a_standardization_is_fitted_on_what_the_network_sees(data):
    run = apac.train(network(), data, shifted(), config=replace(CONFIG, validation_fraction=0))
    inputs = run.normalization.standardize(shifted().preprocess(run.normalize(data[0]))).transpose(0, 1).flatten(1)
    torch.testing.assert_close(inputs.mean(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std(1, correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_the_plain_prediction_of_files_includes_the_preprocessing_of_the_deformation(data, tmp_path):
    run = apac.train(network(), data, shifted(), config=CONFIG)
    file = tmp_path / "image.png"
    Image.fromarray(data[0][0].permute(1, 2, 0).numpy()).save(file)
    plain = run.classifier().plain(run.normalize(data[0][:1]))
    torch.testing.assert_close(run.classify([file], plain=True).decision.log_scores, plain, atol=1e-5, rtol=0)
    with pytest.raises(apac.InputError, match="preprocessing of its own"):
        run.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_float_images_have_no_normalization(data):
    with pytest.raises(apac.InputError, match="floating-point images are not normalized"):
        apac.train(network(), (data[0] / 255, data[1]), apac.Flip(), config=replace(CONFIG, normalization="scaling"))


@pytest.mark.parametrize(
    ("choice", "kind"),
    [("scaling", "scaling"), ("standardization", "standardization"), ("zca", "zca"), (None, "standardization")],
)
def test_the_normalization_can_be_chosen(choice, kind, data):
    run = apac.train(network(), data, apac.Flip(), config=replace(CONFIG, normalization=choice))
    assert run.normalization.kind == kind
