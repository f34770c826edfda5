"""ScoreCache the passes of a set up to M, and further: nothing is made twice, and a long sum can be stopped and gone on
with."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from apac.classify.classifier import Classifier
from apac.classify.scores import Scores
from apac.errors import InputError
from apac.progress import Progress, no_progress
from apac.runs.storage import read_tensors, write_tensors

FORMAT = 1  # another for passes that are made otherwise
SAVED_EVERY = 1_000_000  # passes, of all images together: so many are lost at most when a sum is stopped
SUMS = ("log_sum", "log_squares", "probability_sum", "probability_squares")


class ScoreCache:
    """The scores of images for growing numbers of passes, up to `most`.

    With a folder they are kept there: a file for each number that was asked for, and one while it is summed. A file is
    named after the network's layers and weights, the deformation, the seed, the images and the versions.
    """

    def __init__(self, classifier: Classifier, images: Tensor, most: int, folder: Path | None = None) -> None:
        self.classifier, self.images, self.max_shift, self.folder = classifier, images, most, folder
        self.ready: Classifier | None = None  # the classifier, prepared once for all passes
        self.scores: Scores | None = None
        self.seconds = 0.0  # that the passes took, whenever they were made
        self.key = "" if folder is None else key_of(classifier, images)

    def get(self, passes: int, *, progress: Progress = no_progress) -> Scores:
        """The scores of passes 0 … passes − 1, of which only those are made that are not known; `passes` may not
        shrink from call to call."""
        self._load(passes)
        step = passes if self.folder is None else max(1, SAVED_EVERY // max(1, len(self.images)))
        for start in range(self._done, passes, step):
            stop = min(start + step, passes)
            began = time.monotonic()
            self.ready = self.ready or self.classifier.prepared(self.images, self.max_shift - start)
            further = self.ready.score(self.images, start, stop, progress=_from(start, self.max_shift, progress))
            self.scores = further if self.scores is None else self.scores.merge(further)
            self.seconds += time.monotonic() - began
            self._save(passes)
        if self.folder is not None and not self._file(passes).exists():  # the sum was found under way, just so far
            self._save(passes)
        assert self.scores is not None
        assert self.scores.passes == passes
        return self.scores

    @property
    def _done(self) -> int:
        return 0 if self.scores is None else self.scores.passes

    def _load(self, passes: int) -> None:
        """Take the kept scores of the most passes, up to so many, if they are more than are at hand."""
        if self.folder is None:
            return
        for path in self.folder.glob(f"{self.key}-*.safetensors"):
            with suppress(InputError, KeyError, ValueError):  # what is damaged is made anew
                tensors, notes = read_tensors(path, "")
                if self._done < int(notes["passes"]) <= passes:
                    self.scores = Scores(int(notes["passes"]), *(tensors[name] for name in SUMS))
                    self.seconds = float(notes["seconds"])

    def _save(self, passes: int) -> None:
        """Write the scores, which are those of so many passes or on the way there."""
        if self.folder is None or self.scores is None:
            return
        whole = self._file(passes)
        under_way = whole.with_suffix(".under-way.safetensors")
        path = whole if self.scores.passes == passes else under_way
        notes = {"passes": str(self.scores.passes), "seconds": str(self.seconds)}
        write_tensors(path, {name: getattr(self.scores, name) for name in SUMS}, notes)
        if path == whole:
            under_way.unlink(missing_ok=True)

    def _file(self, passes: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.key}-{passes}.safetensors"


def key_of(classifier: Classifier, images: Tensor, *others: object) -> str:
    """A name for a network with its weights, deformation, seed and images, and for whatever else prints as it is."""
    network = classifier.network
    if not isinstance(network, nn.Module):
        raise InputError("scores can be kept only for a network that is a module, whose weights tell it from others.")
    classifier.deformation.to_json()  # refuses what does not print as what it is
    about = (network, classifier.deformation, classifier.seed, classifier.independent, images.shape, *others)
    about += () if classifier.outputs == "logits" else (classifier.outputs,)
    versions = (FORMAT, torch.__version__, version("augmented-pattern-classification"))
    digest = hashlib.blake2b(repr((*about, *versions)).encode(), digest_size=8)
    for tensor in (*network.state_dict().values(), images):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _from(start: int, total: int, progress: Progress) -> Progress:
    """The progress of a part of the passes as that of all of them."""
    return lambda task, done, _, note="": progress(task, start + done, total, note)
