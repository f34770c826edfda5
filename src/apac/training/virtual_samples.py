"""The virtual samples of consecutive training steps: images that are drawn, read and deformed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import torch
from torch import Tensor

from apac.data.base import scale_pixels
from apac.data.mapped import StoredImages, read_batches
from apac.deform.base import Deformation
from apac.deform.rows import deform_rows
from apac.distributed.ranks.group import Group
from apac.randomness import generator
from apac.training.batches import batches, draw, shuffled
from apac.training.config import TrainConfig


def virtual_samples(
    config: TrainConfig,
    deformation: Deformation,
    standardize: Callable[[Tensor], Tensor],
    images: Tensor | StoredImages,
    labels: Tensor,
    cumulative_weights: Tensor | None,
    group: Group,
    steps: range,
    *,
    prefetch: bool | None,
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Yield the virtual samples and labels of this rank for each step.

    The images are drawn with replacement, or in random orders of all of them, one after the other. Each is deformed
    with newly sampled parameters.
    """
    assert config.replacement or cumulative_weights is None, "weighted images are drawn with replacement"
    rows = group.rows(config.batch_size)
    read_whole = group.size == 1 or deformation.draws_for_batches

    drawn: deque[tuple[torch.Generator, Tensor]] = deque()

    def positions() -> Iterator[Tensor]:
        orders = shuffled(steps, config.batch_size, len(images), config.seed)
        for step in steps:
            random = generator(config.seed, "training step", step)
            if config.replacement:
                index = draw(config.batch_size, len(images), cumulative_weights, generator=random)
            else:
                index = next(orders)
            drawn.append((random, index))
            yield index if read_whole else index[rows]

    def make(step: int) -> tuple[Tensor, Tensor]:
        pixels = scale_pixels(next(read))  # the workers of a DataLoader read those of the next steps meanwhile
        random, index = drawn.popleft()
        targets = labels[index]
        if group.size == 1:
            virtual = deformation(pixels, generator=random, labels=targets)
        else:
            virtual = deform_rows(deformation, pixels, rows, generator=random, labels=targets)
        return standardize(virtual).contiguous(memory_format=torch.channels_last), targets[rows]

    with closing(read_batches(images, positions())) as read:
        yield from batches(make, steps.start, steps.stop, prefetch=prefetch)
