"""The CPU kernels against the torch path, which other tests hold against scipy.ndimage, and against scipy itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

import apac
from apac import trees
from apac.deform import cpu, noise
from apac.deform.compose import ComposeParameters
from apac.deform.homography import HomographyParameters
from apac.deform.thickness import ThicknessParameters
from apac.randomness import generator
from kinds import KINDS

SIZES = [(1, 1), (1, 7), (7, 1), (33, 17), (28, 28)]
OUTSIDES = [0.0, 0.3, "edge"]
PRECISION = {torch.float16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-5}  # of float16 the distance of two numbers

each_kind = pytest.mark.parametrize("u", KINDS, ids=repr)
each_outside = pytest.mark.parametrize("outside", OUTSIDES)


@contextmanager
def torch_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_kernels", lambda: None)
        yield


def by_torch(u: apac.Deformation, images: Tensor, theta: object) -> Tensor:
    with torch_alone():
        return u.apply(images, theta)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def agree(u: apac.Deformation, images: Tensor, theta: object) -> None:
    torch.testing.assert_close(
        u.apply(images, theta), by_torch(u, images, theta), atol=PRECISION[images.dtype], rtol=0, equal_nan=True
    )


def geometric(outside: float | str) -> list[apac.Deformation]:
    return [
        apac.Homography(std=0.2, padding=outside),
        apac.Elastic(sigma=2.0, alpha=15.0, padding=outside),
        apac.ScaleShift(padding=outside),
        apac.Compose(apac.Homography(padding=outside), apac.Elastic(padding=outside), apac.Flip(), apac.Thickness()),
    ]


def test_the_kernels_are_in_use():
    assert cpu.kernels(torch.zeros(1)).__name__ == "apac.deform.kernels"


@each_kind
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_kernel_does_what_torch_does_with_a_draw_for_each_image_and_one_for_all(u, size, channels, random):
    shape = (channels, *size)
    images = torch.rand(5, *shape, generator=random)
    for n in (5, 1):
        agree(u, images, u.sample(n, shape, generator=random))


@each_kind
@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_a_kernel_does_what_torch_does_in_every_precision(u, dtype, random):
    images = torch.rand(6, 2, 11, 14, generator=random).to(dtype)
    agree(u, images, u.sample(6, (2, 11, 14), generator=random))


@each_kind
@pytest.mark.parametrize("beyond", [0, 1, cpu.TILE[1] - 1], ids=lambda n: f"TILE+{n}")
def test_more_images_than_a_tile_are_deformed_as_they_are_by_torch(u, beyond, random):
    n = cpu.TILE[1] + beyond
    images = torch.rand(n, 1, 9, 8, generator=random)
    for count in (n, 1):
        agree(u, images, u.sample(count, (1, 9, 8), generator=random))


@each_outside
@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_a_kernel_shows_outside_the_image_what_torch_shows(outside, dtype, random):
    images = torch.rand(4, 3, 13, 10, generator=random).to(dtype)
    for u in geometric(outside):
        for n in (4, 1):
            agree(u, images, u.sample(n, (3, 13, 10), generator=random))


@each_outside
@pytest.mark.parametrize("shift", [0.9, 2.0, 2.2, 30.0, -2.2, -30.0])
def test_what_is_shown_from_beyond_the_image_is_the_outside_alone(shift, outside, random):
    images = torch.rand(1, 2, 8, 6, generator=random)
    u = apac.Homography(padding=outside)
    matrix = torch.eye(3)[None].clone()
    matrix[0, 0, 2] = shift
    theta = HomographyParameters(matrix)
    agree(u, images, theta)
    if abs(shift) > 2:
        edge = images[..., -1:] if shift > 0 else images[..., :1]
        expected = edge.expand_as(images) if outside == "edge" else torch.full_like(images, outside)
        torch.testing.assert_close(u.apply(images, theta), expected, atol=1e-6, rtol=0)


def test_no_images_give_no_images(random):
    for u in KINDS:
        assert u.apply(torch.zeros(0, 3, 6, 5), u.sample(0, (3, 6, 5), generator=random)).shape == (0, 3, 6, 5)


@each_outside
def test_a_nan_pixel_is_seen_near_it_and_nowhere_else(outside, random):
    images = torch.rand(20, 1, 16, 16, generator=random)
    images[:, :, 8, 5] = torch.nan
    mark = torch.zeros_like(images)
    mark[:, :, 8, 5] = 1.0
    for u in geometric(outside)[:3]:
        theta = u.sample(20, (1, 16, 16), generator=random)
        weight = by_torch(type(u)(padding=0.0, **parameters_of(u)), mark, theta)
        got, expected = u.apply(images, theta), by_torch(u, images, theta)
        assert expected[weight > 1e-3].isnan().all()
        assert got[weight > 1e-3].isnan().all()
        # with no weight a neighbor may still meet it: 0 · NaN is NaN
        at_a_distance = (
            torch.nn.functional.max_pool2d(expected.isnan().float(), 3, stride=1, padding=1) + (weight > 0) == 0
        )
        assert not got[at_a_distance].isnan().any()
        torch.testing.assert_close(got[at_a_distance], expected[at_a_distance], atol=1e-5, rtol=0)
        assert (weight > 1e-3).any()
        assert at_a_distance.sum() > 1000


def parameters_of(u: apac.Deformation) -> dict[str, object]:
    return {name: getattr(u, name) for name in u.__dataclass_fields__ if name != "outside"}


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("element", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [*SIZES, (3, 4)], ids=str)
def test_thickness_is_grey_dilation_and_erosion_in_every_precision(size, element, dtype, random):
    images = torch.rand(9, 2, *size, generator=random).to(dtype)
    change = torch.arange(9, dtype=torch.int8) % 3 - 1
    u = apac.Thickness(size=element)
    got = u.apply(images, ThicknessParameters(change))
    assert torch.equal(got, by_torch(u, images, ThicknessParameters(change)))
    oracle = {1: ndimage.grey_dilation, -1: ndimage.grey_erosion, 0: lambda image, size: image}
    for image, kind, result in zip(images.float().numpy(), change.tolist(), got.float().numpy(), strict=True):
        expected = np.stack([oracle[kind](channel, size=(element, element)) for channel in image])
        np.testing.assert_array_equal(result, expected)
    for i in range(3):
        alone = u.apply(images, ThicknessParameters(change[i : i + 1]))
        assert torch.equal(alone[i::3], got[i::3])


@pytest.mark.parametrize("element", [2, 3, 5])
@pytest.mark.parametrize("after_a_warp", [False, True])
def test_nan_and_infinity_spread_through_a_thickness_as_they_do_by_torch(element, after_a_warp, random):
    images = torch.rand(6, 1, 9, 12, generator=random)
    images[:, 0, 2, 3], images[:, 0, 6, 8], images[:, 0, 0, 11] = torch.nan, torch.inf, -torch.inf
    u, theta = apac.Thickness(size=element), ThicknessParameters(torch.tensor([1, -1, 0, 1, -1, 0], dtype=torch.int8))
    if after_a_warp:
        images = images.nan_to_num(posinf=9, neginf=-9)
        images[:, 0, 2, 3] = torch.nan
        flip = apac.Flip()
        u, theta = apac.Compose(flip, u), ComposeParameters((flip.sample(6, (1, 9, 12), generator=random), theta))
    got, expected = u.apply(images, theta), by_torch(u, images, theta)
    assert expected.isnan().any()
    if not after_a_warp:
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
        return
    # a warp gives NaN to a neighbor of no weight on one side or the other, and the window widens that
    unclear = torch.nn.functional.max_pool2d(expected.isnan().float(), 3, stride=1, padding=1) > 0
    torch.testing.assert_close(got[~unclear], expected[~unclear], atol=1e-5, rtol=0)
    assert got[expected.isnan()].isnan().float().mean() > 0.5


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(2, 3),
    "strided": lambda x: x[::2, :, ::2, 1::2],
    "turned": lambda x: x.permute(1, 0, 3, 2),
    "expanded": lambda x: x[:1, :1].expand(6, 3, -1, -1),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "part of a larger one": lambda x: x[1:4, 1:, 2:, :-3],
}


@each_kind
@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_may_lie_in_memory_in_any_order_and_stay_as_they_are(u, layout, random):
    images = LAYOUTS[layout](torch.rand(6, 3, 12, 18, generator=random))
    kept = images.clone()
    for n in (len(images), 1):
        theta = u.sample(n, tuple(images.shape[1:]), generator=random)
        agree(u, images, theta)
        torch.testing.assert_close(u.apply(images, theta), u.apply(kept.contiguous(), theta), atol=1e-6, rtol=0)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("u", [u for u in KINDS if not isinstance(u, apac.Color)], ids=repr)
def test_two_threads_give_the_same_bits_as_one(u):
    n = 2 * cpu.TILE[1] + 3
    images = torch.rand(n, 3, 12, 13, generator=generator(0, "test", 1))

    def results(threads: int) -> list[Tensor]:
        with torch_threads(threads):
            thetas = [u.sample(k, (3, 12, 13), generator=generator(0, "test", 2)) for k in (n, 1)]
            return [
                *[u.apply(images, theta) for theta in thetas],
                u.apply(images[:40], trees.rows(thetas[0], slice(0, 40))),
            ]

    for one, two in zip(results(1), results(2), strict=True):
        assert torch.equal(one, two)


# Sizes for which the denominator is exactly 0 somewhere, however it is rounded on the way.
SINGULAR = [
    ((1, 0, 0), (7, 7)),
    ((0, 1, 0), (7, 7)),
    ((2, -2, 0), (8, 8)),
    ((0, 0, 0), (5, 6)),
    ((0, 0, torch.inf), (7, 7)),
    ((torch.nan, 0, 1), (7, 7)),
]


@each_outside
@pytest.mark.parametrize("displaced", [False, True])
@pytest.mark.parametrize(("row", "size"), SINGULAR)
def test_infinite_and_nan_places_of_a_singular_homography_show_what_they_show_by_torch(
    row, size, displaced, outside, random
):
    matrix = torch.eye(3).repeat(3, 1, 1)
    matrix[:, 2] = torch.tensor(row)
    matrix[1, 0, 2] = matrix[2, 1, 1] = 0.5
    u, theta = apac.Homography(padding=outside), HomographyParameters(matrix)
    images = torch.rand(3, 2, *size, generator=random)
    if displaced:
        elastic = apac.Elastic(sigma=2.0, alpha=3.0, padding=outside)
        u = apac.Compose(u, elastic)
        theta = ComposeParameters((theta, elastic.sample(3, (2, *size), generator=random)))
    agree(u, images, theta)
    assert u.apply(images, theta).isfinite().all()


@each_kind
def test_gradients_flow_to_the_images(u, random):
    images = torch.rand(3, 2, 8, 9, generator=random)
    theta = u.sample(3, (2, 8, 9), generator=random)
    leaf = images.clone().requires_grad_()
    result = u.apply(leaf, theta)
    torch.testing.assert_close(result.detach(), u.apply(images, theta), atol=1e-5, rtol=0)
    weights = torch.rand(result.shape, generator=random)
    (result * weights).sum().backward()
    step = 1e-3 * torch.rand(images.shape, generator=random, dtype=torch.float64)
    moved, still = (u.apply(images.double() + d, theta) for d in (step, torch.zeros_like(step)))
    if "Thickness" not in repr(u) and "Color" not in repr(u):  # those are not linear
        expected = ((moved - still) * weights).sum()
        torch.testing.assert_close((leaf.grad * step).sum(), expected, rtol=1e-3, atol=1e-6)
    assert leaf.grad.abs().sum() > 0


def test_gradients_flow_to_the_images_of_more_than_one_tile(random):
    u = apac.presets.mnist()
    images = torch.rand(cpu.TILE[1] + 1, 1, 6, 6, generator=random).requires_grad_()
    u.apply(images, u.sample(len(images), (1, 6, 6), generator=random)).sum().backward()
    assert images.grad.abs().flatten(1).sum(1).gt(0).float().mean() > 0.9


@pytest.mark.parametrize("n", [3, cpu.TILE[1] + 1])
@pytest.mark.parametrize("u", [apac.Homography(padding="edge"), apac.Elastic(sigma=2.0, alpha=9.0)], ids=repr)
def test_gradients_flow_to_the_parameters(u, n, random):
    images = torch.rand(n, 1, 8, 9, generator=random)
    theta = u.sample(n, (1, 8, 9), generator=random)
    (leaf,) = (getattr(theta, name).requires_grad_() for name in theta.__dataclass_fields__)
    u.apply(images, theta).sum().backward()
    assert leaf.grad.abs().sum() > 0


@dataclass(frozen=True)
class Gray(apac.Deformation):
    """A kind of one's own that changes the number of channels and the type."""

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return torch.zeros(n)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return images.mean(dim=1, keepdim=True).double()


@pytest.mark.parametrize("n", [5, cpu.TILE[1] + 5])
def test_a_part_of_ones_own_may_change_channels_and_type_of_any_number_of_images(n, random):
    images = torch.rand(n, 3, 6, 5, generator=random)
    u = apac.Compose(Gray(), apac.Flip(1.0))
    result = u.apply(images, u.sample(n, (3, 6, 5), generator=random))
    torch.testing.assert_close(result, images.mean(dim=1, keepdim=True).double().flip(-1))


@dataclass(frozen=True)
class Add(apac.Deformation):
    """A kind of one's own with a field that does not count when it is compared."""

    amount: float = field(compare=False)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return torch.zeros(n)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return images + self.amount


def test_a_compose_applies_its_own_parts_not_equal_ones_of_another(random):
    images = torch.zeros(2, 1, 3, 3)
    for amount in (1.0, 5.0):
        u = apac.Compose(Add(amount))
        assert (u.apply(images, u.sample(2, (1, 3, 3), generator=random)) == amount).all()


def test_images_that_require_gradients_may_be_deformed_where_none_are_recorded(random):
    u = apac.presets.mnist()
    images = torch.rand(4, 1, 8, 8, generator=random)
    theta = u.sample(4, (1, 8, 8), generator=random)
    with torch.no_grad():
        assert torch.equal(u.apply(images.clone().requires_grad_(), theta), u.apply(images, theta))


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "apac.deform.kernels", raising=False)
    cpu._kernels.cache_clear()
    yield
    cpu._kernels.cache_clear()


def test_without_numba_everything_works_and_one_line_says_so(no_numba, caplog):
    n = cpu.TILE[1] + 2
    images = torch.rand(n, 3, 7, 9, generator=generator(0, "test", 3))
    with caplog.at_level(logging.DEBUG, logger="apac"):
        slow = [u.apply(images, u.sample(n, (3, 7, 9), generator=generator(0, "test", i))) for i, u in enumerate(KINDS)]
    (line,) = caplog.messages
    assert "numba cannot be used" in line
    assert "\n" not in line
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "numba")
        cpu._kernels.cache_clear()
        assert cpu.kernels(images) is not None
        for i, (u, expected) in enumerate(zip(KINDS, slow, strict=True)):
            got = u.apply(images, u.sample(n, (3, 7, 9), generator=generator(0, "test", i)))
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


EXTREME_KEYS = torch.tensor(
    [[0, 0], [0xFFFFFFFF, 0xFFFFFFFF], [0xFFFFFFFF, 0], [0, 0xFFFFFFFF], [1 << 31, 1 << 31], [0x7FFFFFFF, 5]]
)


@pytest.mark.parametrize("count", [0, 1, 7, 1568])
def test_noise_of_the_kernel_is_bit_equal_with_torch(count, random):
    keys = torch.cat([EXTREME_KEYS, torch.randint(1 << 32, (40, 2), generator=random)])
    out = torch.empty(len(keys), count)
    cpu.kernels(keys).noise(keys.numpy(), out.numpy())
    assert torch.equal(out, noise._by_torch(keys, count))
    assert ((out >= -1) & (out < 1)).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [1, 256, 257, 600])
def test_noise_is_the_same_with_and_without_the_kernel_on_any_number_of_threads(n, threads):
    with torch_threads(threads):
        fast = noise.uniform_noise(n, 50, generator=generator(0, "test", n))
    with torch_alone():
        slow = noise.uniform_noise(n, 50, generator=generator(0, "test", n))
    assert torch.equal(fast, slow)
    assert fast.dtype == torch.float32
    assert len(fast.unique(dim=0)) == n


def test_noise_is_a_hash_of_key_and_place_by_hand():
    def scramble(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
        x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
        return x ^ (x >> 16)

    def number(first: int, second: int, j: int) -> float:
        return (scramble(scramble((first + j) & 0xFFFFFFFF) ^ second) >> 8) / (1 << 23) - 1

    out = torch.empty(len(EXTREME_KEYS), 5)
    cpu.kernels(out).noise(EXTREME_KEYS.numpy(), out.numpy())
    assert out.tolist() == [[number(a, b, j) for j in range(5)] for a, b in EXTREME_KEYS.tolist()]


def test_noise_is_uniform(random):
    values = noise.uniform_noise(300, 784, generator=random).double().numpy()
    assert stats.kstest(values.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    by_place = [stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue for column in values.T[:200]]
    assert stats.kstest(by_place, "uniform").pvalue > 1e-3


def correlated(one: Tensor, other: Tensor) -> float:
    """Their correlation, in standard errors of independent numbers."""
    return abs(float(np.corrcoef(one.flatten(), other.flatten())[0, 1])) * one.numel() ** 0.5


def test_noise_of_neighboring_keys_and_pixels_is_not_correlated(random):
    first = torch.randint(1 << 32, (1, 1), generator=random)
    counted = torch.arange(400)[:, None]
    fixed = torch.full_like(counted, 12345)
    for keys in (torch.cat([fixed, counted], 1), torch.cat([(first + counted * 1568) % (1 << 32), fixed], 1)):
        out = torch.empty(400, 784)
        cpu.kernels(out).noise(keys.numpy(), out.numpy())
        assert correlated(out[:-1], out[1:]) < 4
        for apart in (1, 2, 28, 392):
            assert correlated(out[:, :-apart], out[:, apart:]) < 4
            assert correlated(out[:, :-apart].abs(), out[:, apart:].abs()) < 4
        assert correlated(out[:-1, 1:], out[1:, :-1]) < 4


def test_draws_of_different_numbers_are_refused_not_misread(random):
    u = apac.Compose(apac.Homography(), apac.Elastic())
    many, few = (u.sample(n, (1, 6, 6), generator=random) for n in (8, 3))
    mixed = type(many)((many.parts[0], few.parts[1]))
    with pytest.raises(apac.InputError, match=r"displacement of 8 images must have the shape \(1 or 8, 2, 6, 6\)"):
        u.apply(torch.rand(8, 1, 6, 6), mixed)
