"""How a run decides image files: how their pixels become images, and which classifier decides these."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apac import limits
from apac.classify.classifier import Classifier
from apac.classify.combine import Combine
from apac.classify.decision import Decision
from apac.classify.rules.base import Rule
from apac.classify.rules.fixed import FixedPasses
from apac.data.image_file import Fit, decode_image
from apac.data.normalize import Normalization
from apac.deform.base import Deformation
from apac.deform.compose import Compose
from apac.errors import InputError
from apac.progress import Progress, no_progress
from apac.runs.classified import ClassifiedImages, check_reads_files, list_files, read_images

if TYPE_CHECKING:
    from apac.runs.run import Run

BATCH_BYTES = 64 << 20  # of the float32 images that are decided at once


@dataclass(frozen=True, eq=False)
class FileClassifier:
    """Reads image files as pixels, and decides them."""

    classifier: Classifier
    normalization: Normalization
    plain: Deformation | None  # whose preprocessing makes the images of the plain prediction; None for deformed ones
    strength: float  # of the deformation
    image_shape: tuple[int, int, int]  # of the pixels of a file
    fit: Fit
    digits: bool  # whether files are converted to the format of MNIST
    classes: tuple[str, ...]
    max_pixels: int  # of a file

    def decode(self, path: Path) -> Tensor:
        """Return the pixels of a file, (C, H, W) uint8. Call it inside of `without_warnings`."""
        return decode_image(path, self.image_shape, fit=self.fit, digit=self.digits, max_pixels=self.max_pixels)[0]

    def images(self, pixels: Tensor) -> Tensor:
        """Convert pixels (N, C, H, W) uint8 to the images that the classifier decides."""
        images = self.normalization.apply(pixels)
        return images if self.plain is None else self.plain.preprocess(images)

    def decide(self, pixels: Tensor, *, progress: Progress = no_progress) -> Decision:
        """Decide pixels (N, C, H, W) uint8."""
        return self.classifier.decide(self.images(pixels), progress=progress)

    @property
    def batch_size(self) -> int:
        """Files to decide at once, so that memory does not grow with their number."""
        return max(1, BATCH_BYTES // (4 * torch.Size(self.image_shape).numel()))

    def prepared(self, count: int) -> FileClassifier:
        """Return the same with the network prepared for `count` files: by fixed images, so the same everywhere."""
        examples = torch.arange(2 * torch.Size(self.image_shape).numel()) % 256
        images = self.images(examples.to(torch.uint8).view(2, *self.image_shape))
        passes = self.classifier.rule.next_passes(0, fill=1)
        return replace(self, classifier=self.classifier.prepared(images, max(1, count * passes // len(images))))

    def classify(
        self, paths: Sequence[str | os.PathLike[str]], *, progress: Progress = no_progress
    ) -> ClassifiedImages:
        """Read and decide the files of these paths, in batches."""
        files, unreadable = list_files(paths)
        size = self.batch_size
        decider = self if len(files) <= size else self.prepared(len(files))
        decisions: list[Decision] = []
        readable: list[Path] = []
        notes: list[tuple[str, ...]] = []
        for start in range(0, max(1, len(files)), size):
            batch = files[start : start + size]
            read = read_images(batch, self.image_shape, fit=self.fit, digits=self.digits, max_pixels=self.max_pixels)
            report = progress if len(files) <= size else _of_files(progress, start, len(batch), len(files))
            unreadable |= read.unreadable
            readable += read.paths
            notes += read.notes
            is_last = start + size >= len(files)
            if len(read.images) or (is_last and not decisions):
                decisions.append(decider.decide(read.images, progress=report))
            elif is_last:
                report("deciding", 1, 1)
        decision = Decision.concatenate(decisions)
        return ClassifiedImages(
            tuple(readable), decision, self.classes, tuple(notes), unreadable, plain=self.plain is not None
        )


def _of_files(progress: Progress, start: int, batch: int, files: int) -> Progress:
    """Report the progress of a batch, which counts images or passes, in files."""
    return lambda task, done, total, note="": progress(task, start + done * batch // total, files, note)


def file_classifier(
    run: Run,
    rule: Rule | None = None,
    *,
    seed: int = 0,
    combine: Combine | None = None,
    plain: bool = False,
    paper_rule: bool = False,
    max_pixels: int = limits.PIXELS,
) -> FileClassifier:
    """Return how `Run.classify` decides image files with these arguments."""
    check_reads_files(run.normalization)
    if plain and rule is not None:
        raise InputError("plain=True is one pass of the undeformed image; omit it, or omit the rule.")
    choice = None if paper_rule else run.choice
    strength = 1.0 if choice is None else choice.strength
    plain = plain or run.deformation == Compose() or not strength
    classifier = run.classifier(FixedPasses(1) if plain else rule, seed=seed, combine=combine, paper_rule=paper_rule)
    if plain:
        temperature = 1.0 if choice is None else choice.plain.temperature(classifier.rule)
        classifier = replace(classifier, deformation=Compose(), image_shape=None, temperature=temperature)
    return FileClassifier(
        classifier,
        run.normalization,
        plain=run.deformation if plain else None,
        strength=0.0 if plain else strength,
        image_shape=run.image_shape,
        fit=run.config.fit,
        digits=run.takes_digits,
        classes=run.classes,
        max_pixels=max_pixels,
    )
