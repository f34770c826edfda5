"""Deformation of some rows of a batch, as in the whole batch: several processes share one."""

from __future__ import annotations

import torch
from torch import Tensor

from apac import trees
from apac.deform.base import Deformation
from apac.deform.compose import Compose


def draws_for_batches(deformation: Deformation) -> bool:
    """Return whether the parameters of an image depend on its batch, as in transforms of other libraries."""
    parts = deformation.parts if isinstance(deformation, Compose) else (deformation,)
    return any(type(part)._deform is not Deformation._deform for part in parts)


def deform_rows(
    deformation: Deformation, images: Tensor, rows: slice, *, generator: torch.Generator, labels: Tensor
) -> Tensor:
    """Deform the images (n, C, H, W) of these rows, as a call deforms them in the whole batch with labels (N,).

    A deformation that draws for whole batches needs the images of the batch, (N, C, H, W), and deforms all of them.
    """
    if draws_for_batches(deformation):
        return deformation(images, generator=generator, labels=labels)[rows]
    _, channels, height, width = images.shape
    parameters = deformation._sample_for(labels, len(labels), (channels, height, width), generator)
    return deformation.apply(images, trees.to_device(trees.rows(parameters, rows), images.device))
