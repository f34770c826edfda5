"""Run: a trained network together with its deformation and preprocessing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from apac import limits, models
from apac.classify.choice import Choice
from apac.classify.classifier import Classifier
from apac.classify.combine import Combine
from apac.classify.rules.base import Rule
from apac.classify.rules.certified import Certified
from apac.classify.rules.fixed import FixedPasses
from apac.data.normalize import Normalization, normalization_from
from apac.deform.base import Deformation
from apac.deform.compose import Compose
from apac.errors import InputError, StorageError
from apac.models.import_path import build_by_path, is_import_path
from apac.models.timm_network import build_timm, is_timm
from apac.progress import Progress, no_progress
from apac.randomness import generator
from apac.runs import folder as run_folder
from apac.runs.classified import ClassifiedImages
from apac.runs.export import export
from apac.runs.file_classifier import file_classifier
from apac.runs.folder import RunSettings
from apac.runs.stored_network import check_finite, check_shapes, other_architecture, validate_name
from apac.runs.tuning_file import read_choice
from apac.training.config import TrainConfig
from apac.training.loop import EpochRecord
from apac.validation import validate_class_names, validate_image_shape, validate_path


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A trained network with its deformation and preprocessing, so that training and testing are consistent.

    >>> import apac
    >>> apac.load("mnist-cnn")
    Run(mnist-cnn on mnist, 10 classes, 350 epochs, validation error 0.40%, tuned: strength 1, product)
    """

    network_name: str | None  # a name, "timm:NAME" or an import path; None for a module
    data: str | None  # a name or the absolute path of a folder; None for data in memory
    deformation: Deformation
    config: TrainConfig
    network: nn.Module
    normalization: Normalization
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]  # (C, H, W)
    history: tuple[EpochRecord, ...]
    versions: dict[str, str]
    folder: Path | None  # where the run is stored; None if it is not
    choice: Choice | None = None  # of `apac.tune`, which decisions use; None if the run is not tuned

    def __repr__(self) -> str:
        name = self.network_name or type(self.network).__name__
        parts = [f"{name} on {self.data or 'data in memory'}", f"{len(self.classes)} classes"]
        parts.append(f"{self.config.epochs:,} epoch{'s' * (self.config.epochs > 1)}")
        if self.history and self.history[-1].validation_error is not None:
            parts.append(f"validation error {self.history[-1].validation_error:.2%}")
        if self.choice is not None:
            parts.append(f"tuned: {self.choice.chosen}")
        return f"Run({', '.join(parts)})"

    @property
    def settings(self) -> RunSettings:
        """The settings that were passed to `train`."""
        return RunSettings(self.network_name, self.data, self.deformation, self.config)

    @property
    def takes_digits(self) -> bool:
        """Whether image files are drawn digits, which are given the format of MNIST."""
        return self.data in ("mnist", "mnist-5k")

    def normalize(self, images: Tensor) -> Tensor:
        """Convert uint8 pixels (N, C, H, W) to the images that `classifier()` takes: in 0 … 1, or ZCA-whitened.

        Float images of a run on float images are unchanged. A standardization is part of the classifier, because it
        comes after the deformation.

        >>> import apac, torch
        >>> apac.load("mnist-cnn").normalize(torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)).max()
        tensor(1.)
        """
        normalized = self.normalization.apply(images)
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(
                f"this run takes images of shape (N, {', '.join(map(str, self.image_shape))}), "
                f"got {tuple(images.shape)}."
            )
        return normalized

    def classifier(
        self,
        rule: Rule | None = None,
        *,
        seed: int = 0,
        combine: Combine | None = None,
        independent: bool = False,
        paper_rule: bool = False,
    ) -> Classifier:
        """Return the classifier of this network, with the deformation used in training.

        The default rule is `Certified()`. If the run is tuned, the strength of the deformation, `combine` unless it is
        given, and the temperature are those of its `choice`; with `paper_rule=True`, the choice is ignored. If the
        network was trained without deformation, or the plain prediction was chosen, the rule is a single pass in any
        case, because all passes would be identical.

        >>> import apac
        >>> apac.load("mnist-cnn").classifier().rule
        Certified(error=0.0001, limit=16384, clip=30.0)
        """
        if self.deformation == Compose():
            rule = FixedPasses(1)
        classifier = Classifier(
            self.normalization.in_front_of(self.network).eval(),
            self.deformation,
            rule=Certified() if rule is None else rule,
            seed=seed,
            combine="product" if combine is None else combine,
            independent=independent,
            image_shape=self.image_shape,
        )
        if self.choice is None or paper_rule:
            return classifier
        return self.choice.apply(classifier, combine)

    def classify(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        rule: Rule | None = None,
        *,
        seed: int = 0,
        combine: Combine | None = None,
        plain: bool = False,
        paper_rule: bool = False,
        max_pixels: int = limits.PIXELS,
        progress: Progress = no_progress,
    ) -> ClassifiedImages:
        """Classify image files, prepared like the training data. Unreadable files are listed and do not raise.

        A folder stands for all image files in it and in its subfolders. With `plain=True` the decision is the plain
        prediction, one pass of the undeformed image. A tuned run decides by its `choice`, unless `paper_rule=True`.
        Files with more than `max_pixels` pixels are refused before they are decoded.

        >>> import apac
        >>> result = apac.load("mnist-cnn").classify(["missing.png"])
        >>> result.labels, list(result.unreadable.values())
        ((), ['there is no file missing.png; give the path of an image file.'])
        """
        decider = file_classifier(
            self, rule, seed=seed, combine=combine, plain=plain, paper_rule=paper_rule, max_pixels=max_pixels
        )
        if isinstance(paths, str | os.PathLike):
            paths = [paths]
        return decider.classify(paths, progress=progress)

    def export(self, path: str | os.PathLike[str], *, whitened: bool = False, overwrite: bool = False) -> Path:
        """Write the preprocessing and the network as an ONNX file for any number of images; return its path.

        The graph takes float32 `images` (n, C, H, W) of pixels / 255 (or, for a run on float images, those images), and
        returns `logits`: the plain prediction. The classes, the shape and the deformation are in its metadata.

        With `apac.from_onnx`, the file decides as `classifier(paper_rule=True)` does; `choice.apply` adds what was
        tuned. A run with ZCA deforms whitened images; for its decisions, export with `whitened=True`: the graph then
        takes the images that `normalize` returns. Requires the extra `fast`.

        >>> import apac
        >>> path = apac.load("mnist-cnn").export("model.onnx")
        >>> classifier = apac.Classifier(apac.from_onnx(path), apac.presets.mnist())
        """
        return export(self, path, whitened=whitened, overwrite=overwrite)


def load(folder: str | os.PathLike[str], network: nn.Module | None = None, *, paper_rule: bool = False) -> Run:
    """Load the run in a folder, or one that is shipped: "mnist-cnn", "cifar10-cnn" or "cifar10-modern".

    For a run that was trained from a module, pass a module of the same architecture as `network`; the stored weights
    are loaded into it. A network given as "package.module:function" is rebuilt only if that module is already imported,
    because loading a run never imports code. If the folder has a tuning.json of `apac tune`, decisions use that choice;
    for a shipped run, a folder of its name with such a file comes before the choice that is shipped. With
    `paper_rule=True`, no choice is read.

    >>> import apac
    >>> apac.load("cifar10-cnn").classes[:3]
    ('plane', 'car', 'bird')
    """
    if network is not None and not isinstance(network, nn.Module):
        raise InputError(
            f"network= must be a torch.nn.Module, got {network!r}; a network of an import path is rebuilt if its "
            f"module is imported first."
        )
    given = validate_path("folder", folder)
    folder = run_folder.find(given)
    settings = run_folder.read_settings(folder)
    payload = run_folder.read(folder)
    choice = None
    if not paper_rule:
        choice = read_choice(given, settings.deformation) or read_choice(folder, settings.deformation)
    try:
        image_shape = validate_image_shape(payload["image_shape"])
        classes = validate_class_names(payload["classes"])
        settings.deformation.validate_classes(len(classes))
        expected = validate_name(settings.network) if network is None else network
        check = partial(check_shapes, folder, expected, payload["normalization"], image_shape, len(classes))
        tensors = run_folder.read_weights(folder, check)
        check_finite(tensors, folder)
        parts: dict[str, dict[str, Tensor]] = {"network": {}, "normalization": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor
        if network is None:
            network = build_network(settings, image_shape, len(classes), to_train=False)
            network.load_state_dict(parts["network"])
        else:
            try:
                network.load_state_dict(parts["network"])
            except RuntimeError as error:  # of a lazy module, whose shapes were not known
                raise other_architecture(network, folder) from error
        return Run(
            network_name=settings.network,
            data=settings.data,
            deformation=settings.deformation,
            config=settings.config,
            network=network.eval(),
            normalization=normalization_from(payload["normalization"], parts["normalization"]),
            classes=classes,
            image_shape=image_shape,
            history=tuple(map(EpochRecord.from_json, payload["history"])),
            versions={str(name): str(version) for name, version in dict(payload["versions"]).items()},
            folder=folder,
            choice=choice,
        )
    except (InputError, StorageError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise run_folder.mismatch(folder) from error


def build_network(
    settings: RunSettings, image_shape: tuple[int, int, int], classes: int, *, to_train: bool
) -> nn.Module:
    """Build the network that the settings name: to train it, or to load stored weights into it.

    A stored name never imports code of the user's, and stored weights are not tied.
    """
    name, config = settings.network, settings.config
    assert name is not None  # `validate_name`
    if is_timm(name):
        return build_timm(name, image_shape, classes, seed=config.seed)
    if is_import_path(name):
        return build_by_path(name, image_shape, classes, seed=config.seed, import_it=to_train)
    random = generator(config.seed, "initial weights", 0)
    tied = to_train and config.tied > 0
    return models.build(name, generator=random, image_shape=image_shape, classes=classes, tied=tied)


def save(run: Run, folder: Path, digest: str) -> None:
    """Store a complete run, with the digest of its training images."""
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    tensors |= {f"normalization.{name}": tensor for name, tensor in run.normalization.tensors().items()}
    payload: dict[str, Any] = run.settings.to_json() | {
        "images": digest,
        "normalization": run.normalization.kind,
        "classes": list(run.classes),
        "image_shape": list(run.image_shape),
        "versions": run.versions,
        "history": [epoch.to_json() for epoch in run.history],
    }
    run_folder.write(folder, payload, tensors)
