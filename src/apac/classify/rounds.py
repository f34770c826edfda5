"""Working through a set: each round gives the undecided images some passes and retires those that are decided."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from apac.classify.decision import Decision, gather, rank, settle
from apac.classify.margin import Pairs
from apac.classify.passes import Passes
from apac.classify.scores import Scores
from apac.classify.stopping import BATCH, Combine, Rule, Watch
from apac.errors import InputError
from apac.progress import Progress

# In batches of the network: images that go together, which bounds the memory, and the passes of all of them in a round
# where they are few, which keeps every core busy.
TOGETHER = 16
FILL = 4


def decide(passes: Passes, rule: Rule, images: Tensor, combine: Combine, progress: Progress) -> Decision:
    """Decide images (N, C, H, W), at least one."""
    at_first = rule.further(0, fill=1)
    book = Book(len(images), at_first == rule.limit, progress)
    passes = passes.prepared(images, at_first)
    for places in torch.arange(len(images)).split(TOGETHER * passes.device_batch):
        passes = _decide_together(passes, rule, images, places, combine, book)
    if book.failed == len(images):
        raise InputError("the network returned NaN or an infinite logit for every image; it cannot decide.")
    return gather(book.decisions, book.places)


def _decide_together(
    passes: Passes, rule: Rule, images: Tensor, places: Tensor, combine: Combine, book: Book
) -> Passes:
    """Enter the decisions of the images at these places into the book; returns the passes, as prepared for so many."""
    had, expected = 0, rule.further(0, fill=1)
    undecided = Undecided(places, combine)
    while len(undecided):
        some = images[undecided.places]
        further = rule.further(had, fill=FILL * passes.device_batch // len(some))
        if had + further >= 2 * expected:
            expected = had + further
            passes = passes.prepared(some, expected)
        if not had:
            undecided.watch = rule.begin(len(some), partial(passes.plain, some), combine)
        undecided.begin_round()
        with closing(passes.of(some, range(had, had + further))) as said:
            while len(undecided) and (batch := list(islice(said, BATCH))):
                undecided.hear(torch.stack(batch), had, book)
                had += len(batch)
                if had == rule.limit:
                    undecided.retire(torch.ones(len(undecided), dtype=torch.bool), rule.at_limit, book)
                book.show(had, further, len(undecided))
    return passes


@dataclass
class Book:
    """What has been decided so far."""

    images: int
    all_at_once: bool  # no image is decided before it has had all passes
    progress: Progress
    decided: int = 0
    failed: int = 0
    decisions: list[Decision] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)

    def enter(self, decision: Decision, places: Tensor) -> None:
        self.decisions.append(decision)
        self.places.append(places)
        self.decided += len(places)
        self.failed += decision.stopped.count("nan")

    def show(self, had: int, of: int, undecided: int) -> None:
        if self.all_at_once:
            self.progress("deciding", self.decided * of + undecided * had, self.images * of)
        else:
            note = f"{undecided:,} images have had {had:,} passes" if undecided else ""
            self.progress("deciding", self.decided, self.images, note)


class Undecided:
    """Images that go together and are not decided yet, with what is known of them."""

    watch: Watch
    scores: Scores
    pairs: Pairs

    def __init__(self, places: Tensor, combine: Combine) -> None:
        self.places = places  # (n,) in the set
        self.combine = combine

    def __len__(self) -> int:
        return len(self.places)

    def begin_round(self) -> None:
        self.rows = torch.arange(len(self))  # (n,) among the images of the round, some of which retire meanwhile

    def hear(self, log_probabilities: Tensor, had: int, book: Book) -> None:
        """Take in a batch of passes of the images of the round, (passes, images, K), and retire the decided."""
        log_probabilities = log_probabilities[:, self.rows]
        if not had:
            self.scores = Scores.zero(*log_probabilities.shape[1:])
            self.pairs = Pairs.begin(self._values(log_probabilities[0]))
        sound = log_probabilities.isfinite().all(dim=2)  # (passes, n)
        if not sound.all():
            _name(self.places, sound, had)
            log_probabilities = log_probabilities[:, sound.all(dim=0)]
            self.retire(~sound.all(dim=0), "nan", book)
        for one in log_probabilities:
            self.scores = self.scores.add(one)
        values = self._values(log_probabilities)
        self.pairs = self.pairs.add(values)
        means = self.scores.log_mean if self.combine == "product" else self.scores.probability_mean
        self.watch = self.watch.look(values, leaders=rank(means)[:, 0])
        self.retire(self.watch.certain, "certified", book)
        self.retire(self.watch.hopeless, "limit", book)

    def retire(self, gone: Tensor, why: str, book: Book) -> None:
        """Decide the images of a mask (n,) by what is known of them."""
        if not gone.any():
            return
        rows, stay = gone.nonzero()[:, 0], (~gone).nonzero()[:, 0]
        decision = settle(
            self.scores.keep(rows), self.pairs.keep(rows), self.watch.keep(rows).clipped, why, self.combine
        )
        book.enter(decision, self.places[rows])
        self.places, self.rows = self.places[stay], self.rows[stay]
        self.scores, self.pairs, self.watch = self.scores.keep(stay), self.pairs.keep(stay), self.watch.keep(stay)

    def _values(self, log_probabilities: Tensor) -> Tensor:
        """What ranks the classes in one pass."""
        return log_probabilities if self.combine == "product" else log_probabilities.exp()


def _name(places: Tensor, sound: Tensor, had: int) -> None:
    """Say which images the network failed on; sound (passes, n)."""
    failed = (~sound.all(dim=0)).nonzero()[:, 0].tolist()
    first = sound.int().argmin(dim=0)  # (n,)
    named = ", ".join(f"image {int(places[i])} in pass {had + int(first[i])}" for i in failed[:5])
    more = f" and {len(failed) - 5} others" if len(failed) > 5 else ""
    logging.getLogger("apac").warning(
        "the network returned NaN or an infinite logit for %s%s: not decided, the other images go on.", named, more
    )
