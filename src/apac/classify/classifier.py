"""The decision rule: draw → apply → network → scores → rule → Decision (paper, section 3)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import get_args

from torch import Tensor

from apac.classify.decision import Decision, settle
from apac.classify.margin import Pairs
from apac.classify.passes import Outputs, Passes
from apac.classify.rules.base import Combine, Rule
from apac.classify.rules.certified import Certified
from apac.classify.scheduler import PassScheduler
from apac.classify.scores import Scores
from apac.deform.base import Deformation
from apac.errors import InputError
from apac.inference.engine import Network
from apac.progress import Progress, no_progress
from apac.validation import validate_integer

DEFAULT_RULE = Certified()


@dataclass(frozen=True)
class Classifier:
    """Decides images by the expected log-probability over deformations, c* = argmax_c E_Θ[ln f_c(u(x; Θ))].

    `network` is any callable from images to logits, or what `outputs` says. The Θ of pass m depend on (seed, m) alone
    and serve all images of a call, or with `independent=True` on (seed, image, m), where an image is known by its
    pixels: the answer for an image never depends on what else is decided with it, nor on `device_batch`, the number of
    images that the network is given at once, by more than the rounding of logits, 1e-4 at most: large jobs are run by a
    faster engine. Threads share the work of a module on the CPU, so its `forward` must not keep anything. A module is
    put into evaluation mode for the while of a call, so give one in training mode to one call at a time.
    """

    network: Network
    deformation: Deformation
    rule: Rule = DEFAULT_RULE
    seed: int = 0
    combine: Combine = "product"
    independent: bool = False
    device_batch: int = 128
    image_shape: tuple[int, int, int] | None = None  # where known, other images are refused
    outputs: Outputs = "logits"  # what the network returns, or "probabilities", or "log-probabilities"

    def __post_init__(self) -> None:
        if not callable(self.network):
            raise InputError(f"the network must be callable, images to logits, got {type(self.network).__name__}.")
        if not isinstance(self.deformation, Deformation):
            raise InputError(f"a Classifier needs a Deformation, got {self.deformation!r}.")
        if not isinstance(self.rule, Rule) or isinstance(self.rule, type):
            raise InputError(f"the rule must be one such as Certified() or FixedPasses(256), got {self.rule!r}.")
        if self.combine not in ("product", "sum"):
            raise InputError(f'combine is "product" or "sum", got {self.combine!r}.')
        if self.outputs not in get_args(Outputs):
            raise InputError(f"outputs is one of {', '.join(map(repr, get_args(Outputs)))}, got {self.outputs!r}.")
        validate_integer(self, "device_batch", minimum=1)
        validate_integer(self, "seed")

    def decide(self, images: Tensor, *, progress: Progress = no_progress) -> Decision:
        """Decide images (N, C, H, W), any N. Memory beyond the result grows neither with N nor with M.

        An image for which the network returns NaN in some pass is stopped and named by a line of the log, and the
        others go on.
        """
        self._check(images)
        if not len(images):
            nothing = self.plain(images)
            return settle(Scores(0, *[nothing] * 4), Pairs.init(nothing), nothing[:, 0].long(), "", self.combine)
        with self._passes.at_work() as passes:
            return PassScheduler(passes, self.rule, images, self.combine, progress).decide()

    def score(self, images: Tensor, start: int, stop: int, *, progress: Progress = no_progress) -> Scores:
        """The scores of passes start … stop − 1, to be merged with those of other passes of the same images."""
        self._check(images)
        if not 0 <= start < stop:
            raise InputError(f"passes run from start to stop with 0 <= start < stop, got {start} and {stop}.")
        if not len(images):
            return Scores(stop - start, *[self.plain(images)] * 4)
        scores: Scores | None = None
        prepared = self.prepared(images, stop - start)._passes
        with prepared.at_work() as passes, closing(passes.of(images, range(start, stop))) as said:
            for number, log_probabilities in enumerate(said, start=start):  # (N, K) of one pass
                _check_finite(log_probabilities, f"in pass {number}")
                scores = scores or Scores.zero(*log_probabilities.shape)
                scores = scores.add(log_probabilities)
                progress("deciding", number + 1 - start, stop - start)
        assert scores is not None
        return scores

    def prepared(self, images: Tensor, passes: int) -> Classifier:
        """The classifier with its network ready for so many passes of these images, where that pays. Whoever calls
        `score` several times does so once."""
        return replace(self, network=self._passes.prepared(images, passes).network)

    def plain(self, images: Tensor) -> Tensor:
        """Log-probabilities of the undeformed images, (N, K): the conventional prediction is their largest."""
        self._check(images)
        with self._passes.at_work() as passes:
            log_probabilities = passes.plain(images)
        _check_finite(log_probabilities, "undeformed")
        return log_probabilities

    @property
    def _passes(self) -> Passes:
        return Passes(self.network, self.deformation, self.seed, self.independent, self.device_batch, self.outputs)

    def _check(self, images: Tensor) -> None:
        fits = (
            isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point() and images.shape[1:].numel()
        )
        if not fits:
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise InputError(
                f"images must be a floating-point tensor of shape (N, C, H, W), got {got}; "
                f"divide bytes as in training, or by run.normalize(images)."
            )
        if self.image_shape is not None and tuple(images.shape[1:]) != tuple(self.image_shape):
            raise InputError(
                f"images must have the shape (N, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}."
            )
        for index, part in enumerate(images.split(self.device_batch)):
            finite = part.flatten(1).isfinite().all(dim=1)
            if not finite.all():
                bad = index * self.device_batch + int((~finite).nonzero()[0])
                raise InputError(f"image {bad} has NaN or infinite pixels; mend or remove it.")


def _check_finite(log_probabilities: Tensor, when: str) -> None:
    finite = log_probabilities.isfinite().all(dim=1)
    if not finite.all():
        bad = int((~finite).nonzero()[0])
        raise InputError(f"the network returned NaN or an infinite logit for image {bad} {when}; it cannot decide.")
