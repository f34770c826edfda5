"""A run stores the transforms of other libraries, and loads only classes of these libraries."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import apac
from apac.adapters.transforms.seeded import SeededParameters
from apac.errors import Interrupted
from commands import refusal, succeed
from image_folders import gallery

SHAPE = (3, 16, 16)


def kornia():
    K = pytest.importorskip("kornia.augmentation")
    inner = K.ImageSequential(K.RandomGaussianBlur((3, 3), (0.1, 2.0)), K.RandomGamma((0.7, 1.5)), random_apply=1)
    parts = (K.RandomAffine(20.0, (0.1, 0.1), padding_mode="reflection"), K.RandomRotation(5.0), inner)
    after = K.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return apac.from_kornia(K.AugmentationSequential(*parts, data_keys=["input"]), after=after)


def kornia_sequential():
    K = pytest.importorskip("kornia.augmentation")
    return apac.from_kornia(nn.Sequential(K.ColorJiggle(0.2, 0.1), K.RandomErasing()), before=K.Resize((12, 12)))


def torchvision():
    from torchvision.transforms import v2

    affine = v2.RandomAffine(20, (0.1, 0.1), interpolation=v2.InterpolationMode.BILINEAR)
    either = v2.RandomChoice([v2.RandomVerticalFlip(), v2.GaussianBlur(3)], p=[0.3, 0.7])
    pipeline = v2.Compose([affine, v2.RandomApply([v2.ColorJitter(0.3)], p=0.4), either])
    return apac.from_torchvision(pipeline, after=v2.Normalize([0.5], [0.25]))


def torchvision_v1():
    from torchvision import transforms as v1

    return apac.from_torchvision(v1.Compose([v1.RandomRotation(10), v1.RandomErasing(p=0.4)]))


def albumentations():
    al = pytest.importorskip("albumentations")
    one = al.OneOf([al.Affine(rotate=(-20, 20)), al.RandomGamma()], p=0.7)
    after = al.Normalize(0.5, 0.25, max_pixel_value=1.0)
    return apac.from_albumentations(al.Compose([one, al.HorizontalFlip()]), after=after)


MAKERS = [kornia, kornia_sequential, torchvision, torchvision_v1, albumentations]


@pytest.mark.parametrize("make", MAKERS)
def test_a_loaded_transform_equals_the_stored_one_and_gives_the_same_images(make, random):
    u = make()
    loaded = apac.Deformation.from_json(json.loads(json.dumps(u.to_json())))
    assert loaded == u and hash(loaded) == hash(u) and repr(loaded) == repr(u)
    assert apac.Deformation.from_json(apac.Compose(apac.Flip(), u).to_json()) == apac.Compose(apac.Flip(), u)
    images = torch.rand(3, *SHAPE, generator=random)
    for seed in range(10):
        parameters = SeededParameters(torch.tensor([seed]))
        assert torch.equal(loaded.apply(images, parameters), u.apply(images, parameters))
    assert torch.equal(loaded.preprocess(images), u.preprocess(images))


def test_transforms_with_other_arguments_are_not_equal():
    from torchvision.transforms import v2

    assert apac.from_torchvision(v2.RandomAffine(10)) == apac.from_torchvision(v2.RandomAffine(10))
    assert apac.from_torchvision(v2.RandomAffine(10)) != apac.from_torchvision(v2.RandomAffine(20))
    assert apac.from_torchvision(v2.RandomAffine(10)) != apac.from_torchvision(
        v2.RandomAffine(10), after=v2.Normalize([0.5], [0.25])
    )
    own = apac.from_callable(torch.sin)
    assert own == own and own != apac.from_callable(torch.sin)


class Blur(nn.Module):
    """A transform of one's own."""

    def forward(self, images: Tensor) -> Tensor:
        return images


def spline():
    return pytest.importorskip("kornia.augmentation").RandomThinPlateSpline(0.3)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.from_callable(torch.sin), "sin is a function, which cannot be stored; write it as an apac.Def"),
        (lambda: apac.from_kornia(nn.Sequential(Blur())), "Blur is not a transform of kornia; use transforms"),
        (lambda: apac.from_torchvision(torch.sin), "sin is not a transform of torchvision; use transforms"),
        (lambda: apac.from_torchvision(Blur(), after=Blur()), "Blur is not a transform of torchvision"),
        (lambda: apac.from_kornia(spline()), "a copy with the same constructor arguments gives other images"),
    ],
)
def test_a_transform_that_cannot_be_stored_is_refused_before_training(make, sentence, tmp_path):
    images, labels = torch.rand(8, *SHAPE), torch.arange(8) % 2
    network = nn.Sequential(nn.Flatten(), nn.Linear(768, 2))
    with pytest.raises(apac.InputError, match=r"from_\w+\(\w+\) cannot be stored with a run: ") as error:
        apac.train(network, (images, labels), make(), out=tmp_path / "run")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


def pad_to(size: float) -> dict[str, Any]:
    return {"class": "kornia.augmentation.PadTo", "parts": [], "arguments": {"size": {"tuple": [size, size]}}}


@pytest.mark.parametrize(
    ("kind", "transform"),
    [
        ("from_kornia", {"class": "os.system", "parts": ["true"], "arguments": {}}),
        ("from_kornia", {"class": "kornia.augmentation.auto.base.nn.Linear", "parts": [1, 1], "arguments": {}}),
        ("from_torchvision", {"class": "torchvision.transforms.functional", "parts": [], "arguments": {}}),
        ("from_torchvision", {"class": "torchvision.transforms.v2.functional", "parts": [], "arguments": {}}),
        ("from_torchvision", {"class": "torchvision.transforms.v2.__loader__", "parts": [], "arguments": {}}),
        ("from_torchvision", {"enum": "torchvision.transforms.v2.Compose", "name": "__init__"}),
        ("from_albumentations", {"__class_fullname__": "os.system", "command": "true"}),
        ("from_albumentations", {"__class_fullname__": "Lambda", "__name__": "x"}),
        ("from_callable", {"class": "os.system", "parts": ["true"], "arguments": {}}),
    ],
)
def test_a_file_cannot_name_other_code(kind, transform):
    getattr(apac, kind)  # imports the module that defines it, as loading a run does
    payload = {"kind": kind, "before": None, "transform": transform, "after": None}
    with pytest.raises(apac.InputError, match="transform"):
        apac.Deformation.from_json(payload)


@pytest.mark.parametrize("part", ["before", "transform", "after"])
@pytest.mark.parametrize("value", [[1, 2], 3, "x", {"tuple": []}, {"dtype": "float32"}])
def test_values_that_are_not_transforms_are_refused(part, value):
    _ = apac.from_kornia  # imports its module
    payload = {"kind": "from_kornia", "before": None, "transform": pad_to(9), "after": None, part: value}
    with pytest.raises(apac.InputError, match="does not describe a transform; train the run again"):
        apac.Deformation.from_json(payload)


@pytest.mark.parametrize(
    ("transform", "sentence"),
    [
        (pad_to(20_000), "numbers up to 4,096, got 20000"),
        (pad_to(math.inf), "numbers up to 4,096, got inf"),
        ({"class": "kornia.augmentation.ImageSequential", "parts": [pad_to(9)] * 300, "arguments": {}}, "200 tran"),
        ({**pad_to(9), "arguments": {"size": [{"tuple": [9, 9]}] * 300}}, "200 parts, got 302"),
    ],
)
def test_what_a_stored_transform_may_cost_is_limited(transform, sentence):
    _ = apac.from_kornia  # imports its module
    payload = {"kind": "from_kornia", "before": None, "transform": transform, "after": None}
    with pytest.raises(apac.InputError, match=sentence):
        apac.Deformation.from_json(payload)


@pytest.mark.parametrize("key", ["class", "__class_fullname__"])
def test_the_transforms_of_all_parts_are_counted_before_one_is_built(key):
    part = {"kind": "from_kornia", "before": None, "transform": {key: "x"}, "after": None}
    with pytest.raises(apac.InputError, match="may have 200 transforms of other libraries, this one has 201"):
        apac.Deformation.from_json({"kind": "Compose", "parts": [part] * 201})


def test_a_deformation_that_could_not_be_loaded_is_refused_before_training(tmp_path):
    augmentation = pytest.importorskip("kornia.augmentation")
    part = apac.from_kornia(augmentation.ImageSequential(*[augmentation.RandomHorizontalFlip() for _ in range(20)]))
    data = (torch.rand(20, 1, 6, 6), torch.arange(20) % 2)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
    with pytest.raises(apac.InputError, match="this one has 210; pass it to a Classifier instead of storing it"):
        apac.train(network, data, apac.Compose(*[part] * 10), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_albumentations_is_imported_without_a_question_to_a_server():
    pytest.importorskip("albumentations")
    program = """
import socket, sys
def refuse(*arguments): sys.exit(f"asked for {arguments[:2]}")
socket.getaddrinfo = refuse
import apac
apac.from_albumentations
flip = {"__class_fullname__": "HorizontalFlip", "p": 0.5}
apac.Deformation.from_json({"kind": "from_albumentations", "before": None, "transform": flip, "after": None})
"""
    environment = {name: value for name, value in os.environ.items() if name != "NO_ALBUMENTATIONS_UPDATE"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)


def fresh() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 3))


@pytest.mark.parametrize("make", [kornia, torchvision, albumentations])
def test_a_run_trained_with_a_pipeline_resumes_loads_and_decides_again(make, tmp_path, random):
    images = (255 * torch.rand(24, *SHAPE, generator=random)).to(torch.uint8)
    data = images, torch.arange(24) % 3
    config = apac.TrainConfig(epochs=2, batch_size=6, learning_rate=0.01, validation_fraction=0)

    whole = apac.train(fresh(), data, make(), config=config, out=tmp_path / "whole")
    steps = iter([False, False, True])
    with pytest.raises(Interrupted):
        apac.train(fresh(), data, make(), config=config, out=tmp_path / "run", should_stop=lambda: next(steps))
    apac.train(fresh(), data, make(), config=config, out=tmp_path / "run", resume=True)
    loaded = apac.load(tmp_path / "run", fresh())
    assert loaded.deformation == make() == whole.deformation
    expected = whole.classifier(apac.FixedPasses(8)).decide(whole.normalize(images))
    decided = loaded.classifier(apac.FixedPasses(8)).decide(loaded.normalize(images))
    assert torch.equal(decided.log_scores, expected.log_scores)


MODULE = """
import albumentations as A
import apac
import kornia.augmentation as K
from torchvision.transforms import v2

kornia = apac.from_kornia(K.AugmentationSequential(K.RandomAffine(15.0), K.RandomHorizontalFlip()))
torchvision = apac.from_torchvision(v2.Compose([v2.RandomRotation(15), v2.ColorJitter(0.1)]))
albumentations = apac.from_albumentations(A.Compose([A.Affine(rotate=(-15, 15)), A.HorizontalFlip()]))
noise = apac.from_callable(lambda image: image)
"""


@pytest.fixture
def own_pipelines(tmp_path, monkeypatch):
    """A module of one's own and a folder of photos, in the current folder."""
    (tmp_path / "own_pipelines.py").write_text(MODULE)
    gallery(tmp_path / "photos", count=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_pipelines", None)


@pytest.mark.parametrize("library", ["kornia", "torchvision", "albumentations"])
def test_the_command_trains_classifies_and_evaluates_with_a_pipeline(library, own_pipelines):
    pytest.importorskip(library)
    short = ["--epochs", 1, "--batch-size", 4, "--network", "cifar10-cnn"]
    succeed("train", "--data", "photos", "--deformation", f"own_pipelines:{library}", "--out", "run", *short)
    del sys.modules["own_pipelines"]
    assert repr(apac.load("run").deformation).startswith(f"from_{library}(")
    assert "apple" in succeed("classify", "run", "photos/apple/00.png", "--limit", 16).output
    assert "Error on" in succeed("evaluate", "run", "--passes", "1,4").output


def test_the_command_says_that_a_function_cannot_be_stored(own_pipelines):
    sentence = refusal("train", "--data", "photos", "--deformation", "own_pipelines:noise", "--out", "run")
    assert "from_callable(<lambda>) cannot be stored with a run" in sentence
