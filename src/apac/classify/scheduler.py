"""Working through a set: each round gives the undecided images some passes and retires those that are decided."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from apac.classify.decision import Decision, gather, rank, settle
from apac.classify.margin import Pairs
from apac.classify.passes import Passes
from apac.classify.rules.base import BATCH, Combine, Rule, RuleState
from apac.classify.scores import Scores
from apac.progress import Progress
from apac.trees import concatenate, rows

# In batches of the network: images that go together, and the passes of all of them in a round where they are few, which
# keeps every core busy.
TOGETHER = 16
FILL = 16
MEMORY = 64 << 20  # bytes of a batch of passes: where there are many classes, fewer images go together
# After so many passes, the few images that are left of several groups go on together and share the draws of Θ.
PUT_OFF = 256


@dataclass(frozen=True, eq=False)
class Group:
    """Images that are not decided yet and have had the same passes, with what is known of them."""

    places: Tensor  # (n,) in the set
    rows: Tensor  # (n,) among those that the round began with
    watch: RuleState
    scores: Scores
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.places)


class PassScheduler:
    """The decision of images (N, C, H, W), at least one."""

    def __init__(self, passes: Passes, rule: Rule, images: Tensor, combine: Combine, progress: Progress) -> None:
        self.rule, self.images, self.combine, self.progress = rule, images, combine, progress
        self.expected = rule.next_passes(0, fill=1)  # passes that the network was prepared for, if that is worth it
        self.passes = passes.prepared(images, self.expected)
        self.decisions: list[Decision] = []
        self.places: list[Tensor] = []  # of the images of each decision
        self.decided = 0
        self.passes_done = 0  # passes of all images together, with those that nobody needs any more

    def decide(self) -> Decision:
        batch, images = self.passes.device_batch, len(self.images)
        begun, together = 0, batch  # few at first, when the number of classes is not known
        left: list[Group] = []  # with a few images each
        while begun < images:
            places = torch.arange(begun, min(begun + together, images))
            begun += len(places)
            group = self._advance(self._begin(places), PUT_OFF)
            if len(group) > batch:
                self._advance(group, self.rule.limit)
            elif len(group):
                left.append(group)
            classes = group.scores.log_sum.shape[1]
            together = max(batch, min(TOGETHER * batch, MEMORY // (8 * BATCH * classes)))
            if left and (begun == images or sum(map(len, left)) > together):
                self._advance(concatenate(left), self.rule.limit)
                left = []
        return gather(self.decisions, self.places)

    def _begin(self, places: Tensor) -> Group:
        """A group before its first pass, when nobody knows how many classes there are."""
        watch = self.rule.init(len(places), lambda: self.passes.plain(self.images[places]), self.combine)
        nothing = torch.zeros(len(places), 0)
        return Group(places, places, watch, Scores.zero(*nothing.shape), Pairs.init(nothing))

    def _advance(self, group: Group, until: int) -> Group:
        """Give the images passes until they are decided or have had so many; returns those that are not decided."""
        until = min(until, self.rule.limit)
        while len(group) and group.scores.passes < until:
            some, had = self.images[group.places], group.scores.passes
            further = min(self.rule.next_passes(had, fill=FILL * self.passes.device_batch // len(some)), until - had)
            if had + further >= 2 * self.expected:
                self.expected = had + further
                self.passes = self.passes.prepared(some, self.expected)
            group = replace(group, rows=torch.arange(len(some)))
            with closing(self.passes.of(some, range(had, had + further))) as said:
                while len(group) and (batch := list(islice(said, BATCH))):
                    group = self._update(group, torch.stack(batch)[:, group.rows])
                    self._report_progress(group)
        return group

    def _update(self, group: Group, log_probabilities: Tensor) -> Group:
        """Take in a batch of passes, (passes, n, K), and retire the images that are decided."""
        if not group.scores.passes:
            zero = Scores.zero(*log_probabilities.shape[1:])
            group = replace(group, scores=zero, pairs=Pairs.init(self._values(log_probabilities[0])))
        sound = log_probabilities.isfinite().all(dim=2)  # (passes, n)
        if not sound.all():
            _name(group, sound)
            log_probabilities = log_probabilities[:, sound.all(dim=0)]
            group = self._retire(group, ~sound.all(dim=0), "nan")
        values, scores = self._values(log_probabilities), group.scores.add(log_probabilities)
        self.passes_done += len(values) * len(group)
        means = scores.log_mean if self.combine == "product" else scores.probability_mean
        watch = group.watch.update(values, leaders=rank(means)[:, 0])
        group = replace(group, scores=scores, pairs=group.pairs.add(values), watch=watch)
        group = self._retire(group, group.watch.decided, "certified")
        group = self._retire(group, group.watch.undecidable, "limit")
        if scores.passes == self.rule.limit:
            group = self._retire(group, torch.ones(len(group), dtype=torch.bool), self.rule.at_limit)
        return group

    def _retire(self, group: Group, gone: Tensor, why: str) -> Group:
        """Decide the images of a mask (n,) by what is known of them; returns the others."""
        if not gone.any():
            return group
        known = rows(group, gone.nonzero()[:, 0])
        self.decided += len(known)
        self.passes_done += len(known) * (self.rule.limit - known.scores.passes)
        self.decisions.append(settle(known.scores, known.pairs, known.watch.clipped, why, self.combine))
        self.places.append(known.places)
        return rows(group, (~gone).nonzero()[:, 0])

    def _values(self, log_probabilities: Tensor) -> Tensor:
        """What ranks the classes in one pass."""
        return log_probabilities if self.combine == "product" else log_probabilities.exp()

    def _report_progress(self, group: Group) -> None:
        if self.rule.next_passes(0, fill=1) == self.rule.limit:  # nobody is decided before
            self.progress("deciding", self.passes_done, len(self.images) * self.rule.limit)
        else:
            note = f"{len(group):,} images have had {group.scores.passes:,} passes" if len(group) else ""
            self.progress("deciding", self.decided, len(self.images), note)


def _name(group: Group, sound: Tensor) -> None:
    """Say which images the network failed on; sound (passes, n)."""
    failed = (~sound.all(dim=0)).nonzero()[:, 0].tolist()
    first = sound.int().argmin(dim=0) + group.scores.passes  # (n,)
    named = ", ".join(f"image {int(group.places[i])} in pass {int(first[i])}" for i in failed[:5])
    more = f" and {len(failed) - 5} others" if len(failed) > 5 else ""
    logging.getLogger("apac").warning(
        "the network returned NaN or an infinite logit for %s%s: not decided, the other images go on.", named, more
    )
