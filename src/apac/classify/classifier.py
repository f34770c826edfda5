"""The decision rule: draw → apply → network → scores → rule → Decision (paper, section 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apac.arguments import settle_integer
from apac.classify.decision import Combine, Decision, decide_fixed
from apac.classify.scores import Scores
from apac.classify.stopping import FixedPasses
from apac.deform import parameters as draws
from apac.deform.base import Deformation
from apac.deform.per_class import PerClass
from apac.errors import InputError
from apac.progress import Progress, silent
from apac.randomness import generator

DEFAULT_RULE = FixedPasses(256)


@dataclass(frozen=True)
class Classifier:
    """Decides images by the expected log-probability over deformations, c* = argmax_c E_Θ[ln f_c(u(x; Θ))].

    `network` is any callable from images to logits. The Θ of pass m depend on (seed, m) alone and serve all images of a
    call, or with `independent=True` on (seed, image, m), where an image is known by its pixels: the answer for an image
    never depends on what else is decided with it, nor on `device_batch`, the number of images that the network is given
    at once. A module is put into evaluation mode for the while of a call, so give one in training mode to one call at a
    time.
    """

    network: Callable[[Tensor], Tensor]
    deformation: Deformation
    rule: FixedPasses = DEFAULT_RULE
    seed: int = 0
    combine: Combine = "product"
    independent: bool = False
    device_batch: int = 500
    image_shape: tuple[int, int, int] | None = None  # where known, other images are refused

    def __post_init__(self) -> None:
        if not callable(self.network):
            raise InputError(f"the network must be callable, images to logits, got {type(self.network).__name__}.")
        if not isinstance(self.deformation, Deformation):
            raise InputError(f"a Classifier needs a Deformation, got {self.deformation!r}.")
        if not isinstance(self.rule, FixedPasses):
            raise InputError(f"the rule must be a FixedPasses, such as FixedPasses(256), got {self.rule!r}.")
        if self.combine not in ("product", "sum"):
            raise InputError(f'combine is "product" or "sum", got {self.combine!r}.')
        settle_integer(self, "device_batch", least=1)
        settle_integer(self, "seed")

    def decide(self, images: Tensor, *, progress: Progress = silent) -> Decision:
        """Decide images (N, C, H, W), any N. Memory beyond the result grows neither with N nor with M."""
        return decide_fixed(self.score(images, 0, self.rule.passes, progress=progress), self.combine)

    def score(self, images: Tensor, start: int, stop: int, *, progress: Progress = silent) -> Scores:
        """The scores of passes start … stop − 1, to be merged with those of other passes of the same images."""
        self._check(images)
        if not 0 <= start < stop:
            raise InputError(f"passes run from start to stop with 0 <= start < stop, got {start} and {stop}.")
        if not len(images):
            return Scores(stop - start, *(torch.zeros(0, self._classes(images), dtype=torch.float64) for _ in range(4)))
        # Many images: one pass of a part of them at a time. Few images: several passes of all of them.
        together = max(1, self.device_batch // len(images))
        scores: Scores | None = None
        with _evaluating(self.network):
            for first in range(start, stop, together):
                block = range(first, min(first + together, stop))
                for log_probabilities in self._block(images, block):  # (N, K) of one pass
                    scores = scores or Scores.zero(*log_probabilities.shape)
                    scores = scores.add(log_probabilities)
                progress("deciding", block.stop - start, stop - start)
        assert scores is not None
        return scores

    def plain(self, images: Tensor) -> Tensor:
        """Log-probabilities of the undeformed images, (N, K): the conventional prediction is their largest."""
        self._check(images)
        with _evaluating(self.network):
            parts = [self._log_probabilities(part) for part in images.split(self.device_batch)]
        return torch.cat(parts) if parts else torch.zeros(0, self._classes(images), dtype=torch.float64)

    def _block(self, images: Tensor, passes: range) -> Iterator[Tensor]:
        """Log-probabilities (N, K) of each pass of a block, in order."""
        if not isinstance(self.deformation, PerClass):
            yield from self._block_of(self.deformation, images, passes)
            return
        # Class c is scored by c's own set; the sets go in step, with the same random numbers.
        own_set = torch.tensor(self.deformation.set_of_class)  # (K,)
        streams = (self._block_of(member, images, passes) for member in self.deformation.sets)
        for per_set in zip(*streams, strict=True):
            if per_set[0].shape[1] != len(own_set):
                raise InputError(
                    f"PerClass was made for {len(own_set)} classes, but the network has {per_set[0].shape[1]} outputs."
                )
            yield torch.stack(per_set).gather(0, own_set.expand(1, *per_set[0].shape))[0]

    def _block_of(self, deformation: Deformation, images: Tensor, passes: range) -> Iterator[Tensor]:
        if len(passes) == 1:
            shared = None if self.independent else self._draw(deformation, images, passes.start)
            said = []
            for part in images.split(self.device_batch):
                theta = self._draw_independent(deformation, part, passes) if shared is None else shared
                said.append(self._log_probabilities(deformation.apply(part, theta)))
            yield torch.cat(said)
            return
        # The images once for each pass: row p · N + i is image i in the block's pass p.
        virtual = images.repeat(len(passes), 1, 1, 1)
        if self.independent:
            theta = self._draw_independent(deformation, images, passes)
        else:
            theta = draws.concatenate([self._draw(deformation, images, m) for m in passes])
            theta = draws.rows(theta, torch.arange(len(passes), device=images.device).repeat_interleave(len(images)))
        yield from self._log_probabilities(deformation.apply(virtual, theta)).split(len(images))

    def _draw(self, deformation: Deformation, images: Tensor, m: int) -> Any:
        theta = deformation.sample(1, _shape(images), generator=generator(self.seed, "pass", m))
        return draws.to_device(theta, images.device)

    def _draw_independent(self, deformation: Deformation, images: Tensor, passes: range) -> Any:
        keys = [_digest(image) for image in images]
        each = [
            deformation.sample(1, _shape(images), generator=generator(self.seed, f"pass of {key}", m))
            for m in passes
            for key in keys
        ]
        return draws.to_device(draws.concatenate(each), images.device)

    def _log_probabilities(self, virtual: Tensor) -> Tensor:
        logits = self.network(_as_parameters(virtual, self.network))
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(virtual):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(f"the network must return logits of shape ({len(virtual)}, classes), got {got}.")
        if not logits.isfinite().all():
            raise InputError("the network returned NaN or an infinite logit; it cannot decide.")
        return logits.to("cpu", torch.float64).log_softmax(dim=1)

    def _classes(self, images: Tensor) -> int:
        """The number of classes, asked of the network with a blank image when there is no real one."""
        with _evaluating(self.network):
            return self._log_probabilities(images.new_zeros(1, *images.shape[1:])).shape[1]

    def _check(self, images: Tensor) -> None:
        fits = (
            isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point() and images.shape[1:].numel()
        )
        if not fits:
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise InputError(
                f"images must be a floating-point tensor of shape (N, C, H, W), got {got}; "
                f"run.normalise(images) makes them from bytes."
            )
        if self.image_shape is not None and _shape(images) != tuple(self.image_shape):
            raise InputError(
                f"images must have the shape (N, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}."
            )
        for index, part in enumerate(images.split(self.device_batch)):
            finite = part.flatten(1).isfinite().all(dim=1)
            if not finite.all():
                bad = index * self.device_batch + int((~finite).nonzero()[0])
                raise InputError(f"image {bad} has NaN or infinite pixels; mend or remove it.")


def _digest(image: Tensor) -> str:
    """An image by its pixels, of whatever type."""
    return hashlib.blake2b(image.cpu().double().contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _as_parameters(images: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
    """Images of the type and on the device of a module's weights; as they are for any other callable."""
    weight = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return images if weight is None else images.to(weight.device, weight.dtype)


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width


@contextmanager
def _evaluating(network: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """No gradients, and every part of a module in evaluation mode for the while."""
    training = [part for part in network.modules() if part.training] if isinstance(network, nn.Module) else []
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
