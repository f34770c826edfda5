"""Convert pixels to network inputs. A run stores its normalization, so that training and testing use the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from apac.data.base import check_pixels
from apac.data.zca import Whitening
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Identity:
    """No change, for floating-point images."""

    kind: ClassVar[str] = "none"

    def apply(self, images: Tensor) -> Tensor:
        """Return floating-point images (N, C, H, W) unchanged."""
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images must be a floating-point tensor (N, C, H, W), got {got}.")
        return images

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, eq=False)
class Scaling:
    """pixels / 255: from 0 to 1."""

    kind: ClassVar[str] = "scaling"

    def apply(self, images: Tensor) -> Tensor:
        """Convert (N, C, H, W) uint8 to (N, C, H, W) float32."""
        check_pixels(images)
        return images.float().div_(255)

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, eq=False)
class Standardizing:
    """(pixels / 255 − mean) / standard deviation, per channel."""

    mean: Tensor  # (C,) float32
    deviation: Tensor  # (C,) float32, above 0

    kind: ClassVar[str] = "standardizing"

    def apply(self, images: Tensor) -> Tensor:
        """Convert (N, C, H, W) uint8 to (N, C, H, W) float32."""
        check_pixels(images)
        if images.shape[1] != len(self.mean):
            raise InputError(f"this normalization was fitted on {len(self.mean)} channels, got {images.shape[1]}.")
        return (images.float().div_(255) - self.mean[:, None, None]) / self.deviation[:, None, None]

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "deviation": self.deviation}

    @staticmethod
    def fit(images: Tensor) -> Standardizing:
        check_pixels(images)
        if not len(images):
            raise InputError("fitting a normalization needs at least one image, got none.")
        pixels = images.transpose(0, 1).flatten(1).double() / 255  # (C, N · H · W)
        return Standardizing(pixels.mean(dim=1).float(), pixels.std(dim=1, correction=0).clamp_min(1e-3).float())


Normalization = Identity | Scaling | Standardizing | Whitening


def normalization_from(kind: str, tensors: Mapping[str, Tensor]) -> Normalization:
    """Restore a normalization from its `kind` and `tensors()`."""
    names = {
        Identity.kind: set[str](),
        Scaling.kind: set[str](),
        Standardizing.kind: {"mean", "deviation"},
        Whitening.kind: {"mean", "triangle"},
    }
    if kind not in names:
        raise InputError(f"there is no normalization {kind!r}; this version has {', '.join(names)}.")
    if set(tensors) != names[kind]:
        raise InputError(
            f"the normalization {kind!r} needs the tensors {sorted(names[kind])}, got {sorted(tensors)}; "
            "the run is damaged or from an earlier version; train it again."
        )
    if kind == Standardizing.kind:
        return Standardizing(**tensors)
    if kind == Whitening.kind:
        return Whitening.from_tensors(**tensors)
    return Scaling() if kind == Scaling.kind else Identity()
