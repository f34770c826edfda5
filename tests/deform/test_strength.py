"""The strength of a deformation: scaled(0) is the identity, scaled(1) the deformation itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import apac
from apac.deform.warp import Geometric
from apac.randomness import generator
from kinds import KINDS, PER_CLASS

EVERY = [*KINDS, PER_CLASS]
kinds = pytest.mark.parametrize("u", EVERY, ids=repr)
strengths = st.floats(0.01, 3.0)
SHAPE = (3, 12, 12)


def deformed(u: apac.Deformation, images: Tensor, seed: int = 3) -> Tensor:
    labels = torch.arange(len(images)) % 10
    return u(images, generator=generator(seed, "test", 0), labels=labels)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_strength_zero_changes_no_bit_and_strength_one_is_the_deformation_itself(u, dtype, random):
    images = torch.randn(4, *SHAPE, generator=random).to(dtype)  # beyond 0 … 1: nothing is clamped
    assert torch.equal(deformed(u.scaled(0), images), images)
    assert u.scaled(1) == u
    assert u.scaled(0).scaled(0.7) == u.scaled(0)


@settings(max_examples=30)
@given(st.sampled_from(EVERY), strengths)
def test_a_scaled_deformation_is_a_deformation_that_a_run_can_store(u, strength):
    scaled = u.scaled(strength)
    assert type(scaled) is type(u)
    assert apac.Deformation.from_json(json.loads(json.dumps(scaled.to_json()))) == scaled
    assert scaled.input_types == u.input_types
    assert deformed(scaled, torch.rand(2, *SHAPE)).isfinite().all()


@settings(max_examples=30)
@given(st.sampled_from(EVERY), strengths)
def test_every_strength_uses_the_same_random_numbers(u, strength):
    states = []
    for deformation in (u, u.scaled(strength)):
        random = generator(1, "test", 0)
        deformation._sample_for(torch.tensor([0, 1, 7]), 3, SHAPE, random)
        states.append(random.get_state())
    assert torch.equal(*states)


@settings(max_examples=30)
@given(st.sampled_from([u for u in KINDS if isinstance(u, Geometric)]), strengths, strengths)
def test_pixels_move_less_with_less_strength(u, one, other):
    """In the plane of the image; a flip moves pixels all the way or not at all."""

    def distance(strength: float) -> Tensor:
        scaled = u.scaled(strength)
        flow = scaled.flow(scaled.sample(8, SHAPE, generator=generator(5, "test", 0)), SHAPE[1:])
        if flow.displacement is not None:
            return flow.displacement.abs().amax(dim=(1, 2, 3))
        return (flow.matrix - torch.eye(3)).abs().amax(dim=(1, 2))

    low, high = sorted((one, other))
    # float32: an element of 1 + 1e-2 is known to 1e-7
    assert (distance(low) <= distance(high) + 1e-6).all()


VALUES: list[tuple[apac.Deformation, str, Any]] = [  # what half and twice the strength of each kind means
    (apac.Homography(0.2, shear=0.1), "Homography(0.1, shear=0.05)", "Homography(0.4, shear=0.2)"),
    (apac.Elastic(2.0, 8.0), "Elastic(2.0, 4.0)", "Elastic(2.0, 16.0)"),
    (apac.ScaleShift((1.2, 2.0)), "ScaleShift((1.1, 1.5))", "ScaleShift((1.4, 3.0))"),
    (apac.Flip(0.5), "Flip(0.25)", "Flip(0.5)"),
    (apac.Flip(0.2), "Flip(0.1)", "Flip(0.4)"),
    (apac.Flip(0.8), "Flip(0.4)", "Flip(0.8)"),
    (apac.Thickness(0.2, 0.1), "Thickness(0.1, 0.05)", "Thickness(0.4, 0.2)"),
    (apac.Thickness(0.6, 0.2), "Thickness(0.3, 0.1)", "Thickness(0.75, 0.25)"),
    (apac.Color((0.25, 4.0), 0.1), "Color((0.5, 2.0), 0.05)", "Color((0.0625, 16.0), 0.2)"),
    (apac.Color((0.01, 1.0), 0.0), "Color((0.1, 1.0), 0.0)", "Color((0.001, 1.0), 0.0)"),
    (apac.Jitter(0.2), "Jitter(0.1)", "Jitter(0.4)"),
    (apac.FeatureDropout(0.4, 7.0), "FeatureDropout(0.2, 7.0)", "FeatureDropout(0.8, 7.0)"),
    (apac.FeatureDropout(0.6), "FeatureDropout(0.3)", "FeatureDropout(1.0)"),
    (apac.Amplitude(6.0), "Amplitude(3.0)", "Amplitude(10.0)"),
    (apac.TimeShift(0.6), "TimeShift(0.3)", "TimeShift(1.0)"),
    (apac.TimeWarp(0.4, 3), "TimeWarp(0.2, 3)", "TimeWarp(0.8, 3)"),
]


@pytest.mark.parametrize(("u", "half", "twice"), VALUES, ids=lambda value: str(value))
def test_widths_amplitudes_and_probabilities_are_multiplied_up_to_their_limits(u, half, twice):
    for strength, expected in ((0.5, half), (2, twice)):
        expected = eval(f"apac.{expected}")
        payload, numbers = u.scaled(strength).to_json(), expected.to_json()
        assert payload.keys() == numbers.keys()
        for name, value in numbers.items():
            assert payload[name] == (value if isinstance(value, str | None) else pytest.approx(value))


def test_a_composition_scales_its_parts_and_the_deformation_of_every_class():
    parts = [apac.Homography(0.2), apac.Flip(0.5)]
    assert apac.Compose(*parts).scaled(0.5) == apac.Compose(*(part.scaled(0.5) for part in parts))
    scaled = PER_CLASS.scaled(0.5)
    assert scaled.of_class == tuple(member.scaled(0.5) for member in PER_CLASS.of_class)
    assert len(PER_CLASS.scaled(0).sets) == 1
    assert apac.PerClass({0: apac.Flip(), 1: apac.Flip(0.1)}, classes=2).scaled(0.5).default is None


@pytest.mark.parametrize("strength", [-0.1, float("nan"), float("inf"), "1", None, True])
def test_a_strength_is_a_number_of_at_least_zero(strength):
    for u in (apac.Flip(), apac.from_callable(lambda image: image)):
        with pytest.raises(apac.InputError, match="strength of a deformation must be a number between 0 and"):
            u.scaled(strength)


@dataclass(frozen=True)
class Brightness(apac.Deformation):
    std: float = 0.1

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return self.std * torch.randn(n, 1, 1, 1, generator=generator)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return images + parameters


@dataclass(frozen=True)
class Tunable(Brightness):
    def scaled(self, strength: float) -> Tunable:
        return replace(self, std=strength * self.std)


def test_a_deformation_of_ones_own_needs_the_method_scaled():
    for u in (Brightness(), apac.Compose(apac.Flip(), Brightness())):
        with pytest.raises(apac.InputError, match=r"Brightness has no strength; override Brightness\.scaled"):
            u.scaled(0.5)
        with pytest.raises(apac.InputError, match="Brightness has no strength"):
            u.scaled(1)
    assert apac.Compose(apac.Flip(), Tunable(0.2)).scaled(0.5) == apac.Compose(apac.Flip(0.25), Tunable(0.1))


def test_a_pipeline_of_another_library_has_the_strengths_zero_and_one(random):
    u = apac.from_callable(lambda image: image + torch.rand(()), before=lambda image: image / 2)
    images = torch.rand(3, *SHAPE, generator=random)
    for composed in (u, apac.Compose(apac.Flip(), u)):
        assert composed.scaled(1) == composed
        off = composed.scaled(0)
        assert torch.equal(off(images, generator=random), images / 2)
        assert torch.equal(off.preprocess(images), images / 2)
        assert off.scaled(0.3) == off
        with pytest.raises(apac.InputError, match=r"from_callable\(.*\) has the strengths 0 and 1 only"):
            composed.scaled(0.5)
    torchvision = pytest.importorskip("torchvision.transforms.v2")
    stored = apac.from_torchvision(torchvision.RandomAffine(15)).scaled(0)
    assert apac.Deformation.from_json(json.loads(json.dumps(stored.to_json()))) == stored
