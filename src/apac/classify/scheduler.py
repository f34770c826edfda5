"""Which images get which passes next: rounds of passes for the undecided images, until a rule has decided them all."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import trees
from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.decision import Decision
from apac.classify.margin import MarginMoments
from apac.classify.passes import PassRunner
from apac.classify.rules.base import PASSES_PER_UPDATE, Rule, RuleState
from apac.classify.scores import Scores, rank, sum_passes
from apac.errors import InputError
from apac.progress import Progress

GROUP_BATCHES = 16  # device batches in a group of images
ROUND_BATCHES = 16  # device batches in a round: if few images are left, they get more passes, to keep all cores busy
MAX_BYTES = 64 << 20  # of the passes between two updates of the rule: with many classes, groups are smaller
# After this many passes, the few images that are left of several groups are merged into one.
MERGE_AFTER = 256


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Undecided images that had the same passes, and what is known about them."""

    indices: Tensor  # (n,) into the images to decide
    round_rows: Tensor  # (n,) into the images that the current round started with
    state: RuleState
    scores: Scores
    moments: MarginMoments

    def __len__(self) -> int:
        return len(self.indices)


class PassScheduler:
    """Decides images (N, C, H, W), N >= 1, by a rule."""

    def __init__(self, runner: PassRunner, rule: Rule, images: Tensor, combine: Combine, progress: Progress) -> None:
        self.rule, self.images, self.combine, self.progress = rule, images, combine, progress
        self.combination = COMBINATIONS[combine]
        self.considered = rule.next_passes(0, fill=1)  # passes per image when preparing was last considered
        self.runner = runner.prepared(images, self.considered)
        self.group_size = runner.device_batch  # small until the number of classes is known
        self.decisions: list[Decision] = []
        self.indices: list[Tensor] = []  # of the images of each decision
        self.images_done = 0
        self.passes_done = 0  # over all images, including the passes that decided images no longer need

    def decide(self) -> Decision:
        """Decide all images, one group after the other, and return the decisions in the order of the images."""
        start = 0
        few_left: list[ImageGroup] = []
        while start < len(self.images):
            group = self._start_group(start)
            start += len(group)
            group = self._advance(group, MERGE_AFTER)
            if len(group) > self.runner.device_batch:
                group = self._advance(group, self.rule.limit)
            if len(group):
                few_left.append(group)
            if few_left and (start == len(self.images) or sum(map(len, few_left)) > self.group_size):
                self._advance(trees.concatenate(few_left), self.rule.limit)
                few_left = []
        return Decision.concatenate(self.decisions).select(torch.cat(self.indices).argsort())

    def _start_group(self, start: int) -> ImageGroup:
        """Return the next images as a group without passes. The number of classes is unknown until the first pass."""
        indices = torch.arange(start, min(start + self.group_size, len(self.images)))

        def plain() -> Tensor:
            return self.runner.plain(self.images[indices])

        state = self.rule.init(len(indices), plain, self.combination.max_difference)
        no_classes = Scores.zero(len(indices), 0)
        return ImageGroup(indices, indices, state, no_classes, MarginMoments.zero(no_classes.log_sum))

    def _advance(self, group: ImageGroup, until: int) -> ImageGroup:
        """Run rounds until all images are decided or had `until` passes, and return the undecided ones."""
        until = min(until, self.rule.limit)
        while len(group) and group.scores.passes < until:
            done, fill = group.scores.passes, ROUND_BATCHES * self.runner.device_batch // len(group)
            passes = self.rule.next_passes(done, fill)
            if passes < 1:
                raise InputError(f"next_passes of {self.rule!r} must return at least 1 below its limit, got {passes}.")
            group = self._run_round(group, range(done, min(done + passes, until)))
        return group

    def _run_round(self, group: ImageGroup, numbers: range) -> ImageGroup:
        """Run the passes `numbers`, unless all images are decided before, and return the undecided images."""
        images = self.images[group.indices]
        self._prepare_if_worth(images, numbers.stop)
        group = replace(group, round_rows=torch.arange(len(images)))
        with closing(self.runner.log_probabilities(images, numbers)) as passes:
            for log_probabilities, scores in sum_passes(passes, group.scores, batch_size=PASSES_PER_UPDATE):
                own = group.round_rows
                group = self._update(group, log_probabilities[:, own], trees.rows(scores, own))
                self._report_progress(group)
                if not len(group):
                    break
        return group

    def _prepare_if_worth(self, images: Tensor, passes: int) -> None:
        """Reconsider preparing the network when the passes have doubled: the job may have become large enough."""
        if passes >= 2 * self.considered:
            self.considered = passes
            self.runner = self.runner.prepared(images, passes)

    def _update(self, group: ImageGroup, log_probabilities: Tensor, scores: Scores) -> ImageGroup:
        """Pass a batch of passes, (passes, n, K), to the rule and return the undecided images.

        `scores` include the batch.
        """
        if not group.scores.passes:
            group = self._with_classes(group, log_probabilities[0])
        finite = log_probabilities.isfinite().all(dim=2)  # (passes, n)
        if not finite.all():
            if self.runner.ranks.first:
                _warn_not_finite(group, finite)
            sound = finite.all(dim=0)
            group = self._retire(group, ~sound, "nan")
            log_probabilities, scores = log_probabilities[:, sound], trees.rows(scores, sound)
        values = self.combination.values(log_probabilities)
        state = group.state.update(values, leaders=rank(scores.mean(self.combine))[:, 0])
        self.passes_done += len(values) * len(group)
        return self._retire_finished(replace(group, scores=scores, moments=group.moments.add(values), state=state))

    def _with_classes(self, group: ImageGroup, first_pass: Tensor) -> ImageGroup:
        """Return a group without passes whose sums have the K classes of its first pass, (n, K)."""
        images, classes = first_pass.shape
        batch = self.runner.device_batch
        self.group_size = max(1, min(GROUP_BATCHES * batch, MAX_BYTES // (8 * PASSES_PER_UPDATE * classes)))
        moments = MarginMoments.zero(self.combination.values(first_pass))
        return replace(group, scores=Scores.zero(images, classes), moments=moments)

    def _retire_finished(self, group: ImageGroup) -> ImageGroup:
        """Retire the images that need no more passes, and return the others."""
        group = self._retire(group, group.state.decided, self.rule.when_decided)
        group = self._retire(group, group.state.undecidable, self.rule.at_limit)
        if group.scores.passes == self.rule.limit:
            group = self._retire(group, torch.ones(len(group), dtype=torch.bool), self.rule.at_limit)
        return group

    def _retire(self, group: ImageGroup, mask: Tensor, reason: str) -> ImageGroup:
        """Record the results of the images of a mask, (n,), by their scores so far, and return the others."""
        if not mask.any():
            return group
        retired = trees.rows(group, mask)
        self.images_done += len(retired)
        self.passes_done += len(retired) * (self.rule.limit - retired.scores.passes)
        self.decisions.append(
            Decision.from_scores(retired.scores, retired.moments, retired.state.clipped, reason, self.combine)
        )
        self.indices.append(retired.indices)
        return trees.rows(group, ~mask)

    def _report_progress(self, group: ImageGroup) -> None:
        all_at_once = self.rule.next_passes(0, fill=1) == self.rule.limit  # every image gets the same passes
        if all_at_once:
            self.progress("deciding", self.passes_done, len(self.images) * self.rule.limit)
        else:
            note = f"{len(group):,} images after {group.scores.passes:,} passes" if len(group) else ""
            self.progress("deciding", self.images_done, len(self.images), note)


def _warn_not_finite(group: ImageGroup, finite: Tensor) -> None:
    """Log which images the network failed on; finite (passes, n)."""
    failed = (~finite.all(dim=0)).nonzero()[:, 0].tolist()
    first = finite.int().argmin(dim=0) + group.scores.passes  # (n,)
    named = ", ".join(f"image {int(group.indices[i])} in pass {int(first[i])}" for i in failed[:5])
    more = f" and {len(failed) - 5} others" if len(failed) > 5 else ""
    logging.getLogger("apac").warning(
        "the network returned NaN or an infinite logit for %s%s: they stay undecided, the other images continue.",
        named,
        more,
    )
