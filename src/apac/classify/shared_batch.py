"""How many images may share a batch of the network, if each must have the same bits as in a batch of its own?

The kernels of a layer are chosen by the shape of the batch, so that a row may be rounded differently in another one.
Whether it is does not depend on the values: it can be tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from apac.randomness import generator

SLOW_BATCH = 0.05  # seconds; such a network gains nothing by larger batches, and trying them delays the start


def images_per_batch(run: Callable[[Tensor], Tensor], image: Tensor, rows: Sequence[int], limit: int) -> int:
    """Return the largest number of images in a batch, up to `limit`, whose rows all have the bits of smaller batches.

    `run` is the network; `image` is an example (C, H, W); `rows` are the possible numbers of rows of an image.
    """
    noise = torch.rand(limit * max(rows), *image.shape, generator=generator(0, "shared batch", 0))
    batch = (image + 0.1 * noise).to(image)
    started = time.monotonic()
    run(batch[: rows[0]])
    if time.monotonic() - started > SLOW_BATCH:
        return 1
    alone = {count: torch.cat([run(part) for part in batch[: limit * count].split(count)]) for count in rows}
    for images in range(2, limit + 1):
        if not all(torch.equal(run(batch[: images * count]), alone[count][: images * count]) for count in rows):
            return images - 1
    return limit
