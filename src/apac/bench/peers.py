"""Other libraries, with their fastest settings for the same kind of deformation.

For MNIST: a random perspective, an elastic distortion with the same σ and α, and dilation or erosion of half of the
images. For CIFAR-10: scale and shift, elastic distortion, flip. For photos: scale, rotation and shear, perspective,
flip, gamma correction and color cast. At other sizes the strengths are scaled as `apac` scales them. Each image has
separate parameters. Libraries that are not installed are skipped.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apac import models
from apac.randomness import generator

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "photos": (3, 32, 32)}
ELASTIC = {"mnist": (6.0, 38.0), "cifar10": (8.0, 40.0)}  # σ and α in pixels, at these sizes


def installed(name: str) -> bool:
    return find_spec(name) is not None


def kornia(preset: str, *, size: int | None = None, same_on_batch: bool = False) -> Callable[[Tensor], Tensor]:
    """Return a function that deforms a batch of images, with separate parameters per image or shared ones."""
    import kornia.augmentation as augmentation
    from kornia.morphology import dilation, erosion

    if preset == "photos":
        return nn.Sequential(
            augmentation.RandomAffine(4.0, (0.17, 0.17), (1.0, 1.5), 4.0, same_on_batch=same_on_batch),
            augmentation.RandomPerspective(0.1, p=1.0, same_on_batch=same_on_batch),
            augmentation.RandomHorizontalFlip(same_on_batch=same_on_batch),
            augmentation.RandomGamma((0.8, 1.25), p=1.0, same_on_batch=same_on_batch),
            augmentation.RandomRGBShift(0.03, 0.03, 0.03, p=1.0, same_on_batch=same_on_batch),
        )
    size = size or SHAPES[preset][1]
    factor = size / SHAPES[preset][1]
    sigma, alpha = ELASTIC[preset][0] * factor, ELASTIC[preset][1] * factor**2
    window = 2 * int(4 * sigma + 0.5) + 1
    strength = 2 * alpha / size  # kornia's coordinates are from -1 to 1
    elastic = augmentation.RandomElasticTransform(
        (window, window), (sigma, sigma), (strength, strength), p=1.0, same_on_batch=same_on_batch
    )
    side = 1 + round(factor)
    element = torch.ones(side, side)
    if preset == "cifar10":
        # faster than RandomResizedCrop in either of its modes
        crop = augmentation.RandomAffine(0.0, (0.25, 0.25), (1.0, 2.0), same_on_batch=same_on_batch)
        return nn.Sequential(crop, elastic, augmentation.RandomHorizontalFlip(same_on_batch=same_on_batch))
    warp = nn.Sequential(augmentation.RandomPerspective(0.2, p=1.0, same_on_batch=same_on_batch), elastic)

    def run(images: Tensor) -> Tensor:
        warped = warp(images)
        quarter = len(images) // 4
        thick, thin = dilation(warped[:quarter], element), erosion(warped[quarter : 2 * quarter], element)
        return torch.cat([thick, thin, warped[2 * quarter :]])

    return run


def _albumentations(preset: str) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return a function that deforms one image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import albumentations as al
        import cv2

    cv2.setNumThreads(1)  # an image is too small for several threads
    sigma, alpha = ELASTIC[preset]
    size = SHAPES[preset][1]
    elastic = al.ElasticTransform(alpha=alpha, sigma=sigma, p=1)
    if preset == "cifar10":
        crop = al.RandomResizedCrop((size, size), scale=(0.25, 1.0), ratio=(1.0, 1.0), p=1)
        chain = al.Compose([crop, elastic, al.HorizontalFlip(p=0.5)])
    else:
        morphology = [al.Morphological((2, 2), operation, p=1) for operation in ("dilation", "erosion")]
        chain = al.Compose([al.Perspective((0.05, 0.1), p=1), elastic, al.OneOf(morphology, p=0.5)])
    return lambda image: chain(image=image)["image"]


def _scipy(preset: str) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return a function that deforms one image with scipy.ndimage."""
    from scipy import ndimage

    random = np.random.default_rng(0)
    sigma, alpha = ELASTIC[preset]
    size = SHAPES[preset][1]
    grid = np.array(np.mgrid[:size, :size], dtype=np.float32)

    def run(image: np.ndarray[Any, Any]) -> Any:
        noise = random.uniform(-1, 1, (2, size, size)).astype(np.float32)
        displacement = [alpha * ndimage.gaussian_filter(axis, sigma, mode="constant") for axis in noise]
        scale = 1 + 0.1 * random.standard_normal(2)
        coordinates = grid * scale[:, None, None] + displacement
        planes = [ndimage.map_coordinates(plane, coordinates, order=1) for plane in np.moveaxis(image, -1, 0)]
        if preset == "cifar10":
            return np.stack(planes)[:, :, :: random.choice((-1, 1))]
        change = random.integers(4)
        if change > 1:
            return np.stack(planes)
        return (ndimage.grey_dilation if change else ndimage.grey_erosion)(planes[0], size=(2, 2))

    return run


LOOPS = {"albumentations": _albumentations, "scipy": _scipy}


@contextmanager
def loop_in_processes(peer: str, preset: str, count: int) -> Iterator[Callable[[], float]]:
    """Provide a contestant that loops over images in one process per core."""
    cores = torch.get_num_threads()
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:

        def work() -> float:
            list(pool.map(partial(_loop, peer, preset), [count] * cores))
            return count * cores

        yield work


def _loop(peer: str, preset: str, count: int) -> None:
    run, images = _loop_of(peer, preset, count)
    for image in images:
        run(image)


@lru_cache(maxsize=1)
def _loop_of(peer: str, preset: str, count: int) -> tuple[Callable[[Any], Any], Any]:
    torch.set_num_threads(1)
    channels, height, width = SHAPES[preset]
    return LOOPS[peer](preset), np.random.default_rng(0).random((count, height, width, channels), dtype=np.float32)


def plain_network(name: str) -> nn.Sequential:
    """Build the network in its usual form: ReLU before the pooling, torch's default memory format."""
    network = models.build(name, generator=generator(0, "bench", 0))
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    layers: list[nn.Module] = []
    for layer in network:
        if isinstance(layer, nn.ReLU) and isinstance(layers[-1], nn.MaxPool2d):
            layers.insert(-1, layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def ttach_wrapper(network: nn.Module) -> tuple[nn.Module, int]:
    """Return ttach's wrapper, which runs passes sequentially, and its number of views."""
    import ttach

    views = ttach.Compose([ttach.HorizontalFlip(), ttach.Multiply([0.9, 1.0, 1.1])])
    return ttach.ClassificationTTAWrapper(network, views, merge_mode="mean"), 6
