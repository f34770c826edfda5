"""What a training uses: the files, the images by class, the deformation and the network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from apac.data.base import Dataset
from apac.data.folder import FolderDataset, FolderSummary
from apac.data.normalize import Normalization
from apac.runs.folder import RunSettings
from apac.runs.split import Split


@dataclass(frozen=True)
class ClassCounts:
    """The numbers of images of one class."""

    name: str
    train: int
    held_out: int
    test: int


@dataclass(frozen=True)
class TrainingSummary:
    """A training before its first step."""

    settings: RunSettings
    folder: FolderSummary | None  # None if the data are not a folder
    classes: tuple[ClassCounts, ...]
    image_shape: tuple[int, int, int]  # (C, H, W)
    normalization: str  # "scaling", "standardization", "zca", or "none" for floating-point images
    network: str  # the name, or that of the class of a module
    parameters: int  # of the network
    trained_parameters: int  # fewer if parts of it are frozen

    @staticmethod
    def of(
        settings: RunSettings, dataset: Dataset, split: Split, normalization: Normalization, network: nn.Module
    ) -> TrainingSummary:
        counts = zip(
            split.classes,
            *(_counts(part, split) for part in (split.labels, split.held_out_labels, dataset.test_labels)),
            strict=True,
        )
        return TrainingSummary(
            settings,
            dataset.summary if isinstance(dataset, FolderDataset) else None,
            tuple(ClassCounts(*row) for row in counts),
            split.image_shape,
            normalization.kind,
            settings.network or type(network).__name__,
            sum(parameter.numel() for parameter in network.parameters()),
            sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad),
        )


def _counts(labels: Tensor, split: Split) -> list[int]:
    counts: list[int] = torch.bincount(labels, minlength=len(split.classes)).tolist()
    return counts
