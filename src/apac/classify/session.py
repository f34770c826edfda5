"""Decide images that join and leave at any time, each exactly as if it were alone.

`PassScheduler` decides a fixed set of images, whose logits the processor rounds differently in batches of different
sizes. Here the unit of work is one image in the 16 passes between two updates of its rule. A batch of the network has
one such unit, or as many as were seen to give each the same bits (`images_per_batch`), so that no digit of a result
depends on the other images. Images share what does not round: the parameters of a pass and the coordinates that follow
from them, which are computed once for all of them, and the updates of a rule, which are elementwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock

import torch
from torch import Tensor

from apac import trees
from apac.classify.classifier import Classifier
from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.decision import Decision
from apac.classify.margin import MarginMoments
from apac.classify.network_outputs import log_probabilities
from apac.classify.pass_parameters import sample_shared
from apac.classify.passes import PassRunner, in_own_memory, select_set_of_class
from apac.classify.rules.base import PASSES_PER_UPDATE, Rule, RuleState
from apac.classify.scores import Scores, rank
from apac.classify.shared_batch import images_per_batch

TOGETHER = 4  # images that a worker deforms at once
BLOCKS_PER_WORKER = 2  # in a round, so that no worker waits while another finishes
LONG_ROUND = 4  # if the images are few, a round may add a fourth of the passes
ROUND_BLOCKS = 64  # in a round, for images that had many passes
CACHED_BYTES = 64 << 20  # of the deformations of passes
MANY_PASSES = 1 << 20  # an unlimited job, for which preparing the network always pays


Deform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """How to decide an image. Images with equal settings are decided together."""

    rule: Rule
    seed: int
    combine: Combine


@dataclass(frozen=True, eq=False)
class Update:
    """What is known about an image after more passes."""

    ticket: int
    decision: Decision  # of this image alone, by the passes so far; `stopped` is "" while it is undecided
    plain: Tensor  # (K,) log-probabilities without deformation

    @property
    def is_final(self) -> bool:
        return self.decision.stopped != ("",)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What is known about the images of a cohort, a tree of tensors."""

    tickets: Tensor  # (n,) int64
    plain: Tensor  # (n, K)
    state: RuleState
    scores: Scores


@dataclass(frozen=True, eq=False)
class _Cohort:
    """Images with equal settings that had the same passes."""

    settings: Settings
    images: Tensor  # (n, C, H, W)
    tickets: Tensor  # (n,)
    rows: _Rows | None = None  # None before the first pass

    @property
    def passes(self) -> int:
        return 0 if self.rows is None else self.rows.scores.passes

    def select(self, index: Tensor) -> _Cohort:
        rows = None if self.rows is None else trees.rows(self.rows, index)
        return _Cohort(self.settings, self.images[index], self.tickets[index], rows)


class Session:
    """Decides images of one classifier; its rule, seed and combination are those of each image. Use it in one thread.

    >>> import apac, torch
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Flip())
    >>> with Session.open(classifier, (1, 1, 3)) as session:
    ...     for image in ([[[0.0, 20.0, 0.0]]], [[[20.0, 0.0, 0.0]]]):
    ...         ticket = session.join(torch.tensor(image), Settings(apac.FixedPasses(20), seed=0, combine="product"))
    ...     rounds = [[update.ticket for update in session.advance()] for _ in range(2)]
    >>> rounds
    [[], [0, 1]]
    """

    def __init__(self, runner: PassRunner, images_per_batch: int) -> None:
        self._runner, self._images_per_batch = runner, images_per_batch
        self._cohorts: list[_Cohort] = []
        self._watched: set[int] = set()
        self._left: set[int] = set()
        self._next_ticket = 0
        self._cached: OrderedDict[tuple[int, int, int, int], tuple[list[Deform], int]] = OrderedDict()
        self._caching = Lock()

    @staticmethod
    @contextmanager
    def open(classifier: Classifier, image_shape: tuple[int, int, int]) -> Iterator[Session]:
        """Yield a session with worker threads, its network prepared for images of this shape."""
        examples = torch.linspace(0, 1, 2 * torch.Size(image_shape).numel()).view(2, *image_shape)
        with classifier.prepared(examples, MANY_PASSES)._runner.running() as runner:

            def run(batch: Tensor) -> Tensor:
                return log_probabilities(runner.network, batch, len(batch), runner.outputs)

            image = runner.deformation.preprocess(examples)[0]
            rows = PASSES_PER_UPDATE, PASSES_PER_UPDATE + 1  # of an image; at first with the plain one
            yield Session(runner, images_per_batch(run, image, rows, TOGETHER))

    def __len__(self) -> int:
        """The number of images under way."""
        return sum(len(cohort.tickets) for cohort in self._cohorts)

    def join(self, image: Tensor, settings: Settings, *, watched: bool = False) -> int:
        """Add an image (C, H, W), and return the ticket of its updates; if watched, there are some on the way."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._cohorts.append(_Cohort(settings, image[None], torch.tensor([ticket])))
        if watched:
            self._watched.add(ticket)
        return ticket

    def leave(self, ticket: int) -> None:
        """Remove an image before the next round; it gets no more updates."""
        self._left.add(ticket)
        self._watched.discard(ticket)

    def advance(self) -> Iterator[Update]:
        """Run a round: at least the next 16 passes of every image, and more of them if the images are few."""
        cohorts = self._merged()
        self._cohorts, self._left = [], set()
        images = sum(len(cohort.tickets) for cohort in cohorts)
        plan = [(cohort, self._next_blocks(cohort, images)) for cohort in cohorts]
        together = self._images_per_batch if self._images_per_batch > 1 else TOGETHER
        together = max(1, min(together, images // (BLOCKS_PER_WORKER * self._runner.workers.count)))
        items = (
            (part, cohort.settings.seed, numbers)
            for cohort, blocks in plan
            for numbers in blocks
            for part in cohort.images.split(together)
        )
        with closing(self._runner.map(self._run, items)) as results:
            for cohort, blocks in plan:
                parts, own = -(-len(cohort.tickets) // together), torch.arange(len(cohort.tickets))
                for _ in blocks:
                    batch = torch.cat(list(islice(results, parts)), dim=1)  # (passes, n, K)
                    if len(own):
                        cohort, kept, updates = self._update(cohort, batch[:, own])
                        own = own[kept]
                        yield from updates
                if len(own):
                    self._cohorts.append(cohort)

    def _merged(self) -> list[_Cohort]:
        """Return the cohorts without the images that left; those at the same pass with equal settings become one."""
        by_place: dict[tuple[Settings, int], list[_Cohort]] = {}
        for cohort in self._cohorts:
            if self._left:
                stays = torch.tensor([ticket not in self._left for ticket in cohort.tickets.tolist()])
                cohort = cohort.select(stays)
            if len(cohort.tickets):
                by_place.setdefault((cohort.settings, cohort.passes), []).append(cohort)
        return [_concatenated(cohorts) for cohorts in by_place.values()]

    def _next_blocks(self, cohort: _Cohort, images: int) -> list[range]:
        """Return the next passes of a cohort in a round with this number of images, 16 by 16."""
        done, rule = cohort.passes, cohort.settings.rule
        at_least = -(-BLOCKS_PER_WORKER * self._runner.workers.count // images)
        # An image that had many passes needs many more: fewer rounds, for a few passes after its decision.
        long = min(done // (LONG_ROUND * PASSES_PER_UPDATE), ROUND_BLOCKS // images)
        fill = PASSES_PER_UPDATE * max(at_least, long)
        stop = min(done + min(rule.next_passes(done, fill), fill), rule.limit)
        return [range(start, min(start + PASSES_PER_UPDATE, stop)) for start in range(done, stop, PASSES_PER_UPDATE)]

    def _run(self, item: tuple[Tensor, int, range]) -> Tensor:
        """Return the log-probabilities of images, (passes, n, K); before the first pass, the plain ones."""
        images, seed, numbers = item
        runner, n, passes = self._runner, len(images), len(numbers)
        repeated = images.repeat_interleave(passes, dim=0)  # row i * passes + p is image i in pass p
        if not numbers.start:
            plain = runner.deformation.preprocess(images)[:, None]  # in the batch of the passes it costs little
        per_set = []
        for deform in self._deformations(repeated[:passes], seed, numbers, n):
            virtual = deform(repeated)
            if not numbers.start:
                virtual = torch.cat((plain, virtual.unflatten(0, (n, passes))), dim=1).flatten(0, 1)
            virtual = in_own_memory(virtual, images, repeated)
            batch = len(virtual) // n * (self._images_per_batch if passes == PASSES_PER_UPDATE else 1)
            per_set.append(log_probabilities(runner.network, virtual, batch, runner.outputs))
        scores = select_set_of_class(per_set, runner.deformation)  # (n * passes, K)
        return scores.view(n, -1, scores.shape[1]).transpose(0, 1)

    def _deformations(self, images: Tensor, seed: int, numbers: range, n: int) -> list[Deform]:
        """Return the deformation of n images in these passes, for each set; `images` are one image for each pass."""
        key = seed, numbers.start, numbers.stop, n
        if (cached := self._cached.get(key)) is not None:
            return cached[0]
        sets = self._runner.deformation.sets
        sampled = [sample_shared(u, images, seed, numbers) for u in sets]
        bound = [u.bind(images, parameters, n) for u, parameters in zip(sets, sampled, strict=True)]
        # Next to the parameters, a displacement of the same size may be kept.
        size = 2 * n * trees.bytes_of(tuple(sampled))
        with self._caching:
            self._cached[key] = bound, size
            while sum(size for _, size in self._cached.values()) > CACHED_BYTES and len(self._cached) > 1:
                self._cached.popitem(last=False)
        return bound

    def _update(self, cohort: _Cohort, batch: Tensor) -> tuple[_Cohort, Tensor, list[Update]]:
        """Pass a batch of passes, (passes, n, K), to the rule; return the undecided images, their mask, and updates."""
        settings = cohort.settings
        combination = COMBINATIONS[settings.combine]
        rows = cohort.rows
        if rows is None:
            plain, batch = batch[0], batch[1:]
            state = settings.rule.init(len(plain), lambda: plain, combination.max_difference)
            rows = _Rows(cohort.tickets, plain, state, Scores.zero(*plain.shape))
        sound = batch.isfinite().all(dim=2).all(dim=0) & rows.plain.isfinite().all(dim=1)
        scores = rows.scores.add(batch)
        state = rows.state.update(combination.values(batch), leaders=rank(scores.mean(settings.combine))[:, 0])
        before, rows = rows, replace(rows, scores=scores, state=state)
        decided, undecidable = sound & state.decided, sound & state.undecidable
        at_limit = sound & ~decided & (undecidable | (scores.passes >= settings.rule.limit))
        updates = [
            *_updates(before, ~sound, "nan", settings.combine),
            *_updates(rows, decided, settings.rule.when_decided, settings.combine),
            *_updates(rows, at_limit, settings.rule.at_limit, settings.combine),
        ]
        kept = sound & ~decided & ~at_limit
        if self._watched:
            watched = torch.tensor([ticket in self._watched for ticket in rows.tickets.tolist()])
            updates += _updates(rows, kept & watched, "", settings.combine)
            self._watched -= {update.ticket for update in updates if update.is_final}
        if kept.all():
            return replace(cohort, rows=rows), kept, updates
        return replace(cohort, rows=rows).select(kept), kept, updates


def _concatenated(cohorts: list[_Cohort]) -> _Cohort:
    if len(cohorts) == 1:
        return cohorts[0]
    rows = [cohort.rows for cohort in cohorts if cohort.rows is not None]
    return _Cohort(
        cohorts[0].settings,
        torch.cat([cohort.images for cohort in cohorts]),
        torch.cat([cohort.tickets for cohort in cohorts]),
        trees.concatenate(rows) if rows else None,
    )


def _updates(rows: _Rows, mask: Tensor, stopped: str, combine: Combine) -> list[Update]:
    """Return the updates of the images of a mask, (n,)."""
    if not mask.any():
        return []
    chosen = trees.rows(rows, mask)
    # The standard error of the margin is not tracked: the sums of products that it needs depend on the batch.
    no_moments = MarginMoments.zero(chosen.scores.log_sum)
    decision = Decision.from_scores(chosen.scores, no_moments, chosen.state.clipped, stopped, combine)
    return [
        Update(ticket, decision.select(torch.tensor([row])), chosen.plain[row])
        for row, ticket in enumerate(chosen.tickets.tolist())
    ]
