"""Deform the rows of a batch that belong to one rank as a single process would deform them in the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from apac import trees
from apac.deform.base import Deformation


def deform_rows(
    deformation: Deformation, images: Tensor, rows: slice, *, generator: torch.Generator, labels: Tensor
) -> Tensor:
    """Deform the images (n, C, H, W) of these rows, as a call deforms them in the whole batch with labels (N,).

    A deformation that draws for whole batches needs the images of the batch, (N, C, H, W), and deforms all of them.
    """
    if deformation.draws_for_batches:
        return deformation(images, generator=generator, labels=labels)[rows]
    _, channels, height, width = images.shape
    parameters = deformation._sample_for(labels, len(labels), (channels, height, width), generator)
    return deformation.apply(images, trees.to_device(trees.rows(parameters, rows), images.device))
