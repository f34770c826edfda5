"""The training images, the held-out images, and the normalization that is fitted on the former."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from apac.data.base import Dataset, scale_pixels
from apac.data.mapped import StoredImages, part_size, take
from apac.data.normalize import Identity, Normalization, Scaling, Standardization
from apac.data.zca import fit as fit_whitening
from apac.deform.base import Deformation
from apac.errors import InputError
from apac.models.timm_network import standardization_constants
from apac.progress import Progress
from apac.randomness import generator
from apac.training.config import TrainConfig

CHUNK = 500  # images that are preprocessed at once


@dataclass(frozen=True, eq=False)
class Split:
    """The training images and the held-out images."""

    images: Tensor  # (N, C, H, W), or StoredImages
    labels: Tensor  # (N,)
    held_out_images: Tensor
    held_out_labels: Tensor
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]  # (C, H, W)

    @cached_property
    def digest(self) -> str:
        """A hash of the training images and labels."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (*self.images.split(CHUNK), self.labels):
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)  # numpy has no bfloat16
        return digest.hexdigest()


def split_images(dataset: Dataset, config: TrainConfig) -> Split:
    """Hold out a random part of the training images."""
    # No virtual sample of a held-out image is used in training, because it would reveal the image (section 2.1).
    images, labels = dataset.train_images, dataset.train_labels
    held_out, rest = split_positions(len(images), config)
    if not len(rest):
        raise InputError(
            f"validation_fraction={config.validation_fraction:g} holds out all {len(held_out):,} images and leaves "
            f"none to train on."
        )
    missing = sorted(set(range(len(dataset.classes))) - set(labels[rest].tolist()))
    if missing:
        name = dataset.classes[missing[0]]
        if not (labels == missing[0]).any():
            raise InputError(f"there is no image of class {name!r}; add some, or number the classes without it.")
        raise InputError(f"no image of class {name!r} is left to train on; add some, or use validation_fraction=0.")
    return Split(
        take(images, rest),
        labels[rest],
        take(images, held_out),
        labels[held_out],
        dataset.classes,
        dataset.image_shape,
    )


def split_positions(count: int, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Return the positions of the held-out images among `count` images, and those of the rest."""
    order = torch.randperm(count, generator=generator(config.seed, "held out", 0))
    held_out = round(config.validation_fraction * count)
    return order[:held_out], order[held_out:]


def fit_normalization(
    images: Tensor | StoredImages,
    config: TrainConfig,
    deformation: Deformation,
    network: nn.Module,
    progress: Progress,
) -> Normalization:
    """Return the normalization of the configuration, fitted on the training images. Float images have none.

    A standardization is fitted on what the network sees: images after the deformation's own preprocessing.
    Initial weights from a file expect the standardization that they were trained with, if the network tells it.
    """
    if images.is_floating_point():
        return Identity()
    if config.normalization == "scaling":
        return Scaling()
    if config.normalization != "zca":
        published = None if config.weights is None else standardization_constants(network)
        if published is not None and len(published[0]) == images.shape[1]:
            return Standardization(*map(torch.tensor, published))
        if not deformation.preprocesses:
            return Standardization.fit(images)
        parts = images.split(part_size(images.shape[1:], CHUNK))
        return Standardization.fit_float(deformation.preprocess(scale_pixels(part)) for part in parts)
    progress("whitening", 0, 1)
    whitening = fit_whitening(images[:])
    progress("whitening", 1, 1)
    return whitening
