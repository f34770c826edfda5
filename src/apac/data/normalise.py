"""From pixels to what a network sees; a run stores which way, so that train and test cannot disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from apac.data.base import check_pixels
from apac.data.zca import Whitening
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Scaling:
    """pixels / 255: from 0 to 1."""

    kind: ClassVar[str] = "scaling"

    def apply(self, images: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, C, H, W) float32."""
        check_pixels(images)
        return images.float().div_(255)

    def tensors(self) -> dict[str, Tensor]:
        return {}


Normalisation = Scaling | Whitening


def normalisation_from(kind: str, tensors: Mapping[str, Tensor]) -> Normalisation:
    """What `kind` and `tensors()` were taken from."""
    wanted = {Scaling.kind: set[str](), Whitening.kind: {"mean", "triangle"}}
    if kind not in wanted:
        raise InputError(f"there is no normalisation {kind!r}; this version knows {', '.join(wanted)}.")
    if set(tensors) != wanted[kind]:
        raise InputError(
            f"the normalisation {kind!r} has the tensors {sorted(wanted[kind])}, not {sorted(tensors)}; "
            "it is damaged or of an earlier version, so train the run again."
        )
    return Scaling() if kind == Scaling.kind else Whitening.from_tensors(**tensors)
