"""The contract of every deformation."""

from __future__ import annotations

import json
import pickle
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

# A batch of another size may sum a matrix product in another order. That moves a coordinate by a few float32 steps
# (1e-6 pixel near coordinate 10), and a pixel by that times the contrast of two neighbors (at most 2 here).
ROUNDING = 1e-5

untyped: Any = apac  # for arguments of the wrong type


@each_kind
def test_sample_fails_without_a_generator(u):
    with pytest.raises(TypeError, match="generator"):
        u.sample(3, (1, 8, 8))


@each_kind
def test_apply_is_pure(u, random):
    images = torch.rand(6, 3, 12, 10, generator=random)
    parameters = u.sample(6, (3, 12, 10), generator=random)
    kept = images.clone()
    torch.manual_seed(1)
    first = u.apply(images, parameters)
    torch.manual_seed(2)
    assert torch.equal(first, u.apply(images, parameters))
    assert torch.equal(images, kept)


@each_kind
def test_parameters_depend_only_on_the_generator(u):
    torch.manual_seed(1)
    first = u.sample(5, (3, 8, 8), generator=generator(3, "test", 4))
    torch.manual_seed(2)
    again = u.sample(5, (3, 8, 8), generator=generator(3, "test", 4))
    images = torch.rand(5, 3, 8, 8)
    assert torch.equal(u.apply(images, first), u.apply(images, again))


@each_kind
def test_parameters_do_not_depend_on_the_default_type_of_torch(u):
    first = u.sample(5, (3, 8, 8), generator=generator(3, "test", 4))
    torch.set_default_dtype(torch.float64)
    try:
        second = u.sample(5, (3, 8, 8), generator=generator(3, "test", 4))
    finally:
        torch.set_default_dtype(torch.float32)
    images = torch.rand(5, 3, 8, 8)
    torch.testing.assert_close(u.apply(images, first), u.apply(images, second), atol=ROUNDING, rtol=0)


@each_kind
@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(1, 5),
    channels=st.integers(1, 4),
    height=st.integers(1, 33),
    width=st.integers(1, 33),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_size_channels_and_float_type_are_preserved(u, n, channels, height, width, dtype):
    shape = (channels, height, width)
    random = generator(n, "test", height * width)
    images = torch.rand(n, *shape, generator=random).to(dtype)
    result = u.apply(images, u.sample(n, shape, generator=random))
    assert result.shape == images.shape
    assert result.dtype == dtype
    assert result.isfinite().all()


@pytest.mark.parametrize("u", [u for u in KINDS if "Thickness" not in repr(u)], ids=repr)
def test_parameters_follow_the_images_to_their_device(u, random):
    """The meta device represents any other device; it has no values, which Thickness needs."""
    parameters = u.sample(3, (3, 12, 10), generator=random)
    for p in (parameters, trees.rows(parameters, slice(0, 1))):
        result = u.apply(torch.zeros(3, 3, 12, 10, device="meta"), p)
        assert result.device.type == "meta"
        assert result.shape == (3, 3, 12, 10)


@each_kind
def test_one_row_of_parameters_for_all_images_equals_the_row_repeated(u, random):
    images = torch.rand(7, 2, 9, 11, generator=random)
    for _ in range(5):
        parameters = u.sample(1, (2, 9, 11), generator=random)
        repeated = trees.rows(parameters, torch.zeros(7, dtype=torch.long))
        torch.testing.assert_close(u.apply(images, parameters), u.apply(images, repeated), atol=ROUNDING, rtol=0)


@each_kind
def test_an_image_does_not_depend_on_its_neighbors(u, random):
    images = torch.rand(8, 1, 12, 12, generator=random)
    parameters = u.sample(8, (1, 12, 12), generator=random)
    together = u.apply(images, parameters)
    alone = torch.cat([u.apply(images[i : i + 1], trees.rows(parameters, slice(i, i + 1))) for i in range(8)])
    torch.testing.assert_close(together, alone, atol=ROUNDING, rtol=0)


@each_kind
def test_images_may_have_any_memory_layout(u, random):
    images = torch.rand(4, 11, 9, 3, generator=random).permute(0, 3, 1, 2)  # not contiguous
    parameters = u.sample(4, (3, 11, 9), generator=random)
    torch.testing.assert_close(
        u.apply(images, parameters), u.apply(images.contiguous(), parameters), atol=ROUNDING, rtol=0
    )


@pytest.mark.parametrize("u", [*KINDS, PER_CLASS], ids=repr)
def test_a_deformation_is_restored_from_its_repr_from_json_and_from_a_pickle(u):
    names = {name: getattr(apac, name) for name in apac.__all__}
    again = apac.Deformation.from_json(json.loads(json.dumps(u.to_json())))
    for copy in (eval(repr(u), names), again, pickle.loads(pickle.dumps(u))):
        assert copy == u
        assert hash(copy) == hash(u)
        assert repr(copy) == repr(u)


def test_color_parameters_for_other_channels_are_rejected(random):
    parameters = apac.Color().sample(2, (3, 4, 4), generator=random)
    with pytest.raises(apac.InputError, match="sampled for 3 channels; sample them for 1"):
        apac.Color().apply(torch.zeros(2, 1, 4, 4), parameters)


def test_deformations_with_different_arguments_are_not_equal():
    assert len(set(KINDS)) == len(KINDS)
    assert apac.Homography(std=0.1) != apac.Homography(std=0.2)


def test_consecutive_geometric_kinds_make_one_resampling(random, monkeypatch):
    calls: list[int] = []
    kernels = import_module("apac.deform.kernels")
    warp = kernels.warp

    def counting_warp(*arguments: Any) -> None:
        calls.append(1)
        warp(*arguments)

    monkeypatch.setattr(kernels, "warp", counting_warp)
    images = torch.rand(3, 3, 16, 16)

    def resamplings(*parts: apac.Deformation) -> int:
        calls.clear()
        u = apac.Compose(*parts)
        u.apply(images, u.sample(3, (3, 16, 16), generator=random))
        return len(calls)

    assert resamplings(apac.Homography(), apac.Elastic(), apac.Thickness()) == 1
    assert resamplings(*apac.presets.cifar10().parts) == resamplings(*apac.presets.photos().parts) == 1
    assert resamplings(apac.Homography(), apac.Thickness(), apac.Elastic()) == 2  # not neighbors
    assert resamplings(apac.Homography(), apac.Elastic(padding="edge")) == 2


def test_the_identity_returns_the_images_themselves(random):
    images = torch.rand(3, 1, 5, 5)
    u = apac.Compose()
    assert torch.equal(u.apply(images, u.sample(3, (1, 5, 5), generator=random)), images)


@dataclass(frozen=True)
class Brighter(apac.Deformation):
    """A user-defined deformation."""

    limit: float = 0.5

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Any:
        return self.limit * torch.rand(n, generator=generator)

    def apply(self, images: Tensor, parameters: Any) -> Tensor:
        return images + parameters[:, None, None, None]


def test_a_user_defined_kind_needs_only_sample_and_apply(random):
    u = apac.Compose(Brighter(0.3), apac.Flip())
    assert apac.Deformation.from_json(u.to_json()) == u
    images = torch.zeros(4, 1, 3, 3)
    result = u.apply(images, u.sample(4, (1, 3, 3), generator=random))
    assert 0 < result.max() <= 0.3
    assert pickle.loads(pickle.dumps(u)) == u


def test_numbers_of_any_type_are_stored_as_floats():
    assert repr(untyped.ScaleShift(scale=[1, np.float32(2)])) == "ScaleShift(scale=(1.0, 2.0), padding='edge')"
    assert json.dumps(apac.Homography(std=np.float64(0.2)).to_json())
    assert hash(untyped.Color(gamma=[1, 2])) == hash(apac.Color(gamma=(1.0, 2.0)))


@dataclass(frozen=True)
class Flip(Brighter):
    """A user-defined deformation with the name of a built-in one."""


def test_a_user_defined_kind_does_not_replace_a_built_in_kind_of_the_same_name():
    for u in (apac.Flip(0.25), Flip(0.25)):
        again = apac.Deformation.from_json(json.loads(json.dumps(u.to_json())))
        assert again == u
        assert type(again) is type(u)


def test_a_kind_that_cannot_be_stored_raises_an_error():
    with pytest.raises(apac.InputError, match="must be numbers, strings, tuples or deformations"):
        Brighter(limit=torch.ones(1)).to_json()  # type: ignore[arg-type]
    plain = type("Plain", (apac.Deformation,), {"sample": Brighter.sample, "apply": Brighter.apply})()
    with pytest.raises(apac.InputError, match="Plain must be a frozen dataclass"):
        plain.to_json()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.Homography(std=-1), "std of a Homography must be a number between 0 and"),
        (lambda: apac.Homography(std=float("nan")), "std of a Homography must be a number between 0 and"),
        (lambda: untyped.Homography(padding="wrap"), '"edge" or a background value'),
        (lambda: apac.Elastic(sigma=0), "sigma of an Elastic must be a number between 0.001 and 10000"),
        (lambda: apac.Elastic(alpha=float("inf")), "alpha of an Elastic must be a number between .*, got inf"),
        (lambda: apac.Elastic(reference_size=0), "reference_size of an Elastic must be an integer of at least 1"),
        (lambda: untyped.Thickness(reference_size="28"), "reference_size of a Thickness must be an integer"),
        (lambda: apac.ScaleShift(scale=(0.5, 2)), "1 <= low <= high"),
        (lambda: apac.Flip(1.5), "between 0 and 1"),
        (lambda: apac.Thickness(dilate=0.7, erode=0.7), "add up to at most 1"),
        (lambda: apac.Thickness(size=0), "size of a Thickness must be an integer of at least 1"),
        (lambda: apac.Color(gamma=(0, 1)), "0.001 <= low <= high"),
        (lambda: apac.Color(cast=-1), "between 0 and 1000"),
        (lambda: untyped.Color(gamma=1.2), "gamma of a Color must be a range"),
        (lambda: untyped.Homography(std="wide"), "std of a Homography must be a number between 0 and 1000, got 'wide'"),
        (lambda: apac.Homography(padding=float("nan")), '"edge" or a background value'),
        (lambda: apac.Elastic(sigma=float("inf")), "number between"),
        (lambda: untyped.Thickness(size=2.5), "integer of at least 1"),
        (lambda: untyped.Compose("blur"), "takes deformations"),
        (lambda: apac.Compose(PER_CLASS), "cannot be a part of a Compose"),
        (lambda: apac.Deformation.from_json({"kind": "Compose"}), "cannot be constructed from"),
        (lambda: apac.Deformation.from_json({"kind": "Blur"}), "'Blur' is not defined"),
        (lambda: apac.Deformation.from_json({"kind": "Flip", "chance": 1}), "cannot be constructed from"),
        (lambda: untyped.Deformation.from_json([]), "an object with a"),
    ],
)
def test_a_wrong_argument_is_rejected_in_one_sentence(make, sentence):
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
        (torch.zeros(3, 1, 20, 28), "sampled for images of 28 × 28"),
    ],
)
def test_wrong_images_are_rejected_in_one_sentence(images, sentence, random):
    u = apac.presets.mnist()
    parameters = u.sample(3, (1, 28, 28), generator=random)
    with pytest.raises(apac.InputError, match=sentence):
        u.apply(images, parameters)


@each_kind
def test_bound_parameters_deform_as_apply_does(u, random):
    images = torch.rand(4, 3, 12, 12, generator=random)
    parameters = u.sample(4, (3, 12, 12), generator=random)
    assert torch.equal(u.bind(images, parameters)(images), u.apply(images, parameters))
