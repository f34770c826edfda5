"""Scores of a data set for a growing number of passes, cached in files: no pass is computed twice."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from apac.classify.classifier import Classifier
from apac.classify.rules.exhaustive import Exhaustive
from apac.classify.scores import Scores
from apac.distributed.ranks.group import Group
from apac.errors import InputError
from apac.progress import Progress, no_progress, part_of
from apac.runs.storage import Shapes, read_tensors, write_tensors

FORMAT = 2  # increment when the passes of the same key change
SAVE_EVERY = 1_000_000  # passes, summed over images; an interruption loses at most this many
UNIT = 16  # passes whose sum one rank computes
SUMS = ("log_sum", "log_squares", "probability_sum", "probability_squares")


def check_shapes(classifier: Classifier, images: Tensor, shapes: Shapes) -> None:
    """Raise ValueError if the tensors of a file do not match images and classes, before they are read."""
    classes = classifier.plain(images[:0]).shape[1]
    if any(shape not in ((len(images),), (len(images), classes)) for shape in shapes.values()):
        raise ValueError("the tensors are damaged")


class ScoreCache:
    """The scores of images after increasing numbers of passes, up to `max_passes`.

    With a folder, there is one file for each requested number of passes and one for a partial sum. The file name
    depends on the network's layers and weights, the deformation, the seed, the images and the versions.
    """

    def __init__(self, classifier: Classifier, images: Tensor, max_passes: int, folder: Path | None = None) -> None:
        self.classifier, self.images, self.max_passes, self.folder = classifier, images, max_passes, folder
        self.group = Group.current()
        self.scores: Scores | None = None
        self.seconds = 0.0  # to compute the passes, including those loaded from the folder
        self._prepared: Classifier | None = None  # the classifier, prepared once for all passes
        self._key = "" if folder is None else cache_key(classifier, images)

    def get(self, passes: int, *, progress: Progress = no_progress) -> Scores:
        """Return the scores of passes 0 … passes - 1. Only missing passes are computed.

        `passes` must not decrease between calls. Several ranks share the passes; the sums are those of one process.
        """
        if self.folder is not None:
            self.scores, self.seconds = self.group.on_first(lambda: self._load(passes))
        step = passes if self.folder is None else max(1, SAVE_EVERY // max(1, len(self.images)))
        saved = self._done
        units = _units(saved, passes, step)
        for first in range(0, len(units), self.group.size):
            self._compute(units[first : first + self.group.size], progress)
            if self._done - saved >= step or self._done == passes:
                self.group.on_first(lambda: self._save(passes))
                saved = self._done
        if self.folder is not None:
            self.group.on_first(lambda: self._complete(passes))
        assert self.scores is not None
        assert self.scores.passes == passes
        return self.scores

    @property
    def _done(self) -> int:
        return 0 if self.scores is None else self.scores.passes

    def _compute(self, units: Sequence[tuple[int, int]], progress: Progress) -> None:
        """Add consecutive units of passes to the scores. Each rank sums one unit, and the sums are added in order."""
        started = time.monotonic()
        self._prepared = self._prepared or self.classifier.prepared(self.images, self.max_passes - self._done)
        own = units[self.group.rank] if self.group.rank < len(units) else None
        summed = self.group.together(lambda: self._sum(*own, progress) if own else None)
        for scores in self.group.gather(summed):
            if scores is None:
                continue
            self.scores = scores if self.scores is None else self.scores.merge(scores)
        self.seconds += time.monotonic() - started

    def _sum(self, start: int, stop: int, progress: Progress) -> Scores:
        assert self._prepared is not None
        return self._prepared.score(self.images, start, stop, progress=part_of(progress, start, self.max_passes))

    def _load(self, passes: int) -> tuple[Scores | None, float]:
        """Return the scores of the file with the most passes up to `passes`, or those in memory if they have more."""
        assert self.folder is not None
        scores, seconds = self.scores, self.seconds
        for path in self.folder.glob(f"{self._key}-*.safetensors"):
            with suppress(InputError, OSError, KeyError, ValueError):  # recompute if the file is damaged
                tensors, metadata = read_tensors(path, "", partial(check_shapes, self.classifier, self.images))
                stored, taken = int(metadata["passes"]), float(metadata["seconds"])
                if not 0 <= taken < math.inf:
                    raise ValueError("the seconds are damaged")
                if (0 if scores is None else scores.passes) < stored <= passes:
                    scores, seconds = Scores(stored, *self._sums(tensors)), taken
        return scores, seconds

    def _complete(self, passes: int) -> None:
        """Write the complete file if it is missing, and remove the partial one.

        The scores may have been loaded from the partial file of a larger sum. A process that was killed between the two
        steps has left both files.
        """
        if not self._file(passes).exists():
            self._save(passes)
        with suppress(OSError):
            self._partial_file(passes).unlink()

    def _sums(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the sums of a file. Raises KeyError or ValueError if they are not those of the images."""
        sums = [tensors[name] for name in SUMS]
        if any(part.ndim != 2 or part.dtype != torch.float64 for part in sums):
            raise ValueError("the sums are damaged")
        if not all(bool(part.isfinite().all()) for part in sums):
            raise ValueError("the sums are not finite")
        return sums

    def _save(self, passes: int) -> None:
        """Write the scores as the complete file of `passes` passes, or as a partial file."""
        if self.folder is None or self.scores is None:
            return
        path = self._file(passes) if self.scores.passes == passes else self._partial_file(passes)
        metadata = {"passes": str(self.scores.passes), "seconds": str(self.seconds)}
        write_tensors(path, {name: getattr(self.scores, name) for name in SUMS}, metadata)

    def _file(self, passes: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{self._key}-{passes}.safetensors"

    def _partial_file(self, passes: int) -> Path:
        return self._file(passes).with_suffix(".partial.safetensors")


def _units(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """Divide passes where sums are saved and after every 16th, whatever the number of ranks that share the units."""
    cuts = {*range(start, stop, step), *range(start - start % UNIT + UNIT, stop, UNIT), stop}
    return list(pairwise(sorted(cuts)))


def cache_key(classifier: Classifier, images: Tensor, *others: object) -> str:
    """Return a hash of the network, its weights, the deformation, the seed, the images and the `repr` of `others`."""
    network = classifier.network
    if not isinstance(network, nn.Module):
        raise InputError("cache needs a network that is an nn.Module: its weights are part of the key.")
    deformation = classifier.deformation.to_json()  # the repr of a transform of another library names its class only
    described = (network, deformation, classifier.seed, classifier.independent, images.shape, *others)
    described += () if classifier.outputs == "logits" else (classifier.outputs,)
    described += ("all values",) if isinstance(classifier.rule, Exhaustive) else ()
    versions = (FORMAT, torch.__version__, version("augmented-pattern-classification"))
    digest = hashlib.blake2b(repr((*described, *versions)).encode(), digest_size=8)
    for tensor in (*network.state_dict().values(), images):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
