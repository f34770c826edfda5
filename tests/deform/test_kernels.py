"""The CPU kernels compared with the torch path and scipy. Other tests compare both paths with further oracles."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

import apac
from apac import trees
from apac.deform import cpu, kernels
from apac.deform.compose import ComposeParameters
from apac.deform.homography import HomographyParameters
from apac.deform.thickness import ThicknessParameters
from apac.deform.warp import Geometric
from apac.randomness import generator
from kernel_paths import apply_by_torch, torch_threads
from kinds import KINDS

SIZES = [(1, 1), (1, 7), (7, 1), (33, 17), (28, 28)]
PADDINGS = [0.0, 0.3, "edge"]
# Both paths compute coordinates in float32, in different orders and with or without fused multiply-add: they differ by
# a few float32 steps, 1e-6 pixel near coordinate 10. In float64 the parameters are still float32. For float16 it is the
# distance of two numbers near 1. That is 1e-5 for each unit of contrast; images in [0, 1] with padding −1 have 2.
TOLERANCE = {torch.float16: 1e-3, torch.float32: 2e-5, torch.float64: 2e-5}

KERNEL_KINDS = [
    u for u in KINDS if isinstance(u, Geometric | apac.Thickness) or (isinstance(u, apac.Compose) and len(u.parts) > 0)
]
each_kind = pytest.mark.parametrize("u", KINDS, ids=repr)
each_kernel_kind = pytest.mark.parametrize("u", KERNEL_KINDS, ids=repr)
each_padding = pytest.mark.parametrize("padding", PADDINGS)


def assert_paths_agree(u: apac.Deformation, images: Tensor, parameters: object) -> None:
    kernel, torch_result = u.apply(images, parameters), apply_by_torch(u, images, parameters)
    torch.testing.assert_close(kernel, torch_result, atol=TOLERANCE[images.dtype], rtol=0, equal_nan=True)


def geometric(padding: Any) -> list[Any]:
    return [
        apac.Homography(std=0.2, padding=padding),
        apac.Elastic(sigma=2.0, alpha=15.0, padding=padding),
        apac.ScaleShift(padding=padding),
        apac.Compose(apac.Homography(padding=padding), apac.Elastic(padding=padding), apac.Flip(), apac.Thickness()),
    ]


def test_the_kernels_are_in_use():
    assert cpu.kernels_for(torch.zeros(1)) is kernels


@each_kernel_kind
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kernel_and_torch_agree_for_any_size_with_parameters_for_each_image_or_for_all(u, size, random):
    shape = (2, *size)
    images = torch.rand(5, *shape, generator=random)
    for n in (5, 1):
        assert_paths_agree(u, images, u.sample(n, shape, generator=random))


@each_kernel_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_kernel_and_torch_agree_in_every_precision(u, dtype, random):
    images = torch.rand(6, 2, 11, 14, generator=random).to(dtype)
    assert_paths_agree(u, images, u.sample(6, (2, 11, 14), generator=random))


@each_kernel_kind
def test_kernel_and_torch_agree_for_more_images_than_a_tile(u, random):
    n = cpu.MAX_TILE + 1
    images = torch.rand(n, 1, 9, 8, generator=random)
    for count in (n, 1):
        assert_paths_agree(u, images, u.sample(count, (1, 9, 8), generator=random))


@pytest.mark.parametrize("n", [1, 50])
def test_the_kernel_draws_the_patches_of_torch_bit_for_bit(n):
    u = apac.ScaleShift(scale=(1.1, 1.7))

    def draw() -> tuple[Tensor, ...]:
        parameters = u.sample(n, (3, 32, 41), generator=generator(0, "patches", n))
        matrix = u.flow(parameters, (32, 41)).matrix
        assert matrix is not None
        return parameters.scale, parameters.corner, matrix

    by_kernel = draw()
    with cpu.torch_path():
        by_torch = draw()
    assert all(map(torch.equal, by_kernel, by_torch))


@each_padding
def test_kernel_and_torch_agree_for_any_padding(padding, random):
    images = torch.rand(4, 3, 13, 10, generator=random)
    for u in geometric(padding):
        for n in (4, 1):
            assert_paths_agree(u, images, u.sample(n, (3, 13, 10), generator=random))


@each_padding
@pytest.mark.parametrize("shift", [0.9, 2.0, 2.2, 30.0, -2.2, -30.0])
def test_points_far_outside_the_image_show_only_padding(shift, padding, random):
    images = torch.rand(1, 2, 8, 6, generator=random)
    u = apac.Homography(padding=padding)
    matrix = torch.eye(3)[None].clone()
    matrix[0, 0, 2] = shift
    parameters = HomographyParameters(matrix)
    assert_paths_agree(u, images, parameters)
    if abs(shift) > 2:
        edge = images[..., -1:] if shift > 0 else images[..., :1]
        expected = edge.expand_as(images) if padding == "edge" else torch.full_like(images, padding)
        torch.testing.assert_close(u.apply(images, parameters), expected, atol=1e-5, rtol=0)


def test_an_empty_batch_gives_an_empty_batch(random):
    for u in KINDS:
        assert u.apply(torch.zeros(0, 3, 6, 5), u.sample(0, (3, 6, 5), generator=random)).shape == (0, 3, 6, 5)


@each_padding
def test_a_nan_pixel_spreads_to_its_neighbors_only(padding, random):
    images = torch.rand(20, 1, 16, 16, generator=random)
    images[:, :, 8, 5] = torch.nan
    mark = torch.zeros_like(images)
    mark[:, :, 8, 5] = 1.0
    for u in geometric(padding)[:3]:
        parameters = u.sample(20, (1, 16, 16), generator=random)
        weight = apply_by_torch(replace(u, padding=0.0), mark, parameters)
        got, expected = u.apply(images, parameters), apply_by_torch(u, images, parameters)
        assert expected[weight > 1e-3].isnan().all()
        assert got[weight > 1e-3].isnan().all()
        # a neighbor of weight 0 may become NaN too: 0 · NaN is NaN
        distant = torch.nn.functional.max_pool2d(expected.isnan().float(), 3, stride=1, padding=1) + (weight > 0) == 0
        assert not got[distant].isnan().any()
        torch.testing.assert_close(got[distant], expected[distant], atol=1e-5, rtol=0)
        assert (weight > 1e-3).any()
        assert distant.sum() > 1000


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("element", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (3, 4), (28, 28)], ids=str)
def test_thickness_is_gray_dilation_and_erosion_in_every_precision(size, element, dtype, random):
    images = torch.rand(9, 2, *size, generator=random).to(dtype)
    change = torch.arange(9, dtype=torch.int8) % 3 - 1
    u = apac.Thickness(size=element)
    got = u.apply(images, ThicknessParameters(change))
    assert torch.equal(got, apply_by_torch(u, images, ThicknessParameters(change)))
    oracle = {1: ndimage.grey_dilation, -1: ndimage.grey_erosion, 0: lambda image, size: image}
    for image, kind, result in zip(images.float().numpy(), change.tolist(), got.float().numpy(), strict=True):
        expected = np.stack([oracle[kind](channel, size=(element, element)) for channel in image])
        np.testing.assert_array_equal(result, expected)
    for i in range(3):
        alone = u.apply(images, ThicknessParameters(change[i : i + 1]))
        assert torch.equal(alone[i::3], got[i::3])


@pytest.mark.parametrize("element", [2, 3, 5])
@pytest.mark.parametrize("after_a_warp", [False, True])
def test_nan_and_infinity_propagate_through_thickness_as_in_torch(element, after_a_warp, random):
    images = torch.rand(6, 1, 9, 12, generator=random)
    images[:, 0, 2, 3], images[:, 0, 6, 8], images[:, 0, 0, 11] = torch.nan, torch.inf, -torch.inf
    u: apac.Deformation = apac.Thickness(size=element)
    parameters: object = ThicknessParameters(torch.tensor([1, -1, 0, 1, -1, 0], dtype=torch.int8))
    if after_a_warp:
        images = images.nan_to_num(posinf=9, neginf=-9)
        images[:, 0, 2, 3] = torch.nan
        flip = apac.Flip()
        u = apac.Compose(flip, u)
        parameters = ComposeParameters((flip.sample(6, (1, 9, 12), generator=random), parameters))
    got, expected = u.apply(images, parameters), apply_by_torch(u, images, parameters)
    assert expected.isnan().any()
    if not after_a_warp:
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
        return
    # whether a neighbor of weight 0 becomes NaN differs between the paths, and the window widens the difference
    unclear = torch.nn.functional.max_pool2d(expected.isnan().float(), 3, stride=1, padding=1) > 0
    torch.testing.assert_close(got[~unclear], expected[~unclear], atol=1e-5, rtol=0)
    assert got[expected.isnan()].isnan().float().mean() > 0.5


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(2, 3),
    "strided": lambda x: x[::2, :, ::2, 1::2],
    "permuted": lambda x: x.permute(1, 0, 3, 2),
    "expanded": lambda x: x[:1, :1].expand(6, 3, -1, -1),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "slice": lambda x: x[1:4, 1:, 2:, :-3],
}


@pytest.mark.parametrize("u", [apac.presets.cifar10(), apac.presets.mnist(), apac.Thickness(), apac.Color()], ids=repr)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_may_have_any_memory_layout_and_are_not_modified(u, layout, random):
    images = LAYOUTS[layout](torch.rand(6, 3, 12, 18, generator=random))
    kept = images.clone()
    for n in (len(images), 1):
        parameters = u.sample(n, tuple(images.shape[1:]), generator=random)
        assert_paths_agree(u, images, parameters)
        expected = u.apply(kept.contiguous(), parameters)
        torch.testing.assert_close(u.apply(images, parameters), expected, atol=1e-5, rtol=0)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("u", [apac.presets.cifar10(), apac.presets.mnist(), apac.Thickness()], ids=repr)
def test_two_threads_give_the_same_bits_as_one(u):
    """The tiles are the same for any number of threads here, so the same code runs on the same numbers."""
    n = 2 * cpu.MAX_TILE + 3
    images = torch.rand(n, 1, 12, 13, generator=generator(0, "test", 1))

    def results(threads: int) -> list[Tensor]:
        with torch_threads(threads):
            all_parameters = [u.sample(k, (1, 12, 13), generator=generator(0, "test", 2)) for k in (n, 1)]
            return [
                *[u.apply(images, parameters) for parameters in all_parameters],
                u.apply(images[:40], trees.rows(all_parameters[0], slice(0, 40))),
            ]

    for one, two in zip(results(1), results(2), strict=True):
        assert torch.equal(one, two)


# The last row of H, and sizes for which the denominator is exactly 0 somewhere in any order of operations.
SINGULAR = [
    ((1, 0, 0), (7, 7)),
    ((0, 1, 0), (7, 7)),
    ((2, -2, 0), (8, 8)),
    ((0, 0, 0), (5, 6)),
    ((0, 0, torch.inf), (7, 7)),
    ((torch.nan, 0, 1), (7, 7)),
]


@each_padding
@pytest.mark.parametrize("displaced", [False, True])
@pytest.mark.parametrize(("row", "size"), SINGULAR)
def test_kernel_and_torch_agree_on_infinite_and_nan_coordinates_of_a_singular_homography(
    row, size, displaced, padding, random
):
    matrix = torch.eye(3).repeat(3, 1, 1)
    matrix[:, 2] = torch.tensor(row)
    matrix[1, 0, 2] = matrix[2, 1, 1] = 0.5
    u: apac.Deformation = apac.Homography(padding=padding)
    parameters: object = HomographyParameters(matrix)
    images = torch.rand(3, 2, *size, generator=random)
    if displaced:
        elastic = apac.Elastic(sigma=2.0, alpha=3.0, padding=padding)
        u = apac.Compose(u, elastic)
        parameters = ComposeParameters((parameters, elastic.sample(3, (2, *size), generator=random)))
    assert_paths_agree(u, images, parameters)
    assert u.apply(images, parameters).isfinite().all()


@each_kind
def test_gradients_flow_to_the_images(u, random):
    images = torch.rand(3, 2, 8, 9, generator=random)
    parameters = u.sample(3, (2, 8, 9), generator=random)
    leaf = images.clone().requires_grad_()
    result = u.apply(leaf, parameters)
    torch.testing.assert_close(result.detach(), u.apply(images, parameters), atol=1e-5, rtol=0)
    weights = torch.rand(result.shape, generator=random)
    (result * weights).sum().backward()
    step = 1e-3 * torch.rand(images.shape, generator=random, dtype=torch.float64)
    moved, unmoved = (u.apply(images.double() + d, parameters) for d in (step, torch.zeros_like(step)))
    assert leaf.grad is not None
    if "Thickness" not in repr(u) and "Color" not in repr(u):  # those are not linear
        expected = ((moved - unmoved) * weights).sum()
        torch.testing.assert_close((leaf.grad * step).sum(), expected, rtol=1e-3, atol=1e-6)
    assert leaf.grad.abs().sum() > 0


def test_gradients_flow_to_more_images_than_a_tile(random):
    u = apac.presets.mnist()
    images = torch.rand(cpu.MAX_TILE + 1, 1, 6, 6, generator=random).requires_grad_()
    u.apply(images, u.sample(len(images), (1, 6, 6), generator=random)).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().flatten(1).sum(1).gt(0).float().mean() > 0.9


@pytest.mark.parametrize("n", [3, cpu.MAX_TILE + 1])
@pytest.mark.parametrize("u", [apac.Homography(padding="edge"), apac.Elastic(sigma=2.0, alpha=9.0)], ids=repr)
def test_gradients_flow_to_the_parameters(u, n, random):
    images = torch.rand(n, 1, 8, 9, generator=random)
    parameters = u.sample(n, (1, 8, 9), generator=random)
    (leaf,) = (getattr(parameters, name).requires_grad_() for name in parameters.__dataclass_fields__)
    u.apply(images, parameters).sum().backward()
    assert leaf.grad.abs().sum() > 0


@dataclass(frozen=True)
class Gray(apac.Deformation):
    """A user-defined deformation that changes the number of channels and the type."""

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return torch.zeros(n)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return images.mean(dim=1, keepdim=True).double()


@pytest.mark.parametrize("n", [5, cpu.MAX_TILE + 5])
def test_a_user_defined_part_may_change_channels_and_type(n, random):
    images = torch.rand(n, 3, 6, 5, generator=random)
    u = apac.Compose(Gray(), apac.Flip(1.0))
    result = u.apply(images, u.sample(n, (3, 6, 5), generator=random))
    torch.testing.assert_close(result, images.mean(dim=1, keepdim=True).double().flip(-1))


@dataclass(frozen=True)
class Add(apac.Deformation):
    """A user-defined deformation with a field that is not compared."""

    amount: float = field(compare=False)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return torch.zeros(n)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return images + self.amount


def test_a_compose_applies_its_own_parts_not_equal_parts_of_another(random):
    images = torch.zeros(2, 1, 3, 3)
    for amount in (1.0, 5.0):
        u = apac.Compose(Add(amount))
        assert (u.apply(images, u.sample(2, (1, 3, 3), generator=random)) == amount).all()


def test_images_that_require_gradients_are_deformed_by_the_kernels_under_no_grad(random):
    u = apac.presets.mnist()
    images = torch.rand(4, 1, 8, 8, generator=random)
    parameters = u.sample(4, (1, 8, 8), generator=random)
    with torch.no_grad():
        assert torch.equal(u.apply(images.clone().requires_grad_(), parameters), u.apply(images, parameters))


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "numba", None)
    caches = (cpu._load_kernels, cpu._log_missing)
    for module in ("apac.deform.kernels", "apac.training.pooled_kernels"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_without_numba_training_works_and_one_warning_is_logged(no_numba, caplog):
    data = torch.rand(20, 1, 28, 28, generator=generator(0, "test", 3)), torch.arange(20) % 2
    with caplog.at_level(logging.WARNING, logger="apac"):
        apac.train("mnist-cnn", data, config=apac.TrainConfig(epochs=1, validation_fraction=0.0))
    (line,) = [message for message in caplog.messages if "numba" in message]
    assert "numba is unavailable" in line


def test_without_numba_torch_gives_the_same_results_and_one_warning_is_logged(no_numba, caplog):
    n = cpu.MAX_TILE + 2
    images = torch.rand(n, 3, 7, 9, generator=generator(0, "test", 3))
    with caplog.at_level(logging.DEBUG, logger="apac"):
        slow = [u.apply(images, u.sample(n, (3, 7, 9), generator=generator(0, "test", i))) for i, u in enumerate(KINDS)]
    (line,) = caplog.messages
    assert "numba is unavailable" in line
    assert "\n" not in line
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "numba")
        cpu._load_kernels.cache_clear()
        assert cpu.kernels_for(images) is not None
        for i, (u, expected) in enumerate(zip(KINDS, slow, strict=True)):
            got = u.apply(images, u.sample(n, (3, 7, 9), generator=generator(0, "test", i)))
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


def test_parts_with_different_numbers_of_parameters_are_rejected(random):
    u = apac.Compose(apac.Homography(), apac.Elastic())
    many, few = (u.sample(n, (1, 6, 6), generator=random) for n in (8, 3))
    mixed = type(many)((many.parts[0], few.parts[1]))
    with pytest.raises(apac.InputError, match=r"displacement of 8 images must have the shape \(1 or 8, 2, 6, 6\)"):
        u.apply(torch.rand(8, 1, 6, 6), mixed)
