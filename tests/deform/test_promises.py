"""What every deformation promises, whatever its kind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import apac
from apac import trees
from apac.randomness import generator
from kinds import KINDS, PER_CLASS

each_kind = pytest.mark.parametrize("u", KINDS, ids=repr)


@each_kind
def test_sample_fails_without_a_generator(u):
    with pytest.raises(TypeError, match="generator"):
        u.sample(3, (1, 8, 8))


@each_kind
def test_apply_is_pure(u, random):
    images = torch.rand(6, 3, 12, 10, generator=random)
    theta = u.sample(6, (3, 12, 10), generator=random)
    kept = images.clone()
    torch.manual_seed(1)
    first = u.apply(images, theta)
    torch.manual_seed(2)
    assert torch.equal(first, u.apply(images, theta))
    assert torch.equal(images, kept)


@each_kind
def test_the_draw_depends_on_the_generator_alone(u):
    torch.manual_seed(1)
    first = u.sample(5, (3, 8, 8), generator=generator(3, "test", 4))
    torch.manual_seed(2)
    again = u.sample(5, (3, 8, 8), generator=generator(3, "test", 4))
    images = torch.rand(5, 3, 8, 8)
    assert torch.equal(u.apply(images, first), u.apply(images, again))


@each_kind
@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 5),
    channels=st.integers(1, 4),
    height=st.integers(1, 33),
    width=st.integers(1, 33),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_any_size_channel_count_and_float_type_is_kept(u, n, channels, height, width, dtype):
    shape = (channels, height, width)
    random = generator(n, "test", height * width)
    images = torch.rand(n, *shape, generator=random).to(dtype)
    result = u.apply(images, u.sample(n, shape, generator=random))
    assert result.shape == images.shape
    assert result.dtype == dtype
    assert result.isfinite().all()


@pytest.mark.parametrize("u", [u for u in KINDS if "Thickness" not in repr(u)], ids=repr)
def test_parameters_follow_the_images_to_their_device(u, random):
    """The device of shapes without numbers stands for any other; thickness asks for numbers and cannot run there."""
    theta = u.sample(3, (3, 12, 10), generator=random)
    for draw in (theta, trees.rows(theta, slice(0, 1))):
        result = u.apply(torch.zeros(3, 3, 12, 10, device="meta"), draw)
        assert result.device.type == "meta"
        assert result.shape == (3, 3, 12, 10)


@each_kind
def test_one_draw_for_all_is_the_same_draw_for_each(u, random):
    images = torch.rand(7, 2, 9, 11, generator=random)
    for _ in range(5):
        theta = u.sample(1, (2, 9, 11), generator=random)
        each = trees.rows(theta, torch.zeros(7, dtype=torch.long))
        torch.testing.assert_close(u.apply(images, theta), u.apply(images, each), atol=1e-6, rtol=0)


@each_kind
def test_an_image_does_not_depend_on_its_neighbors(u, random):
    images = torch.rand(8, 1, 12, 12, generator=random)
    theta = u.sample(8, (1, 12, 12), generator=random)
    together = u.apply(images, theta)
    alone = torch.cat([u.apply(images[i : i + 1], trees.rows(theta, slice(i, i + 1))) for i in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)


@each_kind
def test_images_may_lie_in_memory_in_any_order(u, random):
    images = torch.rand(4, 11, 9, 3, generator=random).permute(0, 3, 1, 2)  # not contiguous
    theta = u.sample(4, (3, 11, 9), generator=random)
    torch.testing.assert_close(u.apply(images, theta), u.apply(images.contiguous(), theta), atol=1e-6, rtol=0)


@pytest.mark.parametrize("u", [*KINDS, PER_CLASS], ids=repr)
def test_a_deformation_prints_as_the_call_that_makes_it_and_survives_json(u):
    names = {name: getattr(apac, name) for name in apac.__all__}
    again = apac.Deformation.from_json(json.loads(json.dumps(u.to_json())))
    for copy in (eval(repr(u), names), again):
        assert copy == u
        assert hash(copy) == hash(u)
        assert repr(copy) == repr(u)


def test_color_drawn_for_other_channels_is_refused(random):
    theta = apac.Color().sample(2, (3, 4, 4), generator=random)
    with pytest.raises(apac.InputError, match="drawn for 3 channels; draw them for 1"):
        apac.Color().apply(torch.zeros(2, 1, 4, 4), theta)


def test_kinds_with_other_values_are_not_equal():
    assert len(set(KINDS)) == len(KINDS)
    assert apac.Homography(std=0.1) != apac.Homography(std=0.2)


def test_consecutive_geometric_kinds_make_one_resampling(random, monkeypatch):
    calls = []
    kernels = import_module("apac.deform.kernels")
    warp = kernels.warp
    monkeypatch.setattr(kernels, "warp", lambda *a: calls.append(1) or warp(*a))
    images = torch.rand(3, 3, 16, 16)

    def resamplings(*parts: apac.Deformation) -> int:
        calls.clear()
        u = apac.Compose(*parts)
        u.apply(images, u.sample(3, (3, 16, 16), generator=random))
        return len(calls)

    assert resamplings(apac.Homography(), apac.Elastic(), apac.Thickness()) == 1
    assert resamplings(*apac.presets.cifar10().parts) == 1
    assert resamplings(apac.Homography(), apac.Thickness(), apac.Elastic()) == 2  # not neighbors
    assert resamplings(apac.Homography(), apac.Elastic(padding="edge")) == 2  # another outside


def test_the_identity_returns_the_images_themselves(random):
    images = torch.rand(3, 1, 5, 5)
    u = apac.Compose()
    assert torch.equal(u.apply(images, u.sample(3, (1, 5, 5), generator=random)), images)


@dataclass(frozen=True)
class Brighter(apac.Deformation):
    """A kind of one's own."""

    most: float = 0.5

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Any:
        return self.max_shift * torch.rand(n, generator=generator)

    def apply(self, images: Tensor, parameters: Any) -> Tensor:
        return images + parameters[:, None, None, None]


def test_a_kind_of_ones_own_needs_sample_and_apply_alone(random):
    u = apac.Compose(Brighter(0.3), apac.Flip())
    assert apac.Deformation.from_json(u.to_json()) == u
    images = torch.zeros(4, 1, 3, 3)
    result = u.apply(images, u.sample(4, (1, 3, 3), generator=random))
    assert 0 < result.max() <= 0.3


def test_numbers_are_kept_as_plain_floats_whatever_they_came_as():
    assert repr(apac.ScaleShift(scale=[1, np.float32(2)])) == "ScaleShift(scale=(1.0, 2.0), padding='edge')"
    assert json.dumps(apac.Homography(std=np.float64(0.2)).to_json())
    assert hash(apac.Color(gamma=[1, 2])) == hash(apac.Color(gamma=(1.0, 2.0)))


def test_built_in_kinds_are_known_in_a_fresh_process_and_not_replaced_by_others_of_their_name():
    code = (
        "from dataclasses import dataclass\nimport apac\n"
        "print(apac.Deformation.from_json({'kind': 'Homography', 'std': 0.1, 'outside': 0.0}))\n"
        "@dataclass(frozen=True)\nclass Flip(apac.Deformation):\n"
        "    def sample(self, n, image_shape, *, generator): ...\n"
        "    def apply(self, images, parameters): ...\n"
        "print(apac.Deformation.from_json({'kind': 'Flip', 'probability': 0.25}))\n"
        "print(apac.Deformation.from_json(Flip().to_json()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Homography(std=0.1, padding=0.0)", "Flip(probability=0.25)", "Flip()"]


def test_a_kind_that_cannot_be_stored_says_so():
    with pytest.raises(apac.InputError, match="stored by numbers, strings"):
        Brighter(most=torch.ones(1)).to_json()
    plain = type("Plain", (apac.Deformation,), {"sample": Brighter.sample, "apply": Brighter.apply})()
    with pytest.raises(apac.InputError, match="Plain must be a frozen dataclass"):
        plain.to_json()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.Homography(std=-1), "std of a Homography must be a number of at least 0"),
        (lambda: apac.Homography(std=float("nan")), "std of a Homography must be a number of at least 0"),
        (lambda: apac.Homography(padding="wrap"), "background value or"),
        (lambda: apac.Elastic(sigma=0), "sigma of an Elastic must be a number above 0"),
        (lambda: apac.Elastic(alpha=float("inf")), "alpha of an Elastic must be a number, got inf"),
        (lambda: apac.ScaleShift(scale=(0.5, 2)), "1 <= low <= high"),
        (lambda: apac.Flip(1.5), "between 0 and 1"),
        (lambda: apac.Thickness(dilate=0.7, erode=0.7), "at most 1 together"),
        (lambda: apac.Thickness(size=0), "size of a Thickness must be a whole number of at least 1"),
        (lambda: apac.Color(gamma=(0, 1)), "0.001 <= low <= high"),
        (lambda: apac.Color(cast=-1), "at least 0"),
        (lambda: apac.Color(gamma=1.2), "gamma of a Color must be a range"),
        (lambda: apac.Homography(std="wide"), "std of a Homography must be a number of at least 0, got 'wide'"),
        (lambda: apac.Homography(padding=float("nan")), "background value or"),
        (lambda: apac.Elastic(sigma=float("inf")), "number above 0"),
        (lambda: apac.Thickness(size=2.5), "whole number of at least 1"),
        (lambda: apac.Compose("blur"), "takes deformations"),
        (lambda: apac.Compose(PER_CLASS), "cannot be a part of a Compose"),
        (lambda: apac.Deformation.from_json({"kind": "Compose"}), "cannot be made from"),
        (lambda: apac.Deformation.from_json({"kind": "Blur"}), "'Blur' is not defined"),
        (lambda: apac.Deformation.from_json({"kind": "Flip", "chance": 1}), "cannot be made from"),
        (lambda: apac.Deformation.from_json([]), "an object with a"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.zeros(3, 28, 28), r"\(N, C, H, W\)"),
        (torch.zeros(3, 1, 28, 28, dtype=torch.uint8), "floating-point"),
        (torch.zeros(5, 1, 28, 28), "5 images need 5 parameters, or 1 for all of them, got 3"),
        (torch.zeros(3, 1, 0, 28), "floating-point tensor of shape"),
        (torch.zeros(3, 1, 20, 28), "drawn for images of 28 × 28"),
    ],
)
def test_wrong_images_are_refused_in_one_sentence(images, sentence, random):
    u = apac.presets.mnist()
    theta = u.sample(3, (1, 28, 28), generator=random)
    with pytest.raises(apac.InputError, match=sentence):
        u.apply(images, theta)
