"""The entry to classification: decide images by the expected log-probability over deformations (paper, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor

from apac import limits
from apac.classify.combine import Combine
from apac.classify.decision import Decision
from apac.classify.network_outputs import Outputs
from apac.classify.passes import PassRunner
from apac.classify.rules.base import Rule
from apac.classify.rules.certified import Certified
from apac.classify.rules.exhaustive import Exhaustive
from apac.classify.scheduler import PassScheduler
from apac.classify.scores import Scores, sum_passes
from apac.deform.base import Deformation
from apac.distributed.ranks.group import Group
from apac.errors import InputError
from apac.inference.engine import Network
from apac.progress import Progress, no_progress
from apac.validation import validate_integer, validate_number

DEFAULT_RULE = Certified()


@dataclass(frozen=True)
class Classifier:
    """Decides images by the expected log-probability over deformations, c* = argmax_c E_Θ[ln f_c(u(x; Θ))].

    `network` is any callable from images to logits, or to what `outputs` names. The parameters of pass m depend on
    (seed, m) alone and are shared by all images of a call; with `independent=True` they depend on (seed, image, m),
    where an image is identified by its pixels. The answer for an image therefore does not depend on the other images
    of the call, nor on `device_batch`, the number of images per call of the network. Only the rounding of logits
    differs, by at most 1e-4, because large jobs use a faster inference engine.

    Threads share the work of a module on the CPU, so its `forward` must not store state. A module is in evaluation mode
    during the call. Do not use a module that is in training mode from two threads at once: the first call to return
    would switch training mode back on for the other.

    >>> import apac, torch
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    >>> classifier = apac.Classifier(network, apac.presets.mnist(), apac.FixedPasses(16), seed=0)
    >>> classifier.decide(torch.rand(3, 1, 28, 28)).passes
    tensor([16, 16, 16])
    """

    network: Network
    deformation: Deformation
    rule: Rule = DEFAULT_RULE
    seed: int = 0
    combine: Combine = "product"
    temperature: float = 1.0  # of the probabilities of decisions; it changes no label
    independent: bool = False
    device_batch: int = 128
    image_shape: tuple[int, int, int] | None = None  # if set, images of another shape are refused
    outputs: Outputs = "logits"  # what the network returns

    def __post_init__(self) -> None:
        if not callable(self.network):
            raise InputError(f"network must be callable, images to logits, got {type(self.network).__name__}.")
        if not isinstance(self.deformation, Deformation):
            raise InputError(f"deformation must be a Deformation, got {self.deformation!r}.")
        if not isinstance(self.rule, Rule) or isinstance(self.rule, type):
            raise InputError(f"rule must be a Rule such as Certified() or FixedPasses(256), got {self.rule!r}.")
        for name, choices in (("combine", get_args(Combine)), ("outputs", get_args(Outputs))):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {getattr(self, name)!r}.")
        validate_number(self, "temperature", minimum=limits.TEMPERATURE[0], maximum=limits.TEMPERATURE[1])
        validate_integer(self, "device_batch", minimum=1)
        validate_integer(self, "seed")

    def decide(self, images: Tensor, *, progress: Progress = no_progress, across_ranks: bool = False) -> Decision:
        """Decide images (N, C, H, W), any N. Apart from the result, memory grows neither with N nor with the passes.

        An image for which the network returns NaN is logged as a warning and stays undecided, with the label -1. The
        other images continue.

        With `across_ranks`, the ranks of torch's process group share the passes. All of them call it, with the same
        classifier and images, and get the decision of a single process.
        """
        self._validate_images(images)
        if not len(images):
            decision = Decision.empty(self.plain(images).shape[1], self.combine)
        else:
            ranks = Group.current() if across_ranks else Group()
            with replace(self._runner, ranks=ranks).running() as runner:
                decision = PassScheduler(runner, self._rule_of(images), images, self.combine, progress).decide()
            ranks.end_share()
            if isinstance(self.rule, Exhaustive):
                decision = decision.without_errors()
        return replace(decision, temperature=self.temperature)

    def stream(self, batches: Iterable[Any]) -> Iterator[Decision]:
        """Decide one batch after the other, of any iterable: a DataLoader, a generator, a list.

        A batch is images (N, C, H, W), or a tuple or list that begins with them, such as (images, labels). The
        decisions are those of `decide` for all images at once. No more than one batch is in memory at a time.

        >>> import apac, torch
        >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Flip(), apac.FixedPasses(4))
        >>> [len(decision.labels) for decision in classifier.stream(torch.rand(5, 1, 1, 2).split(2))]
        [2, 2, 1]
        """
        classifier, passes = self, 0
        for batch in batches:
            images = batch[0] if isinstance(batch, tuple | list) and batch else batch
            decision = classifier.decide(images)
            yield decision
            if classifier is self and len(images):
                # As many passes again are likely to follow, and `decide` would prepare the network for every batch.
                passes += int(decision.passes.sum())
                classifier = self.prepared(images, 2 * passes // len(images))
                classifier = self if classifier.network is self.network else classifier
            del batch, images, decision  # before the next batch is made

    def score(self, images: Tensor, start: int, stop: int, *, progress: Progress = no_progress) -> Scores:
        """Return the scores of passes start … stop - 1, which merge with those of other passes of the same images."""
        self._validate_images(images)
        if not 0 <= start < stop:
            raise InputError(f"start and stop must satisfy 0 <= start < stop, got {start} and {stop}.")
        if isinstance(self.rule, Exhaustive) and stop > (values := self._rule_of(images).limit):
            raise InputError(f"stop must be at most {values}, the number of values of {self.deformation}, got {stop}.")
        if not len(images):
            return replace(Scores.zero(0, self.plain(images).shape[1]), passes=stop - start)
        scores: Scores | None = None
        with (
            self.prepared(images, stop - start)._runner.running() as runner,
            closing(runner.log_probabilities(images, range(start, stop))) as passes,
        ):
            for batch, scores in sum_passes(passes):  # batches of one pass, (1, N, K)
                _validate_finite(batch[0], f"in pass {start + scores.passes - 1}")
                progress("deciding", scores.passes, stop - start)
        assert scores is not None
        return scores

    def prepared(self, images: Tensor, passes: int) -> Classifier:
        """Return the classifier with its network prepared for `passes` passes of these images, where that pays.

        Call it once before several calls of `score`, each of which would prepare the network again.
        """
        return replace(self, network=self._runner.prepared(images, passes).network)

    def plain(self, images: Tensor) -> Tensor:
        """Return the log-probabilities of the undeformed images, (N, K): their argmax is the plain prediction."""
        self._validate_images(images)
        with self._runner.running() as runner:
            log_probabilities = runner.plain(images)
        _validate_finite(log_probabilities, "without deformation")
        return log_probabilities

    @property
    def _runner(self) -> PassRunner:
        return PassRunner(
            self.network,
            self.deformation,
            self.seed,
            self.independent,
            self.device_batch,
            self.outputs,
            all_values=isinstance(self.rule, Exhaustive),
        )

    def _rule_of(self, images: Tensor) -> Rule:
        """Return the rule for these images: how many passes `Exhaustive` takes depends on the deformation."""
        if not isinstance(self.rule, Exhaustive):
            return self.rule
        _, channels, height, width = images.shape
        return self.rule.of(self.deformation, (channels, height, width))

    def _validate_images(self, images: Tensor) -> None:
        is_tensor = isinstance(images, Tensor)
        if not (is_tensor and images.ndim == 4 and images.is_floating_point() and images.shape[1:].numel()):
            got = f"{images.dtype} {tuple(images.shape)}" if is_tensor else type(images).__name__
            raise InputError(
                f"images must be a floating-point tensor of shape (N, C, H, W), got {got}; {_advice(images)}."
            )
        if self.image_shape is not None and tuple(images.shape[1:]) != tuple(self.image_shape):
            raise InputError(
                f"images must have the shape (N, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}."
            )
        for index, part in enumerate(images.split(self.device_batch)):  # the mask of all pixels would need memory
            finite = part.flatten(1).isfinite().all(dim=1)
            if not finite.all():
                bad = index * self.device_batch + int((~finite).nonzero()[0])
                raise InputError(f"image {bad} has NaN or infinite pixels; fix or remove it.")
        self.deformation.validate_pixels(images)


def _advice(images: object) -> str:
    """Return how to convert what is no batch of images."""
    if isinstance(images, Tensor):
        if images.ndim == 3:
            return "pass one image as images[None]"
        return "scale uint8 images as in training, for example with run.normalize(images)"
    if isinstance(images, Sequence) and images and all(isinstance(image, Tensor) for image in images):
        return "make one tensor of them with torch.stack(images)"
    if isinstance(images, Mapping):
        return "take the images out of the batch"
    if isinstance(images, Iterable) and not hasattr(images, "__array__"):
        return "decide batches of images one after the other with classifier.stream(batches)"
    return "convert them with torch.as_tensor(images)"


def _validate_finite(log_probabilities: Tensor, when: str) -> None:
    finite = log_probabilities.isfinite().all(dim=1)
    if not finite.all():
        bad = int((~finite).nonzero()[0])
        raise InputError(
            f"the network returned NaN or an infinite logit for image {bad} {when}; check its weights and the range of "
            f"the images."
        )
