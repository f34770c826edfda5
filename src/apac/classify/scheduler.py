"""Which images get which passes next: rounds of passes for the undecided images, until a rule has decided them all."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.decision import Decision
from apac.classify.margin import Pairs
from apac.classify.passes import Passes
from apac.classify.rules.base import BATCH, Rule, RuleState
from apac.classify.scores import Scores, rank, sum_passes
from apac.progress import Progress
from apac.trees import concatenate, rows

GROUP = 16  # images of a group, in batches of the network
FILL = 16  # passes of a round, in batches of the network: where few images are left, this keeps every core busy
MEMORY = 64 << 20  # bytes of a batch of passes: with many classes, groups are smaller
# After this many passes, the few images that are left of several groups are merged and share their parameters.
MERGE_AFTER = 256


@dataclass(frozen=True, eq=False)
class Group:
    """Undecided images that had the same passes, and what is known about them."""

    indices: Tensor  # (n,) into the images to decide
    rows: Tensor  # (n,) into the images that the current round started with
    state: RuleState
    scores: Scores
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.indices)


class PassScheduler:
    """Decides images (N, C, H, W), N >= 1, by a rule."""

    def __init__(self, passes: Passes, rule: Rule, images: Tensor, combine: Combine, progress: Progress) -> None:
        self.rule, self.images, self.combine, self.progress = rule, images, combine, progress
        self.combination = COMBINATIONS[combine]
        self.expected = rule.next_passes(0, fill=1)  # passes per image that the network is prepared for
        self.passes = passes.prepared(images, self.expected)
        self.group_size = passes.device_batch  # small until the number of classes is known
        self.decisions: list[Decision] = []
        self.indices: list[Tensor] = []  # of the images of each decision
        self.images_done = 0
        self.passes_done = 0  # over all images, including the passes that decided images no longer need

    def decide(self) -> Decision:
        """Decide all images, one group after the other, and return the decisions in the order of the images."""
        start, few_left = 0, list[Group]()
        while start < len(self.images):
            group = self._start_group(start)
            start += len(group)
            group = self._advance(group, MERGE_AFTER)
            if len(group) > self.passes.device_batch:
                group = self._advance(group, self.rule.limit)
            if len(group):
                few_left.append(group)
            if few_left and (start == len(self.images) or sum(map(len, few_left)) > self.group_size):
                self._advance(concatenate(few_left), self.rule.limit)
                few_left = []
        return Decision.concatenate(self.decisions).select(torch.cat(self.indices).argsort())

    def _start_group(self, start: int) -> Group:
        """Return the next images as a group without passes. The number of classes is unknown until the first pass."""
        indices = torch.arange(start, min(start + self.group_size, len(self.images)))

        def plain() -> Tensor:
            return self.passes.plain(self.images[indices])

        state = self.rule.init(len(indices), plain, self.combination.max_difference)
        no_classes = Scores.zero(len(indices), 0)
        return Group(indices, indices, state, no_classes, Pairs.init(no_classes.log_sum))

    def _advance(self, group: Group, until: int) -> Group:
        """Run rounds until all images are decided or had `until` passes, and return the undecided ones."""
        until = min(until, self.rule.limit)
        while len(group) and group.scores.passes < until:
            done, fill = group.scores.passes, FILL * self.passes.device_batch // len(group)
            stop = min(done + self.rule.next_passes(done, fill), until)
            group = self._run_round(group, range(done, stop))
        return group

    def _run_round(self, group: Group, numbers: range) -> Group:
        """Run the passes `numbers`, unless all images are decided before, and return the undecided images."""
        images = self.images[group.indices]
        self._prepare(images, numbers.stop)
        group = replace(group, rows=torch.arange(len(images)))
        with closing(self.passes.log_probabilities(images, numbers)) as passes:
            for log_probabilities, scores in sum_passes(passes, group.scores, batch_size=BATCH):
                group = self._update(group, log_probabilities[:, group.rows], rows(scores, group.rows))
                self._report_progress(group)
                if not len(group):
                    break
        return group

    def _prepare(self, images: Tensor, passes: int) -> None:
        """Prepare the network again whenever the number of passes per image has doubled."""
        if passes >= 2 * self.expected:
            self.expected = passes
            self.passes = self.passes.prepared(images, passes)

    def _update(self, group: Group, log_probabilities: Tensor, scores: Scores) -> Group:
        """Pass a batch of passes, (passes, n, K), to the rule and return the undecided images.

        `scores` include the batch.
        """
        if not group.scores.passes:
            group = self._with_classes(group, log_probabilities[0])
        finite = log_probabilities.isfinite().all(dim=2)  # (passes, n)
        if not finite.all():
            _warn_not_finite(group, finite)
            sound = finite.all(dim=0)
            group = self._retire(group, ~sound, "nan")
            log_probabilities, scores = log_probabilities[:, sound], rows(scores, sound)
        values = self.combination.values(log_probabilities)
        state = group.state.update(values, leaders=rank(scores.mean(self.combine))[:, 0])
        self.passes_done += len(values) * len(group)
        return self._retire_decided(replace(group, scores=scores, pairs=group.pairs.add(values), state=state))

    def _with_classes(self, group: Group, first_pass: Tensor) -> Group:
        """Return a group without passes whose sums have the K classes of its first pass, (n, K)."""
        images, classes = first_pass.shape
        batch = self.passes.device_batch
        self.group_size = max(batch, min(GROUP * batch, MEMORY // (8 * BATCH * classes)))
        pairs = Pairs.init(self.combination.values(first_pass))
        return replace(group, scores=Scores.zero(images, classes), pairs=pairs)

    def _retire_decided(self, group: Group) -> Group:
        """Retire the images that the rule has finished, and return the others."""
        group = self._retire(group, group.state.decided, "certified")
        group = self._retire(group, group.state.undecidable, "limit")
        if group.scores.passes == self.rule.limit:
            group = self._retire(group, torch.ones(len(group), dtype=torch.bool), self.rule.at_limit)
        return group

    def _retire(self, group: Group, mask: Tensor, reason: str) -> Group:
        """Decide the images of a mask, (n,), by their scores so far, and return the others."""
        if not mask.any():
            return group
        retired = rows(group, mask)
        self.images_done += len(retired)
        self.passes_done += len(retired) * (self.rule.limit - retired.scores.passes)
        self.decisions.append(
            Decision.from_scores(retired.scores, retired.pairs, retired.state.clipped, reason, self.combine)
        )
        self.indices.append(retired.indices)
        return rows(group, ~mask)

    def _report_progress(self, group: Group) -> None:
        if self.rule.next_passes(0, fill=1) == self.rule.limit:  # every image gets the same passes
            self.progress("deciding", self.passes_done, len(self.images) * self.rule.limit)
        else:
            note = f"{len(group):,} images after {group.scores.passes:,} passes" if len(group) else ""
            self.progress("deciding", self.images_done, len(self.images), note)


def _warn_not_finite(group: Group, finite: Tensor) -> None:
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
