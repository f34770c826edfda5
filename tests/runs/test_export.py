"""Exported runs, compared with the network in torch; ONNX Runtime runs the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import apac
from apac.deform.base import Deformation
from own_networks import linear
from small_training import noisy_network

onnxruntime = pytest.importorskip("onnxruntime")

RULE = apac.FixedPasses(8)


def pixels_for(run: apac.Run, random: torch.Generator, count: int = 5) -> Tensor:
    # A smooth random field: the whitening amplifies the noise of independent pixels, which no photo has.
    coarse = torch.rand(count, run.image_shape[0], 4, 4, generator=random)
    smooth = nn.functional.interpolate(coarse, run.image_shape[1:], mode="bilinear")
    return (255 * smooth).to(torch.uint8)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    # The promised bound; float32 sums in another order differ by less.
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def logits_of(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


def expected_logits(run: apac.Run, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return run.network(run.normalization.standardize(run.normalize(pixels)))


def standardized(random: torch.Generator) -> apac.Run:
    """A run with a standardization and a network with batch normalization, whose statistics are not trivial."""
    pixels = (180 + 40 * torch.rand(60, 1, 28, 28, generator=random)).to(torch.uint8)
    config = apac.TrainConfig(epochs=1, batch_size=10, learning_rate=0.01, normalization="standardization")
    labels = torch.arange(60) % 10
    return apac.train(noisy_network(), (pixels, labels), apac.Compose(apac.Color(), apac.Flip()), config=config)


@pytest.mark.parametrize("name", ["mnist-cnn", "cifar10-cnn", "standardized"])
def test_the_graph_takes_pixels_in_0_to_1_and_returns_the_logits_of_the_plain_prediction(name, tmp_path, random):
    run = standardized(random) if name == "standardized" else apac.load(name)
    path = run.export(tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    for count in (1, 5):
        pixels = pixels_for(run, random, count)
        assert_close(logits_of(path, pixels.float() / 255), expected_logits(run, pixels))


@pytest.mark.parametrize("name", ["mnist-cnn", "cifar10-cnn", "standardized"])
def test_the_file_decides_as_the_run_does(name, tmp_path, random):
    run = standardized(random) if name == "standardized" else apac.load(name)
    path = run.export(tmp_path / "model.onnx", whitened=name == "cifar10-cnn")
    metadata = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    deformation = Deformation.from_json(json.loads(metadata["deformation"]))
    assert deformation == run.deformation
    assert tuple(json.loads(metadata["classes"])) == run.classes
    assert tuple(json.loads(metadata["image_shape"])) == run.image_shape
    images = run.normalize(pixels_for(run, random))
    by_file = apac.Classifier(apac.from_onnx(path), deformation, RULE).decide(images)
    by_run = run.classifier(RULE).decide(images)
    assert torch.equal(by_file.labels, by_run.labels)
    # means of 8 log-probabilities, each from logits within 1e-4
    torch.testing.assert_close(by_file.log_scores, by_run.log_scores, atol=2e-4, rtol=0)


def test_a_run_on_float_images_takes_these_images(tmp_path, random):
    images = torch.randn(20, 1, 6, 6, generator=random)
    run = apac.train(
        linear((1, 6, 6), 2), (images, torch.arange(20) % 2), apac.Flip(), config=apac.TrainConfig(epochs=1)
    )
    path = run.export(tmp_path / "model.onnx")
    assert_close(logits_of(path, images), expected_logits(run, images))
    metadata = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert metadata["input"] == "float32 images as in training"


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    run, path = apac.load("mnist-cnn"), tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(apac.InputError, match=r"model\.onnx already exists; replace it with overwrite=True"):
        run.export(path)
    assert path.read_text() == "mine"
    run.export(path, overwrite=True)
    assert path.stat().st_size > 1000
    with pytest.raises(apac.InputError, match=r"is a folder; give the path of an \.onnx file"):
        run.export(tmp_path)
    with pytest.raises(apac.InputError, match=r"the name of an ONNX file ends in \.onnx, got .*model\.pt"):
        run.export(tmp_path / "model.pt")


class Undecided(nn.Module):
    """A network that takes another branch for other images."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1)) * (2 if images.mean() > 0 else 1)


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tmp_path, random, monkeypatch):
    images = torch.randn(20, 1, 6, 6, generator=random)
    run = apac.train(Undecided(), (images, torch.arange(20) % 2), apac.Flip(), config=apac.TrainConfig(epochs=1))
    with pytest.raises(apac.InputError, match=r"^this network cannot be exported to ONNX: .*\.$"):
        run.export(tmp_path / "model.onnx")
    with pytest.raises(apac.InputError, match="does not whiten its images; omit whitened=True"):
        run.export(tmp_path / "model.onnx", whitened=True)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(apac.InputError, match=r"onnx is not installed; run: pip install .*\[fast\]"):
        run.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
