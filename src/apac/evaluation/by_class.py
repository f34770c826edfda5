"""Predictions of labeled images by class: the confusion matrix, the error of each class, the misclassified images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from apac.evaluation.records import to_csv


@dataclass(frozen=True)
class ClassError:
    """The errors of one class, as fractions of its images; None without images."""

    name: str
    images: int
    plain: float | None
    apac: float | None


@dataclass(frozen=True)
class Misclassified:
    """An image that the plain prediction or APAC gets wrong, with class names; None if it is not decided."""

    image: int  # position in the set
    file: str | None
    label: str
    plain: str | None
    apac: str | None


@dataclass(frozen=True, eq=False)
class Predictions:
    """The plain prediction and the decision by APAC of N labeled images, as numbers of classes.

    >>> truth, plain, apac = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0])
    >>> predictions = Predictions(("cat", "dog"), truth, plain, apac)
    >>> predictions.confusion("apac").tolist()
    [[2, 0], [1, 0]]
    >>> [(image.image, image.label, image.plain, image.apac) for image in predictions.misclassified()]
    [(1, 'cat', 'dog', 'cat'), (2, 'dog', 'dog', 'cat')]
    """

    classes: tuple[str, ...]  # (K,)
    truth: Tensor  # (N,) int64
    plain: Tensor  # (N,) int64
    apac: Tensor  # (N,) int64; -1 for an image that is not decided
    files: tuple[str, ...] = ()  # (N,), or none if the images have no files

    def confusion(self, rule: str) -> Tensor:
        """Return the number of images of each class (rows) by the prediction (columns), (K, K), for "plain" or "apac".

        Images that are not decided are not counted.
        """
        predicted = getattr(self, rule)
        decided = predicted >= 0
        size = len(self.classes)
        cells = self.truth[decided] * size + predicted[decided]
        return torch.bincount(cells, minlength=size * size).view(size, size)

    def class_errors(self) -> tuple[ClassError, ...]:
        """Return the errors of each class."""
        counts = torch.bincount(self.truth, minlength=len(self.classes)).tolist()
        correct = {rule: self.confusion(rule).diagonal().tolist() for rule in ("plain", "apac")}
        return tuple(
            ClassError(
                name, count, *((count - correct[rule][c]) / count if count else None for rule in ("plain", "apac"))
            )
            for c, (name, count) in enumerate(zip(self.classes, counts, strict=True))
        )

    def misclassified(self) -> tuple[Misclassified, ...]:
        """Return the images that the plain prediction or APAC gets wrong."""
        wrong = (self.plain != self.truth) | (self.apac != self.truth)
        return tuple(
            Misclassified(
                i,
                self.files[i] if self.files else None,
                self.classes[int(self.truth[i])],
                self._name(self.plain[i]),
                self._name(self.apac[i]),
            )
            for i in wrong.nonzero()[:, 0].tolist()
        )

    def _name(self, number: Tensor) -> str | None:
        return self.classes[int(number)] if number >= 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return everything about the classes, ready for `json.dumps`."""
        return {
            "classes": list(self.classes),
            "class_errors": [asdict(error) for error in self.class_errors()],
            "confusion": {rule: self.confusion(rule).tolist() for rule in ("plain", "apac")},
            "misclassified": [asdict(image) for image in self.misclassified()],
        }

    def confusion_csv(self) -> str:
        """Return one line per rule and true class, with a column for each predicted class."""
        rows = [
            [rule, name, *counts]
            for rule in ("plain", "apac")
            for name, counts in zip(self.classes, self.confusion(rule).tolist(), strict=True)
        ]
        return to_csv(["rule", "label", *self.classes], rows)

    def classes_csv(self) -> str:
        """Return one line per class."""
        rows = [[error.name, error.images, error.plain, error.apac] for error in self.class_errors()]
        return to_csv(["class", "images", "plain_error", "apac_error"], rows)

    def misclassified_csv(self) -> str:
        """Return one line per misclassified image."""
        rows = [[image.image, image.file, image.label, image.plain, image.apac] for image in self.misclassified()]
        return to_csv(["image", "file", "label", "plain", "apac"], rows)
