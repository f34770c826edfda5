"""The decision rule: draw → apply → network → scores → rule → Decision (paper, section 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
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
from apac.models.engine import Network, evaluating, prepare, serves_threads
from apac.progress import Progress, silent
from apac.randomness import generator
from apac.threads import Crew, crew

DEFAULT_RULE = FixedPasses(256)
PART = 4  # batches of the network
CACHE = 16 << 20  # bytes


@dataclass(frozen=True)
class Classifier:
    """Decides images by the expected log-probability over deformations, c* = argmax_c E_Θ[ln f_c(u(x; Θ))].

    `network` is any callable from images to logits. The Θ of pass m depend on (seed, m) alone and serve all images of a
    call, or with `independent=True` on (seed, image, m), where an image is known by its pixels: the answer for an image
    never depends on what else is decided with it, nor on `device_batch`, the number of images that the network is given
    at once, by more than the rounding of logits, 1e-4 at most: large jobs are run by a faster engine. Threads share the
    work of a module on the CPU, so its `forward` must not keep anything. A module is put into evaluation mode for the
    while of a call, so give one in training mode to one call at a time.
    """

    network: Network
    deformation: Deformation
    rule: FixedPasses = DEFAULT_RULE
    seed: int = 0
    combine: Combine = "product"
    independent: bool = False
    device_batch: int = 128
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
            return Scores(stop - start, *[self.plain(images)] * 4)
        scores: Scores | None = None
        network = self.prepared(images, stop - start).network
        work = self._work(images, range(start, stop))
        with (
            evaluating(self.network),
            crew() if serves_threads(network) else nullcontext(Crew()) as threads,
            closing(threads.each(lambda item: self._said(network, *item), work)) as said,
        ):
            for done, log_probabilities in enumerate(self._joined(said, images), start=1):  # (N, K) of one pass
                scores = scores or Scores.zero(*log_probabilities.shape)
                scores = scores.add(log_probabilities)
                progress("deciding", done, stop - start)
        assert scores is not None
        return scores

    def prepared(self, images: Tensor, passes: int) -> Classifier:
        """The classifier with its network ready for so many passes of these images, where that pays. Whoever calls
        `score` several times does so once."""
        return replace(self, network=prepare(self.network, images, passes * len(self._sets()) * len(images)))

    def plain(self, images: Tensor) -> Tensor:
        """Log-probabilities of the undeformed images, (N, K): the conventional prediction is their largest."""
        self._check(images)
        # Without an image, a blank one tells the number of classes.
        some = images if len(images) else images.new_zeros(1, *images.shape[1:])
        with evaluating(self.network):
            return _finite(self._log_probabilities(self.network, some))[: len(images)]

    def _work(self, images: Tensor, passes: range) -> Iterator[tuple[Tensor, range, list[Any] | None]]:
        """What the cores share: some of the images in some of the passes, with the Θ that serve them all.

        Many images: each pass in parts. Few: all of them, in blocks of passes.
        """
        together = max(1, self.device_batch // len(images))
        for block in (passes[i : i + together] for i in range(0, len(passes), together)):
            thetas = None if self.independent else self._draw(images, block)
            for part in images.split(self._part(images)):
                yield part, block, thetas

    def _part(self, images: Tensor) -> int:
        """How many images are deformed at once: some batches of the network, which hides the calls, but no more than a
        core's cache can hold."""
        at_hand = CACHE // (images[0].numel() * images.element_size())
        return max(self.device_batch, min(PART * self.device_batch, at_hand))

    def _joined(self, said: Iterator[Tensor], images: Tensor) -> Iterator[Tensor]:
        """The parts' log-probabilities (passes of a block, images of a part, K) as those of each pass, (N, K)."""
        parts = len(images.split(self._part(images)))
        while block := list(islice(said, parts)):
            yield from _finite(torch.cat(block, dim=1))

    def _said(self, network: Network, images: Tensor, passes: range, thetas: list[Any] | None) -> Tensor:
        """Log-probabilities of images in a block of passes, (passes, images, K)."""
        sets = self._sets()
        thetas = [self._draw_independent(u, images, passes) for u in sets] if thetas is None else thetas
        # The images once for each pass: row p · N + i is image i in the block's pass p.
        originals = images.repeat(len(passes), 1, 1, 1) if len(passes) > 1 else images
        each = []
        for deformation, theta in zip(sets, thetas, strict=True):
            if draws.size(theta) not in (1, len(originals)):
                theta = draws.rows(theta, torch.arange(len(passes)).repeat_interleave(len(images)))
            each.append(self._log_probabilities(network, deformation.apply(originals, theta)))
        if isinstance(self.deformation, PerClass):
            # Class c is scored by c's own set.
            own = torch.tensor(self.deformation.set_of_class)  # (K,)
            if each[0].shape[1] != len(own):
                raise InputError(
                    f"PerClass was made for {len(own)} classes, but the network has {each[0].shape[1]} outputs."
                )
            each = [torch.stack(each).gather(0, own.expand(1, *each[0].shape))[0]]
        return each[0].view(len(passes), len(images), -1)

    def _sets(self) -> tuple[Deformation, ...]:
        return self.deformation.sets if isinstance(self.deformation, PerClass) else (self.deformation,)

    def _draw(self, images: Tensor, passes: range) -> list[Any]:
        """The Θ of a block of passes, one draw for each set; the sets go in step, with the same random numbers."""
        each = (
            [u.sample(1, _shape(images), generator=generator(self.seed, "pass", m)) for m in passes]
            for u in self._sets()
        )
        return [draws.to_device(draws.concatenate(thetas), images.device) for thetas in each]

    def _draw_independent(self, deformation: Deformation, images: Tensor, passes: range) -> Any:
        keys = [_digest(image) for image in images]
        each = [
            deformation.sample(1, _shape(images), generator=generator(self.seed, f"pass of {key}", m))
            for m in passes
            for key in keys
        ]
        return draws.to_device(draws.concatenate(each), images.device)

    def _log_probabilities(self, network: Network, virtual: Tensor) -> Tensor:
        each = []
        for batch in virtual.split(self.device_batch):
            logits = network(_as_parameters(batch, network))
            if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(batch):
                got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise InputError(f"the network must return logits of shape ({len(batch)}, classes), got {got}.")
            each.append(logits)
        return torch.cat(each).to("cpu", torch.float64).log_softmax(dim=1)

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


def _finite(log_probabilities: Tensor) -> Tensor:
    if not log_probabilities.isfinite().all():
        raise InputError("the network returned NaN or an infinite logit; it cannot decide.")
    return log_probabilities


def _digest(image: Tensor) -> str:
    """An image by its pixels, of whatever type."""
    return hashlib.blake2b(image.cpu().double().contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _as_parameters(images: Tensor, network: Network) -> Tensor:
    """Images of the type and on the device of a module's weights; as they are for any other callable."""
    weight = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return images if weight is None else images.to(weight.device, weight.dtype)


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width
