"""Passes per second with a pipeline of another library, compared with the same pipeline in a loop over batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from apac.adapters.transforms.libraries import from_albumentations, from_kornia, from_torchvision
from apac.bench import peers
from apac.bench.race import Entry, race
from apac.classify.classifier import Classifier
from apac.deform.base import Deformation
from apac.progress import Progress

# For each side in pixels: the number of images, and the batch sizes of the loops.
SIZES = {32: (1024, (64, 128, 256, 512)), 224: (64, (1, 4, 16, 64))}
PASSES = 4
APAC = "apac"


def measure(rounds: int, progress: Progress) -> list[Entry]:
    available = [library for library in PIPELINES if peers.installed(library)]
    return [entry for size in SIZES for library in available for entry in _measure(library, size, rounds, progress)]


def _measure(library: str, size: int, rounds: int, progress: Progress) -> list[Entry]:
    count, batch_sizes = SIZES[size]
    images = torch.rand(count, 3, size, size)
    deformation, by_hand = PIPELINES[library]()
    network = _network()
    classifier = Classifier(network, deformation).prepared(images, 1_000)

    def apac() -> float:
        classifier.score(images, 0, PASSES)
        return PASSES * count

    contestants: dict[str, Callable[[], float]] = {APAC: apac}
    for batch in batch_sizes:
        contestants[f"by hand, batches of {batch}"] = partial(_loop, network, by_hand, images.split(batch))
    group = f"passes per second, {library}, 3 × {size} × {size}"
    with torch.no_grad():
        speed = race(group, contestants, rounds, progress)
    return [Entry(group, name, value, "passes/s", APAC, speed[APAC] / value) for name, value in speed.items()]


def _loop(network: nn.Module, transform: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> float:
    """Run the passes as one would without this package: a transformed batch, its log-probabilities, their sum."""
    sums = [torch.zeros(())] * len(batches)
    for _ in range(PASSES):
        for index, batch in enumerate(batches):
            sums[index] = sums[index] + network(transform(batch)).log_softmax(dim=1)
    return PASSES * sum(map(len, batches))


def _network() -> nn.Module:
    """Build a network so small that the transforms take most of the time."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


Pipeline = tuple[Deformation, Callable[[Tensor], Tensor]]  # the deformation, and the same transform by hand


def _kornia() -> Pipeline:
    import kornia.augmentation as augmentation

    def build(same_on_batch: bool) -> Any:
        return augmentation.AugmentationSequential(
            augmentation.RandomAffine(15.0, (0.1, 0.1), (0.9, 1.1), p=1.0),
            augmentation.RandomHorizontalFlip(),
            augmentation.ColorJiggle(0.2, 0.2, p=1.0),
            data_keys=["input"],
            same_on_batch=same_on_batch,
        )

    return from_kornia(build(False)), build(True)


@lru_cache(maxsize=1)
def _register_detection_operators() -> torch.library.Library:
    """Let a torchvision that was built for CUDA be imported: it lacks two operators, which no transform uses."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _torchvision() -> Pipeline:
    _register_detection_operators()
    from torchvision.transforms import v2

    affine = v2.RandomAffine(15, (0.1, 0.1), (0.9, 1.1), interpolation=v2.InterpolationMode.BILINEAR)
    chain = v2.Compose([affine, v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2)])
    return from_torchvision(chain), chain


def _albumentations() -> Pipeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import albumentations as al

    affine = al.Affine(rotate=(-15, 15), translate_percent=(-0.1, 0.1), scale=(0.9, 1.1), p=1.0)
    chain = al.Compose([affine, al.HorizontalFlip(), al.RandomBrightnessContrast(p=1.0)])

    def by_hand(images: Tensor) -> Tensor:
        result = chain(images=images.permute(0, 2, 3, 1).contiguous().numpy())["images"]
        return torch.from_numpy(result).permute(0, 3, 1, 2)

    return from_albumentations(chain), by_hand


PIPELINES = {"kornia": _kornia, "torchvision": _torchvision, "albumentations": _albumentations}
